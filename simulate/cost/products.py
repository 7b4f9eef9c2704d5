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
# The formulas count multiplications and additions apart: two for each multiply-accumulate, hence the divisions by 2.
_formulas: dict[Any, Callable[..., int]] = flop_counter.flop_registry


class CountedProduct(NamedTuple):
    """A product that an operation computes."""

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

_PRODUCT_PATTERNS = (
    "*linalg*", "*cholesky*", "*cdist*", "*pdist*", "_fft_*", "*_solve*", "*rnn*", "*lstm*", "*gru*", "ormqr", "geqrf",
    "*grouped_mm*", "_weight_int*", "_embedding_bag_per_sample_weights_backward", "_linear_cross_entropy*",
)  # fmt: skip
"""Patterns of other operations that compute products; those without a formula are reported as uncounted."""

_WITHOUT_PRODUCTS = frozenset({"linalg_vector_norm", "_linalg_check_errors"})
"""Operations that match such a pattern but compute no products of tensors."""

_NAMESPACES = frozenset({"aten", "prim", "prims", "roundoff", "c10d", "_c10d_functional", "profiler", "inductor"})
"""Namespaces of operations that compute no products, unless they have a formula or match a pattern."""


def products_in(
    operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[CountedProduct, ...] | None:
    """Lists the products that a call of an operation computes.

    Args:
        operation: an ATen operation, or a custom one.
        args: its arguments; only their shapes are used.
        kwargs: its arguments by name.
        result: its return value.

    Returns:
        One entry for each product, empty for an operation without products; None for products without a formula.
        ``torch.utils.flop_counter.register_flop_formula`` gives a custom operation a formula.
    """
    if not may_multiply(operation):
        return ()
    name = plain_name(operation.overloadpacket.__name__)
    named = dict(zip(argument_names(operation), args, strict=False)) | dict(kwargs)
    try:
        return _count_products(operation, name, named, args, kwargs, result)
    except (AssertionError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None  # the formula does not apply to these shapes


@cache
def may_multiply(operation: OpOverload) -> bool:
    """Whether an operation has a formula of products, or may need one."""
    name = plain_name(operation.overloadpacket.__name__)
    return name not in _WITHOUT_PRODUCTS and (
        operation.overloadpacket in _formulas
        or name in _OPERANDS
        or is_contraction(name)
        or any(fnmatchcase(name, pattern) for pattern in _PRODUCT_PATTERNS)
        or operation.namespace not in _NAMESPACES
    )


def _count_products(
    operation: OpOverload, name: str, named: dict[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[CountedProduct, ...] | None:
    if name.startswith("convolution_backward"):
        return _count_convolution_backward(named, result)
    if name in ("convolution", "_convolution", "convolution_overrideable"):
        formula = _formulas[_aten.convolution]
        shapes = (named["input"], named["weight"], None, None, None, None, bool(named["transposed"]))
        return (CountedProduct("", ("input", "weight"), formula(*shapes, out_val=result) // 2),)
    if "attention" in name:
        return _count_attention(name, named)
    if name in _OPERANDS:
        operands = _OPERANDS[name]
        a, b = (named[operand] for operand in operands)
        return (CountedProduct("", operands, _count_matrix_macs(name, a.shape, b.shape)),)
    if operation.overloadpacket not in _formulas:
        return None
    formula = _formulas[operation.overloadpacket]
    # A custom operation: its first two tensors stand for the operands, or its only one for both.
    tensors = [key for key, value in named.items() if isinstance(value, torch.Tensor)]
    return (CountedProduct("", (tensors[0], tensors[:2][-1]), formula(*args, **kwargs, out_val=result) // 2),)


def _count_matrix_macs(name: str, a: Sequence[int], b: Sequence[int]) -> int:
    """Counts multiply-accumulates of products of matrices and vectors, reduced to the shapes of ``mm`` or ``bmm``."""
    if name == "linear":
        *rows, terms = a  # all leading axes are rows
        return _count_mm_macs((math.prod(rows), terms), (b[-1], b[0] if len(b) > 1 else 1))
    if name == "addr":
        return _count_mm_macs((a[0], 1), (1, b[0]))
    if name == "matmul":
        batch = math.prod(torch.broadcast_shapes(a[:-2], b[:-2]))  # type: ignore[no-untyped-call]
        left = (a[-2] if len(a) > 1 else 1, a[-1])  # a vector is a row on the left, and a column on the right
        right = (b[-2], b[-1]) if len(b) > 1 else (b[0], 1)
        return batch * _count_mm_macs(left, right)
    if len(a) == 3:
        return int(_formulas[_aten.bmm](tuple(a), tuple(b))) // 2
    return _count_mm_macs(a if len(a) == 2 else (1, a[0]), b if len(b) == 2 else (b[0], 1))


def _count_mm_macs(a: Sequence[int], b: Sequence[int]) -> int:
    return int(_formulas[_aten.mm](tuple(a), tuple(b))) // 2


def _count_convolution_backward(named: Mapping[str, Any], result: Any) -> tuple[CountedProduct, ...]:
    """Counts both products of a convolution's backward operation, by PyTorch's formula for each.

    For the gradient of the weight that formula ignores groups and pairs all channels, hence the division.
    """
    formula = _formulas[_aten.convolution_backward]
    shapes = (named["grad_output"], named["input"], named["weight"], None, None, None, None, bool(named["transposed"]))
    outputs = (
        (0, Product.GRAD_INPUT, ("grad_output", "weight"), 1),
        (1, Product.GRAD_WEIGHT, ("grad_output", "input"), int(named["groups"])),
    )
    products = []
    for index, product, operands, groups in outputs:
        if named["output_mask"][index]:
            mask = [index == 0, index == 1, False]  # only this product
            flops = formula(*shapes, None, None, mask, out_val=list(result))
            products.append(CountedProduct(product.value, operands, flops // 2 // groups))
    return tuple(products)


def _count_attention(name: str, named: Mapping[str, Any]) -> tuple[CountedProduct, ...] | None:
    """Counts the products of attention by PyTorch's formula, as one product of two operands; masks are ignored.

    The operands are query and key, in the backward operation gradient and query.
    """
    if "scaled_dot_product" not in name:
        return None
    q, k, v = (tuple(named[part].shape) for part in ("query", "key", "value"))
    if name.endswith("_backward"):
        gradient = next(part for part in ("grad_out", "grad_out_", "grad") if part in named)
        shapes = (tuple(named[gradient].shape), q, k, v)
        return (CountedProduct("", (gradient, "query"), _count_macs(flop_counter.sdpa_backward_flop_count, *shapes)),)
    return (CountedProduct("", ("query", "key"), _count_macs(flop_counter.sdpa_flop_count, q, k, v)),)


def _count_macs(formula: Callable[..., Any], *shapes: Sequence[int]) -> int:
    """Counts multiply-accumulates by a formula that counts multiplications and additions separately."""
    return int(formula(*shapes)) // 2
