"""What an ATen operation does to memory, read from its schema: which of its tensors hold newly computed numbers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from roundoff.simulate.collectives import brings_results, communicates

if TYPE_CHECKING:
    from torch._ops import OpOverload

_aten = torch.ops.aten

# Their results hold no numbers yet, or exact zeros.
_NOTHING_TO_ROUND = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty, _aten.new_empty_strided,
    _aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.zero, _aten.zero_, _aten._foreach_zero_,
    _aten.resize_, _aten.resize_as_, _aten.set_,
}  # fmt: skip

# These write into arguments (positions) that their schema does not mark as written: the running statistics.
_UNMARKED_WRITES = {
    _aten.native_batch_norm: (3, 4),
    _aten.cudnn_batch_norm: (3, 4),
    _aten.miopen_batch_norm: (3, 4),
}


# They move or select values, or change signs: of values of the format they make values of the format.
MOVES = frozenset(
    [
        "abs", "alias_copy", "amax", "amin", "as_strided_copy", "as_strided_scatter", "cat", "clone",
        "constant_pad_nd", "copy", "copysign", "cummax", "cummin", "detach_copy", "diagonal_copy",
        "diagonal_scatter", "embedding", "expand_copy", "fill", "flip", "fmax", "fmin", "gather", "index",
        "index_copy", "index_put", "index_select", "isin", "kthvalue", "linalg_diagonal", "masked_fill",
        "masked_scatter", "masked_select", "max", "max_pool2d_with_indices", "max_pool3d_with_indices",
        "max_unpool2d", "max_unpool3d", "maximum", "median", "min", "minimum", "mode", "nanmedian", "neg",
        "permute_copy", "pixel_shuffle", "pixel_unshuffle", "put", "reflection_pad1d", "reflection_pad2d",
        "reflection_pad3d", "relu", "repeat", "repeat_interleave", "replication_pad1d", "replication_pad2d",
        "replication_pad3d", "roll", "rot90", "scatter", "select_copy", "select_scatter", "sgn", "sign",
        "slice_copy", "slice_scatter", "sort", "split_copy", "split_with_sizes_copy", "squeeze_copy", "stack",
        "t_copy", "take", "threshold", "threshold_backward", "topk", "transpose_copy", "tril", "triu",
        "unfold_copy", "unsqueeze_copy", "view_copy", "where",
    ]
)  # fmt: skip

# They compute what the carrier has, or make numbers; rounding them is the only rounding.
_CARRIER_NUMBERS = frozenset(
    [
        "bernoulli", "ceil", "clamp", "clamp_max", "clamp_min", "exponential", "eye", "floor", "fmod", "frac", "frexp",
        "full", "full_like", "hardtanh", "heaviside", "nan_to_num", "new_full", "new_ones", "nextafter", "normal",
        "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
        "round", "scalar_tensor", "trunc", "uniform",
    ]
)  # fmt: skip


def is_exact_in_carrier(name: str) -> bool:
    """Whether the kernel of the operation of this name has nothing to round."""
    return name.removeprefix("_foreach_").removesuffix("_") in _CARRIER_NUMBERS


def is_move(name: str) -> bool:
    """Whether the operation of this name computes nothing: its results are among its operands, or zero, up to signs."""
    return name.removeprefix("_foreach_").removesuffix("_") in MOVES


class Treatment(NamedTuple):
    """Where an operation leaves newly computed numbers."""

    results: bool
    """Its results are new memory (at least one of them)."""
    viewing: tuple[bool, ...]
    """For each result in turn: it shares memory with an argument, so it is not rounded as a result."""
    written: tuple[tuple[int, str], ...]
    """Arguments that are overwritten (in-place, ``out=``): position and name."""
    lifts: bool
    """It hands over a tensor made from Python or numpy data."""


@cache
def treatment(operation: OpOverload) -> Treatment:
    """How the results of ``operation`` are to be rounded."""
    schema = operation._schema  # noqa: SLF001  the only access there is
    packet = operation.overloadpacket
    if packet in (_aten.lift_fresh, _aten.lift):
        return Treatment(results=False, viewing=(True,), written=(), lifts=True)
    if packet in _NOTHING_TO_ROUND or (communicates(operation) and not brings_results(operation)):
        return Treatment(results=False, viewing=(), written=(), lifts=False)
    viewing = tuple(value.alias_info is not None for value in schema.returns)
    written = [
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    written += [(position, schema.arguments[position].name) for position in _UNMARKED_WRITES.get(packet, ())]
    return Treatment(results=not all(viewing), viewing=viewing, written=tuple(written), lifts=False)
