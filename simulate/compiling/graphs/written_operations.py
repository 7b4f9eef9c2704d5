"""The operations that the compiler writes into its loops; others call PyTorch's kernels, so that all bits are the same.

On the CPU the list has operations with only one possible result, wherever their operands are in memory: moves,
comparisons, single roundings of IEEE 754, and products that are added at once. Each is compared with its kernel by
``tests/simulate/compiling``. Not on the list are, apart from sums and products of matrices:

- functions such as ``sigmoid``, ``log1p``, ``hypot`` and ``remainder``: kernels compute them by one library where
  elements are contiguous in memory, and by another elsewhere, and inductor's loops choose by different rules;
- maxima and minima, but for numbers that are never -0, such as absolute values: which of +0 and -0 comes out depends on
  their order in memory, and so does where the largest of equal numbers is found;
- integers made from floats, which integers may not have.

On CUDA, where inductor writes Triton, the list has operations with only one possible result; reasons follow the names.
Whatever is on no list calls its kernel. On CUDA that is, among others:

======================================================  ================================================================
operations                                              why their kernel is called
======================================================  ================================================================
``exp``, ``log``, ``tanh``, ``sigmoid``, ``pow``, ...   libraries of functions differ in the last bit
``addcmul``, ``addcdiv``, ``lerp``, ``tanh_backward``,  whether nvcc has fused a product with a sum is not in the source
``add`` and ``sub`` with ``alpha``
sums, means, products of matrices, convolutions         the order of the sum
``maximum``, ``minimum``, ``clamp``, ``relu``,          which of +0 and -0 is the larger, the kernels' language does not
``amax``, ``amin``, ``argmax``, ...                     say
``div`` by a Python number, or one on the CPU           the kernel multiplies with the reciprocal
``remainder``, ``div`` with ``rounding_mode``           several roundings
float to integer                                        numbers that the integers do not have
float16, bfloat16, float8; complex numbers              kernels compute in wider types
float64 ``sqrt``                                        Triton lacks a correctly rounded one
random numbers                                          are drawn before the program runs (:mod:`.chance`)
======================================================  ================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from ...aten.tables import VIEWS

STRUCTURAL = frozenset(
    [
        "_to_copy", "clamp", "empty_like", "expand_as", "fill", "full", "full_like", "isfinite",
        "lift_fresh", "masked_fill", "nan_to_num", "new_empty", "new_full", "new_ones", "new_zeros",
        "ones_like", "select_backward", "slice_backward", "split", "square", "stack", "t",
        "threshold_backward", "transpose", "unbind", "unsafe_split", "zero", "zeros_like",
    ]
)  # fmt: skip
"""Operations that are replaced by others: they select elements, or make constants."""

STRUCTURAL_ON_CUDA = STRUCTURAL - {"clamp"}
"""The structural operations except ``clamp``: the operations that replace it may choose another zero."""

WRITTEN_ON_CPU = frozenset(
    [
        "_to_copy", "_unsafe_view", "abs", "add", "addcdiv", "addcmul", "alias", "amax", "amin", "arange", "as_strided",
        "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cat",
        "ceil", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "convert_element_type", "copy", "copy_",
        "diagonal", "div", "empty", "eq", "expand", "fill", "flip", "floor", "full", "full_like", "gather",
        "ge", "getitem", "gt", "index", "index_select", "isfinite", "isinf", "isnan", "le", "lift_fresh_copy",
        "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul",
        "nan_to_num", "ne", "neg", "new_zeros", "ones_like", "permute", "reciprocal", "relu", "repeat",
        "roundoff::round_float", "roundoff::sqrt", "rsub", "scalar_tensor", "scatter", "select",
        "select_scatter", "sign", "signbit", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze",
        "sub", "t", "tanh_backward", "transpose", "unbind", "unsqueeze", "view", "where", "zeros", "zeros_like",
    ]
)  # fmt: skip
"""Operations with compiled loops that give the bits of the CPU's kernels."""

