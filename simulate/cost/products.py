"""Multiply-accumulates of an operation's products, from the shapes of its arguments, by PyTorch's own formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils import flop_counter

from ..aten.schemas import argument_names
from ..aten.tables import is_contraction, plain_name
from ..policy.rules import Product

_aten = torch.ops.aten
_registry: dict[Any, Callable[..., int]] = flop_counter.flop_registry


class CountedProduct(NamedTuple):
    """One product that an operation computes."""

    product: str
    """``grad-input`` or ``grad-weight`` in the backward operation of a layer; else empty."""
    operands: tuple[str, str]
    """The arguments that are multiplied."""
    macs: int
    """Multiply-accumulates: a multiplication and an addition each."""


_OPERANDS = {
    "mm": ("self", "mat2"), "_int_mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"),
    "_addmm_activation": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addbmm": ("batch1", "batch2"),
    "_scaled_mm": ("self", "mat2"), "mv": ("self", "vec"), "addmv": ("mat", "vec"), "addr": ("vec1", "vec2"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"), "linear": ("input", "weight"), "matmul": ("self", "other"),
}  # fmt: skip
"""Operands of matrix products, by the operation's name without trailing ``_``."""

_SELDOM = (
    "*linalg*", "*cholesky*", "*cdist*", "*pdist*", "_fft_*", "*_solve*", "*rnn*", "*lstm*", "*gru*", "ormqr", "geqrf",
    "*grouped_mm*", "_weight_int*", "_embedding_bag_per_sample_weights_backward", "_linear_cross_entropy*",
)  # fmt: skip
"""Other operations that compute products inside: what is not named with a formula is named without one."""

_NONE = frozenset({"linalg_vector_norm", "_linalg_check_errors"})
"""Operations that such a pattern names, and that compute no products of tensors."""

_NAMESPACES = frozenset({"aten", "prim", "prims", "roundoff", "c10d", "_c10d_functional", "profiler", "inductor"})
"""Libraries of operations that compute no products, if they have no formula and no such name."""


def products_in(
    operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[CountedProduct, ...] | None:
    """The products that a call of an operation computes.

    Args:
        operation: an ATen operation, or a custom one.
        args: its arguments; only shapes are looked at.
        kwargs: its arguments by name.
        result: its return value.

    Returns:
        One entry for each product, none for an operation that computes none; None where it may compute products
        without a formula for them. ``torch.utils.flop_counter.register_flop_formula`` gives a custom operation a
        formula.
    """
    name = plain_name(operation.overloadpacket.__name__)
    if not may_multiply(operation):
        return ()
    given = dict(zip(argument_names(operation), args, strict=False)) | dict(kwargs)
    try:
        return _counted(operation, name, given, args, kwargs, result)
    except (AssertionError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None  # these shapes are not those that the formula is for


@cache
def may_multiply(operation: OpOverload) -> bool:
    """Whether an operation has a formula of products, or may need one."""
    name = plain_name(operation.overloadpacket.__name__)
    return name not in _NONE and (
        operation.overloadpacket in _registry
        or name in _OPERANDS
        or is_contraction(name)
        or any(fnmatchcase(name, pattern) for pattern in _SELDOM)
        or operation.namespace not in _NAMESPACES
    )


def _counted(
    operation: OpOverload, name: str, given: dict[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[CountedProduct, ...] | None:
    if name.startswith("convolution_backward"):
        return _of_convolution_backward(given, result)
    if name in ("convolution", "_convolution", "convolution_overrideable"):
        formula = _registry[_aten.convolution]
        shapes = (given["input"], given["weight"], None, None, None, None, bool(given["transposed"]))
        return (CountedProduct("", ("input", "weight"), formula(*shapes, out_val=result) // 2),)
    if "attention" in name:
        return _of_attention(name, given)
    if name in _OPERANDS:
        operands = _OPERANDS[name]
        a, b = (given[operand] for operand in operands)
        return (CountedProduct("", operands, _of_matrices(name, a.shape, b.shape)),)
    if operation.overloadpacket not in _registry:
        return None
    formula = _registry[operation.overloadpacket]
    tensors = [key for key, value in given.items() if isinstance(value, torch.Tensor)]
    return (CountedProduct("", (tensors[0], tensors[:2][-1]), formula(*args, **kwargs, out_val=result) // 2),)


def _of_matrices(name: str, a: Sequence[int], b: Sequence[int]) -> int:
    """Multiply-accumulates of products of matrices and vectors, each brought to the shapes of ``mm`` or ``bmm``."""
    if name == "linear":
        *rows, terms = a
        return _matrix((math.prod(rows), terms), (b[-1], b[0] if len(b) > 1 else 1))
    if name == "addr":
        return _matrix((a[0], 1), (1, b[0]))
    if name == "matmul":
        batch = math.prod(torch.broadcast_shapes(a[:-2], b[:-2]))  # type: ignore[no-untyped-call]
        left = (a[-2] if len(a) > 1 else 1, a[-1])
        right = (b[-2], b[-1]) if len(b) > 1 else (b[0], 1)
        return batch * _matrix(left, right)
    if len(a) == 3:
        return int(_registry[_aten.bmm](tuple(a), tuple(b))) // 2
    return _matrix(a if len(a) == 2 else (1, a[0]), b if len(b) == 2 else (b[0], 1))


def _matrix(a: Sequence[int], b: Sequence[int]) -> int:
    return int(_registry[_aten.mm](tuple(a), tuple(b))) // 2


def _of_convolution_backward(given: Mapping[str, Any], result: Any) -> tuple[CountedProduct, ...]:
    """Both products of a convolution's backward operation, each by PyTorch's formula for that product.

    That formula pairs all channels in the gradient of the weight, also where these are in groups, hence the division.
    """
    formula = _registry[_aten.convolution_backward]
    shapes = (given["grad_output"], given["input"], given["weight"], None, None, None, None, bool(given["transposed"]))
    parts = (
        (0, Product.GRAD_INPUT, ("grad_output", "weight"), 1),
        (1, Product.GRAD_WEIGHT, ("grad_output", "input"), int(given["groups"])),
    )
    counted = []
    for place, product, operands, groups in parts:
        if given["output_mask"][place]:
            mask = [place == 0, place == 1, False]
            flops = formula(*shapes, None, None, mask, out_val=list(result))
            counted.append(CountedProduct(product.value, operands, flops // 2 // groups))
    return tuple(counted)


def _of_attention(name: str, given: Mapping[str, Any]) -> tuple[CountedProduct, ...] | None:
    """Attention on whole tensors: the number of products from PyTorch's formula, by the formats of two operands.

    These are query and key, and backward the gradient and the query. Masks make none of them fewer.
    """
    if "scaled_dot_product" not in name:
        return None
    q, k, v = (tuple(given[part].shape) for part in ("query", "key", "value"))
    if name.endswith("_backward"):
        gradient = next(part for part in ("grad_out", "grad_out_", "grad") if part in given)
        shapes = (tuple(given[gradient].shape), q, k, v)
        return (CountedProduct("", (gradient, "query"), _halved(flop_counter.sdpa_backward_flop_count, *shapes)),)
    return (CountedProduct("", ("query", "key"), _halved(flop_counter.sdpa_flop_count, q, k, v)),)


def _halved(formula: Callable[..., Any], *shapes: Sequence[int]) -> int:
    """Multiply-accumulates by a formula that counts multiplications and additions."""
    return int(formula(*shapes)) // 2
