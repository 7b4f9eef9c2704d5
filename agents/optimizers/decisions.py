"""Arithmetic with step counts, loss scales and conditions in tensors, for eager updates and compiled programs.

Decisions use ``torch.where``, which reads no value from a device, and so can be traced. A value in the processor's
memory is cheap to read: there kernels get it as a Python number, and computations that a decision makes superfluous
are skipped. The bits of the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, _foreach_add_, _foreach_addcdiv_

from ...formats import is_traced, unsimulated
from ...simulate import is_exact

_aten = torch.ops.aten
_read = unsimulated(bool)
# These operations are not rounded, only the operation that uses their results.
_product, _minus, _stacked = unsimulated(torch.mul), unsimulated(torch.neg), unsimulated(torch.stack)
_sum_with_quotient = unsimulated(lambda x, dividend, divisor, factor: x + dividend.to(factor.dtype) * factor / divisor)


@unsimulated
def number_tensor(value: Any, device: torch.device) -> Tensor:
    """Converts numbers to a tensor, never rounded: an integer to int64, others to float64.

    It does not wait for the device: a single number is filled in there, several are copied asynchronously.
    """
    dtype = torch.int64 if isinstance(value, int) else torch.float64
    if isinstance(value, (int, float)):
        return torch.full((), value, dtype=dtype, device=device)
    return torch.tensor(value, dtype=dtype, device="cpu").to(device, non_blocking=True)


def is_readable(x: Tensor) -> bool:
    """Whether the numbers of ``x`` can be read without waiting: on the CPU, and not in a traced program."""
    return x.is_cpu and not is_traced()


@unsimulated
def number_or_tensor(x: Tensor, dtype: torch.dtype) -> Any:
    """Returns ``x`` for arithmetic with tensors of ``dtype``: as a Python number if it is readable, else as a tensor.

    A tensor has ``dtype``, or float32 if that is a half precision, as kernels treat Python numbers.
    """
    if is_readable(x):
        return x.item()
    return x.to(torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)


def known_true(condition: Tensor) -> bool:
    """Whether the condition is readable and true. Then the alternative need not be computed."""
    return is_readable(condition) and _read(condition)


def known_false(condition: Tensor) -> bool:
    """Whether the condition is readable and false."""
    return is_readable(condition) and not _read(condition)


# Two passes, one when compiled; isfinite().all() would take five.
_largest = unsimulated(lambda x: x.abs().amax().double())


def magnitude(x: Tensor) -> Tensor:
    """Returns the largest absolute value, as float64; NaN if an element is NaN, 0 without elements."""
    largest: Tensor = _largest(x) if x.numel() else number_tensor(0.0, x.device)
    return largest


@unsimulated
def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns a copy of each tensor."""
    return [x.clone() for x in tensors]  # Not rounded: the values are already in their format.


@unsimulated
def copy_(tensor: Tensor, other: Tensor) -> Tensor:
    """Calls ``tensor.copy_(other)`` without rounding; ``other`` need not be representable in the simulated format."""
    return tensor.copy_(other)


@unsimulated
def choose_(condition: Tensor, tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Copies to every tensor from its counterpart in ``others`` if the condition is true."""
    for x, other in zip(tensors, others, strict=True):
        x.copy_(torch.where(condition, other, x))  # Without a branch, so that programs can trace it.


def with_number(
    operation: Callable[..., Tensor], x: Tensor, number: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """Returns ``operation(x, number)`` in the dtype of ``x``, without rounding a number in a tensor to it first."""
    if not _fits(x, number):
        result = operation(x.to(number.dtype), number)  # type: ignore[union-attr]
        return result.to(x.dtype) if out is None else out.copy_(result)
    return operation(x, number) if out is None else operation(x, number, out=out)


def multiply_(x: Tensor, number: float | Tensor) -> Tensor:
    """Multiplies ``x`` by a number in place; returns ``x``."""
    return x.mul_(number) if _fits(x, number) else x.copy_(with_number(torch.mul, x, number))


def add_number_(tensors: list[Tensor], number: Any) -> None:
    """Adds a number to each tensor in place."""
    if not isinstance(number, torch.Tensor):
        _foreach_add_(tensors, number)
        return
    for x in tensors:
        x.add_(number) if _fits(x, number) else x.copy_(with_number(torch.add, x, number))


def _fits(x: Tensor, number: float | Tensor) -> bool:
    return not isinstance(number, torch.Tensor) or number.dtype == x.dtype


def filled_like(x: Tensor, value: float | Tensor) -> Tensor:
    """Returns a tensor like ``x`` with every element ``value``."""
    if isinstance(value, torch.Tensor):
        return value.to(x.dtype).expand(x.shape).clone()
    return torch.full_like(x, value)


def add_product(x: Tensor, a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """Returns ``x + factor * a * b``, as one operation."""
    if not isinstance(factor, torch.Tensor):
        return torch.addcmul(x, a, b, value=factor)
    if is_exact(_aten._foreach_addcmul.Tensor):  # noqa: SLF001  it takes its factors in a tensor
        return torch._foreach_addcmul([x], [a], [b], factor.view(1))[0]  # noqa: SLF001  it has no other name
    return torch.addcmul(x, _product(a, factor), b)  # The kernel also multiplies ``a`` by the factor first.


def subtract_product(x: Tensor, a: Tensor, factor: float | Tensor) -> Tensor:
    """Returns ``x - factor * a``, as one operation."""
    if not isinstance(factor, torch.Tensor):
        return torch.sub(x, a, alpha=factor)
    return with_number(lambda wide, number: torch.addcmul(wide, a.to(wide.dtype), _minus(number)), x, factor)


def add_quotients_(
    tensors: list[Tensor], dividends: list[Tensor], divisors: list[Tensor], factors: Sequence[Any]
) -> None:
    """Adds factor * dividend / divisor to each tensor in place, as one operation."""
    if not any(isinstance(factor, torch.Tensor) for factor in factors):  # One kernel for all tensors.
        _foreach_addcdiv_(tensors, dividends, divisors, factors)
    elif is_exact(_aten._foreach_addcdiv_.Tensor):
        _foreach_addcdiv_(tensors, dividends, divisors, _stacked(list(factors)))
    else:
        for x, dividend, divisor, factor in zip(tensors, dividends, divisors, factors, strict=True):
            x.copy_(_sum_with_quotient(x, dividend, divisor, factor))
