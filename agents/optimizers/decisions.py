"""Numbers that decide (steps, scales, whether a step is taken), kept in tensors: for eager updates and programs alike.

Decisions are made by ``torch.where``, which needs no number from a device, and so can be traced. Where a number is in
the processor's own memory, reading it costs nothing: there the kernels get it as a number, and computations that a
decision makes superfluous are skipped. The bits are the same.
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
# These are computed in full precision; the operation around them is rounded.
_product, _minus, _stacked = unsimulated(torch.mul), unsimulated(torch.neg), unsimulated(torch.stack)
_sum_with_quotient = unsimulated(lambda x, dividend, divisor, factor: x + dividend.to(factor.dtype) * factor / divisor)


@unsimulated
def number_tensor(value: Any, device: torch.device) -> Tensor:
    """Numbers in a tensor: an integer as int64, others as float64, unrounded whatever is simulated.

    Nothing waits for the device: a single number is filled in there, several are copied without waiting.
    """
    dtype = torch.int64 if isinstance(value, int) else torch.float64
    if isinstance(value, (int, float)):
        return torch.full((), value, dtype=dtype, device=device)
    return torch.tensor(value, dtype=dtype, device="cpu").to(device, non_blocking=True)


def is_readable(x: Tensor) -> bool:
    """Whether the numbers of ``x`` can be read without waiting: not in a traced program, nor on another device."""
    return x.is_cpu and not is_traced()


@unsimulated
def number_or_tensor(x: Tensor, dtype: torch.dtype) -> Any:
    """A kept number for arithmetic with tensors of ``dtype``: a Python number if it is readable, else a tensor.

    A tensor has ``dtype``, or float32 if that is a half precision, like Python numbers in kernels.
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
    """The largest absolute value, as float64; NaN if there is one, and 0 if there is nothing."""
    largest: Tensor = _largest(x) if x.numel() else number_tensor(0.0, x.device)
    return largest


@unsimulated
def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each."""
    return [x.clone() for x in tensors]


@unsimulated
def copy_(tensor: Tensor, other: Tensor) -> Tensor:
    """``tensor.copy_(other)``, of numbers that the arithmetic around it may not have."""
    return tensor.copy_(other)


@unsimulated
def choose_(condition: Tensor, tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Copies to every tensor from its counterpart, if the condition is true."""
    for x, other in zip(tensors, others, strict=True):
        x.copy_(torch.where(condition, other, x))


def with_number(
    operation: Callable[..., Tensor], x: Tensor, number: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """``operation(x, number)``, like ``x``, with a number that is not rounded to its type: as if it were in Python."""
    if not _fits(x, number):
        result = operation(x.to(number.dtype), number)  # type: ignore[union-attr]
        return result.to(x.dtype) if out is None else out.copy_(result)
    return operation(x, number) if out is None else operation(x, number, out=out)


def multiply_(x: Tensor, number: float | Tensor) -> Tensor:
    """Multiplies ``x`` by a number; returns it."""
    return x.mul_(number) if _fits(x, number) else x.copy_(with_number(torch.mul, x, number))


def add_number_(tensors: list[Tensor], number: Any) -> None:
    """Adds a number to each."""
    if not isinstance(number, torch.Tensor):
        _foreach_add_(tensors, number)
        return
    for x in tensors:
        x.add_(number) if _fits(x, number) else x.copy_(with_number(torch.add, x, number))


def _fits(x: Tensor, number: float | Tensor) -> bool:
    return not isinstance(number, torch.Tensor) or number.dtype == x.dtype


def filled_like(x: Tensor, value: float | Tensor) -> Tensor:
    """A tensor like ``x``, every element ``value``."""
    if isinstance(value, torch.Tensor):
        return value.to(x.dtype).expand(x.shape).clone()
    return torch.full_like(x, value)


def add_product(x: Tensor, a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """``x + factor * a * b``, as one operation."""
    if not isinstance(factor, torch.Tensor):
        return torch.addcmul(x, a, b, value=factor)
    if is_exact(_aten._foreach_addcmul.Tensor):  # noqa: SLF001  which takes its factors in a tensor
        return torch._foreach_addcmul([x], [a], [b], factor.view(1))[0]  # noqa: SLF001  it has no other name
    return torch.addcmul(x, _product(a, factor), b)  # as the kernel multiplies first


def subtract_product(x: Tensor, a: Tensor, factor: float | Tensor) -> Tensor:
    """``x - factor * a``, as one operation."""
    if not isinstance(factor, torch.Tensor):
        return torch.sub(x, a, alpha=factor)
    return with_number(lambda wide, number: torch.addcmul(wide, a.to(wide.dtype), _minus(number)), x, factor)


def add_quotients_(
    tensors: list[Tensor], dividends: list[Tensor], divisors: list[Tensor], factors: Sequence[Any]
) -> None:
    """Adds factor * dividend / divisor to each, as one operation."""
    if not any(isinstance(factor, torch.Tensor) for factor in factors):
        _foreach_addcdiv_(tensors, dividends, divisors, factors)
    elif is_exact(_aten._foreach_addcdiv_.Tensor):
        _foreach_addcdiv_(tensors, dividends, divisors, _stacked(list(factors)))
    else:
        for x, dividend, divisor, factor in zip(tensors, dividends, divisors, factors, strict=True):
            x.copy_(_sum_with_quotient(x, dividend, divisor, factor))