_MOVES = frozenset(
    [
        "_unsafe_view", "alias", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "copy_", "diagonal",
        "empty", "expand", "fill", "flip", "full", "full_like", "gather", "index", "index_select", "lift_fresh_copy",
        "masked_fill", "new_zeros", "ones_like", "permute", "repeat", "scalar_tensor", "scatter", "select",
        "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
        "unsqueeze", "view", "where", "zeros", "zeros_like",
    ]
)  # fmt: skip
_COMPARISONS = frozenset(["eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "lt", "ne", "sign"])
_OF_BITS = frozenset(["logical_and", "logical_not", "logical_or", "roundoff::round_float"])
_ROUNDED_ONCE = frozenset(
    [
        "_to_copy", "abs", "add", "ceil", "convert_element_type", "div", "floor", "mul", "neg", "reciprocal",
        "roundoff::sqrt", "rsub", "sqrt", "sub",
    ]
)  # fmt: skip

WRITTEN_ON_CUDA = _MOVES | _COMPARISONS | _OF_BITS | _ROUNDED_ONCE
"""Operations with results that move numbers, compare them, are made of their bits, or are one IEEE 754 rounding.

The last are written without contraction (``fma``), without flushing subnormals to zero and with ``div_rn`` and
``sqrt_rn`` (:mod:`.exact_lowerings`), and nvcc compiles PyTorch's kernels so by default.
"""

_CARRIERS = {torch.float32, torch.float64}


def is_written(node: Node) -> bool:
    """Whether inductor may write an operation of a graph itself, if it can, with the bits of PyTorch's kernel."""
    tensors = [x for value in (node, *node.all_input_nodes) for x in _values_of(value)]
    devices = {x.device.type for x in tensors}
    name = name_of(node)
    # Where it runs, whether rounding takes part, whether the list has it, and whether this call is allowed
    if devices != {"cuda"} and not devices <= {"cpu"}:  # such as a number of the CPU with a tensor of CUDA
        return False
    inexact = {x.dtype for x in tensors if x.dtype.is_floating_point or x.dtype.is_complex}
    if not inexact:  # integers and booleans have only one possible result
        return True
    on_cuda = devices == {"cuda"}
    if name not in (WRITTEN_ON_CUDA if on_cuda else WRITTEN_ON_CPU) or (on_cuda and not inexact <= _CARRIERS):
        return False
    allowed = (_ONLY_ON_CUDA if on_cuda else _ONLY_ON_CPU).get(name)
    return allowed is None or allowed(node)


def name_of(node: Node) -> str:
    """The name of an operation without its overload; of this package's, with its namespace."""
    target: Any = node.target
    name = str(target.overloadpacket.__name__)
    return f"roundoff::{name}" if target.namespace == "roundoff" else name


def _values_of(node: Node) -> Iterator[torch.Tensor]:
    """The tensors without values that tracing left for the results of a node."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return (x for x in values if isinstance(x, torch.Tensor))


def _fused_elementwise(node: Node) -> bool:
    """Whether a kernel multiplies and adds at once: each operand has an element for every result.

    Where an element is broadcast, kernels multiply the common factors beforehand.
    """
    shape = next(_values_of(node)).shape
    operands = [x for source in node.all_input_nodes for x in _values_of(source)]
    # Strides of 0 show operands that were expanded before.
    repeats = any(step == 0 and n > 1 for x in operands for n, step in zip(x.shape, x.stride(), strict=True))
    all_tensors = all(isinstance(x, Node) for x in node.args)
    return all_tensors and not repeats and all(x.shape == shape for x in operands)


def _added_once(node: Node) -> bool:
    """Whether an addition is one rounding: unscaled, or fused as in the kernel."""
    return _unscaled(node) or _fused_elementwise(node)


def _never_minus_zero(node: Node) -> bool:
    """Whether no element of an operand can be -0."""
    return all(_is_never_minus_zero(x) for x in node.all_input_nodes)


def _is_never_minus_zero(node: Node) -> bool:
    if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
        return False
    name = name_of(node)
    # Nonnegative results, and operations on them that keep them so.
    return name in ("abs", "exp") or (name in VIEWS | _KEEPING_SIGNS and _is_never_minus_zero(node.all_input_nodes[0]))


def _without_mode(node: Node) -> bool:
    """Quotients are not truncated, and scattered values are not added up."""
    return not node.kwargs and not any(isinstance(x, str) for x in node.args)  # rounding_mode, reduce


def _bound_by_number(node: Node) -> bool:
    bound = node.args[1]  # by a NaN, kernels and loops may differ
    return isinstance(bound, (int, float)) and not math.isnan(bound)


def _unscaled(node: Node) -> bool:
    """Whether an addition has no factor ``alpha``."""
    return not node.args[2:] and bool(node.kwargs.get("alpha", 1) == 1)


def _quotient_of_tensors(node: Node) -> bool:
    """Whether the divisor is a tensor, and nothing is truncated."""
    return not node.kwargs and all(isinstance(x, Node) and _is_floating(x) for x in node.args)


def _of_floats(node: Node) -> bool:
    return all(_is_floating(x) for x in node.all_input_nodes)


def _in_single_precision(node: Node) -> bool:
    return all(x.dtype is torch.float32 for value in (node, *node.all_input_nodes) for x in _values_of(value))


def _not_to_integers(node: Node) -> bool:
    to_bool = all(x.dtype is torch.bool for x in _values_of(node))
    return to_bool or _is_floating(node) or not any(_is_floating(x) for x in node.all_input_nodes)


def _to_no_floats(node: Node) -> bool:
    return not _is_floating(node)


def _is_floating(node: Node) -> bool:
    return any(x.dtype.is_floating_point for x in _values_of(node))


_KEEPING_SIGNS = {"amax", "amin", "clone", "roundoff::round_float", "_to_copy"}  # nonnegative values stay nonnegative

_ONLY_ON_CPU: dict[str, Callable[[Node], bool]] = {
    "add": _added_once, "sub": _added_once, "rsub": _added_once, "addcdiv": _fused_elementwise,
    "addcmul": _fused_elementwise, "tanh_backward": _fused_elementwise, "clamp_max": _bound_by_number,
    "clamp_min": _bound_by_number, "_to_copy": _not_to_integers, "convert_element_type": _not_to_integers,
    "copy": _not_to_integers, "amax": _never_minus_zero, "amin": _never_minus_zero, "maximum": _never_minus_zero,
    "minimum": _never_minus_zero, "div": _without_mode, "scatter": _without_mode, "arange": _to_no_floats,
}  # fmt: skip
"""Operations with only some calls written on the CPU."""

_ONLY_ON_CUDA: dict[str, Callable[[Node], bool]] = {
    "add": _unscaled, "sub": _unscaled, "rsub": _unscaled, "div": _quotient_of_tensors, "reciprocal": _of_floats,
    "sqrt": _in_single_precision, "roundoff::sqrt": _in_single_precision, "arange": _to_no_floats,
    "_to_copy": _not_to_integers, "convert_element_type": _not_to_integers, "copy": _not_to_integers,
    "copy_": _not_to_integers,
}  # fmt: skip
"""Operations with only some calls written on CUDA."""
