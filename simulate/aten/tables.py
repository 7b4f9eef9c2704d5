"""Tables of ATen operations by name: contractions, layers, moves and views.

Names are names of operations without overload. Formulas and handlers of operations are next to their functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache

import torch

_aten = torch.ops.aten

CONTRACTIONS = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "linear_backward", "matmul",
    "matmul_backward", "_addmm_activation", "*grouped_mm*", "_scaled_mm*", "_trilinear", "convolution",
    "convolution_backward", "convolution_overrideable", "convolution_backward_overrideable", "*deform_conv2d*",
    "*scaled_dot_product*", "_flash_attention_*", "_efficient_attention_*", "flex_attention*", "mkldnn_rnn_layer*",
    "_cudnn_rnn*", "miopen_rnn*", "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
)  # fmt: skip
"""Matrix products and convolutions, and kernels made of them: hardware has low-precision units for these."""

OTHER_PRODUCTS = (
    "*mm", "*mm_*", "*matmul*", "*convolution*", "*conv_depthwise*", "conv_depthwise*", "*slow_conv*", "conv_tbc",
    "*linear", "*linear_backward*", "*linear_combination", "*attention*", "*lstm*", "*gru*", "*affine_grid_generator*",
    "_euclidean_dist",
)  # fmt: skip
"""Products other than :data:`CONTRACTIONS`: of sparse or packed matrices, or of one device. New ones have such names.

No rule rounds their operands, and no accumulator reaches their sums.
"""

_WITHOUT_PRODUCTS = ("_int_mm", "_thnn_fused_*")  # The fused cells of GRU and LSTM get products.
"""Operations of such names that multiply integers, or that receive products from other operations."""

LAYERS = (
    *CONTRACTIONS, "native_layer_norm*", "native_group_norm*", "native_batch_norm*", "_native_batch_norm*",
    "_softmax*", "_log_softmax*", "embedding*", "*pool*",  # Patterns also match the backward operations.
)  # fmt: skip
"""Operations that end a layer, and their backward operations: storage policies round their results."""

FUSED_CONTRACTIONS = ("scaled_dot_product", "_addmm_activation")
"""Parts of the names of kernels that contract and do more inside; a rounded accumulator must decompose them."""

LAYER_KERNELS = (
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
)  # fmt: skip
"""Kernels that run a whole layer, with products and steps of time inside.

They are decomposed into the operations of the layer without its kernel: a recurrent layer's cells called in a loop,
attention in training mode.
"""

PARTS_OF_LAYERS = (
    "add", "addmm", "bmm", "baddbmm", "gelu", "mm", "mul", "native_layer_norm", "relu", "sigmoid", "_softmax", "tanh",
    "_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
"""The parts of layer kernels."""

MOVES = frozenset(
    [
        "abs", "alias_copy", "amax", "amin", "as_strided_copy", "as_strided_scatter", "cat", "clone",
        "constant_pad_nd", "copy", "copysign", "cummax", "cummin", "detach_copy", "diagonal_copy",
        "diagonal_scatter", "embedding", "expand_copy", "fill", "fill_diagonal", "flip", "fmax", "fmin", "gather",
        "index", "index_copy", "index_fill", "index_put", "index_select", "kthvalue", "linalg_diagonal",
        "masked_fill", "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
        "max_pool3d_with_indices", "max_unpool2d", "max_unpool3d", "maximum", "median", "min", "minimum", "mode",
        "nanmedian", "neg", "permute_copy", "pixel_shuffle", "pixel_unshuffle", "put", "reflection_pad1d",
        "reflection_pad2d", "reflection_pad3d", "relu", "repeat", "repeat_interleave", "replication_pad1d",
        "replication_pad2d", "replication_pad3d", "roll", "rot90", "scatter", "select_copy", "select_scatter",
        "slice_copy", "slice_scatter", "sort", "split_copy", "split_with_sizes_copy", "squeeze_copy", "stack",
        "t_copy", "take", "threshold", "threshold_backward", "topk", "transpose_copy", "tril", "triu",
        "unfold_copy", "unsqueeze_copy", "view_copy", "where",
    ]
)  # fmt: skip
"""Operations, without leading ``_foreach_`` and trailing ``_``, with calls that can be exact moves."""

SIGNED = frozenset(["abs", "copysign", "neg"])
"""Moves that change signs."""

OF_THE_CARRIER = frozenset(
    [
        "bernoulli", "ceil", "clamp", "clamp_max", "clamp_min", "exponential", "eye", "floor", "fmod", "frac", "frexp",
        "full", "full_like", "hardtanh", "heaviside", "nan_to_num", "new_full", "new_ones", "nextafter", "normal",
        "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
        "round", "scalar_tensor", "sgn", "sign", "trunc", "uniform",
    ]
)  # fmt: skip
"""Operations that compute numbers which the carrier has, or make numbers: there is nothing to round to it."""

VIEWS = frozenset(
    ["view", "expand", "permute", "transpose", "slice", "select", "unsqueeze", "squeeze", "split", "split_with_sizes",
     "unbind", "reshape", "_unsafe_view", "t", "as_strided", "alias", "getitem"]
)  # fmt: skip
"""Operations of functional graphs with results among the values of their operands."""

UNMARKED_VIEWS = frozenset(
    {_aten._unsafe_view, _aten.unsafe_split, _aten.unsafe_split_with_sizes, _aten.unsafe_chunk}  # noqa: SLF001  its name
)
"""Operations with results in the memory of an argument, which their schema does not declare."""

POINTWISE = frozenset(
    [
        "_to_copy", "abs", "add", "addcdiv", "addcmul", "bitwise_and", "bitwise_left_shift", "bitwise_not",
        "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clone",
        "convert_element_type", "div", "eq", "exp", "floor", "full_like", "ge", "gt", "hypot", "isfinite", "isinf",
        "isnan", "le", "log", "log1p", "logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul",
        "ne", "neg", "pow", "reciprocal", "relu", "rsub", "sigmoid", "sign", "signbit", "sqrt", "sub", "tanh",
        "tanh_backward", "where", "zeros_like", "ones_like",
    ]
)  # fmt: skip
"""Operations that compute each element of a result from the elements at its place."""

ADDING = frozenset({"add", "sub", "addcmul", "addcdiv", "lerp"})  # lerp adds weight (end - start).
"""Operations that add something to their first operand, without leading ``_foreach_`` and trailing ``_``."""

ZEROING = {_aten.zero_, _aten._foreach_zero_}
"""Operations that overwrite with zeros."""

EMPTY = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty, _aten.new_empty_strided,
}  # fmt: skip
"""Operations with results that do not hold values yet."""

WITHOUT_NUMBERS = EMPTY | ZEROING | {
    _aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.zero, _aten.resize_, _aten.resize_as_, _aten.set_,
}  # fmt: skip
"""Operations with results that do not hold values yet, or hold exact zeros."""

BLANK = WITHOUT_NUMBERS | {_aten.ones, _aten.ones_like, _aten.new_ones}
"""Operations that make memory for a program to fill, such as a buffer that NumPy writes inputs to."""

# running_mean and running_var.
UNMARKED_WRITES = {_aten.native_batch_norm: (3, 4), _aten.cudnn_batch_norm: (3, 4), _aten.miopen_batch_norm: (3, 4)}
"""Operations that write into arguments (positions) which their schema does not mark as written: running statistics."""

PARTLY_WRITTEN = {_aten._ctc_loss: (1,), _aten._cudnn_ctc_loss: (1,)}  # noqa: SLF001  their only names
"""Results (positions) that a kernel writes in part, for its derivative: of CTC, logarithms of sums over paths.

Elements after the end of a sequence are not written. A shared scale would depend on the old content of the memory.
"""


def plain_name(name: str) -> str:
    """The name of an operation whether or not it works in place, or on lists."""
    return name.removeprefix("_foreach_").removesuffix("_")  # _foreach_add_ is add.


@cache
def is_contraction(name: str) -> bool:
    """Whether the operation of this name is a matrix product or a convolution, or made of some."""
    return _is_among(name, CONTRACTIONS)


@cache
def is_other_product(name: str) -> bool:
    """Whether the operation of this name multiplies and adds up, and is not known as a contraction."""
    return _is_among(name, OTHER_PRODUCTS) and not (is_contraction(name) or _is_among(name, _WITHOUT_PRODUCTS))


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(plain_name(name), pattern) for pattern in patterns)  # Case matters on every system.
