"""Rounding blocks of neighbours that share a scale: the compiled loops for CPU, every mode and carrier.

See :mod:`.blocks_nearest`, which is faster and can only round float32 to nearest-even; here the shared
tail rounds. The scale of a block follows from its largest magnitude: a power of two, or NVFP4's scale. It is
(before, after, smallest, largest): numbers are divided or multiplied by ``before``, rounded to elements from the biased
exponent ``smallest`` (of the smallest normal element) to ``largest``, and multiplied by ``after``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy import float64, int64, uint32, uint64

from ...arithmetic.elements import Element
from ...arithmetic.tail import rule
from ...base.modes import Rounding, RoundingOptions
from ..addends import mode_of, run_in_mode
from ..addressed import Addressed, Calling, numbers
from ..arguments import Double, Int, Mode, Numbers, Real, Words
from ..bits import bits_of64, float_of64
from ..tail import to_element
from ..widths import BIAS, INFINITE, WIDTH, ByWidth, KernelPart, bits_of, float_of, left, real, specialised, unsigned
from .nests import STRIP, pieces, rows, strips
from .range_scales import magnitude_key

# In float32, blocks with numbers below 2^-40 are multiplied by 2^64 before rounding: the numbers that matter are then
# normal. Float64 has enough range.
LIFTS: Any = ByWidth(True, False)
_SMALL = (127 - 40) << 23
_LIFT = 64

# The scales of NVFP4 are E4M3 numbers, rounded to nearest-even.
_SCALE_EMIN, _SCALE_M, _SCALE_MAX = -6, 3, 448.0
_NEAREST: Any = ByWidth(
    *(tuple(word(part) for part in rule("nearest-even", width)) for word, width in ((uint32, 32), (uint64, 64)))
)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _power_of_two(exponent: Any) -> Any:
    return float_of64(uint64((exponent + 1023) << 52))


@njit(inline="always")  # type: ignore[untyped-decorator]
def power_scale(top: Any, addend: Any, emax: Any, emin: Any, largest: Any) -> Any:
    """The power-of-two scale for the largest magnitude ``top``; its first part multiplies.

    Args:
        top: a pattern; NaN and infinity give a scale that makes all numbers NaN.
        addend: added to the float64 pattern of ``top`` before its exponent is read.
        emax: exponent of the largest element.
        emin: exponent of the smallest normal element.
        largest: the largest element, float64.
    """
    exponent = ((int64(bits_of64(float64(float_of(top)))) + addend) >> 52) - 1023 - emax  # The addend may carry.
    exponent = max(int64(-127), min(int64(127), exponent))  # The range of E8M0.
    lift = int64(_LIFT) if LIFTS and top < unsigned(_SMALL) else int64(0)
    after = real(np.nan) if top >= INFINITE else real(_power_of_two(-lift))
    before = real(_power_of_two(lift))
    return before, after, unsigned(exponent + lift + emin + int64(BIAS)), real(largest * _power_of_two(exponent + lift))


@njit(inline="always")  # type: ignore[untyped-decorator]
def scale_in_tensor(top: Any, emin: Any, largest: Any, tensor_scale: Any) -> Any:
    """The scale of a block of NVFP4 for the largest magnitude ``top``; its first part divides.

    Args:
        top: a pattern; NaN and infinity give a scale that makes all numbers NaN.
        emin: exponent of the smallest normal element.
        largest: the largest element, float64.
        tensor_scale: the scale of the tensor.
    """
    ratio = float_of(top) / (real(largest) * tensor_scale)
    smallest, places, limit = unsigned(_SCALE_EMIN + int64(BIAS)), unsigned(_SCALE_M), real(_SCALE_MAX)
    after = to_element(bits_of(ratio), smallest, places, limit, unsigned(0), _NEAREST, uint32(0)) * tensor_scale
    before = real(1.0) if after == real(0.0) else after  # Zeros follow from the second factor.
    return before, after, unsigned(emin + int64(BIAS)), real(largest)


nest: Any = KernelPart()


@njit(inline="always")  # type: ignore[untyped-decorator]
def _power_scale(_low: Any, high: Any, _block: Any, fmt: Any) -> Any:
    addend, emax, emin, _, largest, _, _, _ = fmt
    before, after, smallest, most = power_scale(unsigned(high), addend, emax, emin, largest)
    return bits_of(before), bits_of(after), smallest, bits_of(most)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _in_tensor(_low: Any, high: Any, _block: Any, fmt: Any) -> Any:
    _, _, emin, _, largest, tensor_scale, _, _ = fmt
    before, after, smallest, most = scale_in_tensor(unsigned(high), emin, largest, tensor_scale)
    return bits_of(before), bits_of(after), smallest, bits_of(most)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _is_multiplied(shared: Any) -> Any:
    return float_of(shared[0]) == real(1.0) if LIFTS else True


@njit(inline="always")  # type: ignore[untyped-decorator]
def _is_divided(_shared: Any) -> Any:
    return False


@njit(inline="always")  # type: ignore[untyped-decorator]
def _multiplied(bits: Any, shared: Any) -> Any:
    return bits_of(float_of(bits) * float_of(shared[0])) if LIFTS else bits


@njit(inline="always")  # type: ignore[untyped-decorator]
def _divided(bits: Any, shared: Any) -> Any:
    return bits_of(float_of(bits) / float_of(shared[0]))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _element(bits: Any, shared: Any, fmt: Any, word: Any) -> Any:
    _, _, _, m, _, _, sign, mode = fmt
    _, after, smallest, most = shared
    return to_element(bits, smallest, m, float_of(most), sign, mode, word) * float_of(after)


def _round_blocks(
    source: Numbers, target: Numbers, first: Int, last: Int, length: Int, inner: Int, block: Int, addend: Int,
    emax: Int, emin: Int, m: Int, largest: Double, tensor_scale: Real, zero_sign: Int, settings: Mode, given: Words,
) -> None:  # fmt: skip
    sign = left(unsigned(zero_sign), unsigned(WIDTH - unsigned(1)))
    fmt = addend, emax, emin, unsigned(m), largest, tensor_scale, sign, mode_of(settings)
    nest(source, target, first, last, length, inner, block, fmt, settings, given)


_READY = {
    _power_scale: {"is_ready": _is_multiplied, "ready": _multiplied},
    _in_tensor: {"is_ready": _is_divided, "ready": _divided},
}


@cache
def _block_loop(dtype: torch.dtype, nest: Any, shared_of: Any) -> Any:
    parts = {"nest": nest, "key": magnitude_key, "two_ended": False, "shared_of": shared_of, "number_of": _element}
    return specialised(_round_blocks, dtype, **parts, **_READY[shared_of])


def round_blocks_in_mode(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int, int],
    rule_addend: int,
    element: Element,
    tensor_scale: float,
    options: RoundingOptions,
) -> None:
    """Rounds blocks of neighbours along an axis, with a shared scale.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: the length of the axis, its stride, and the number of elements of a block; the last block along the
            axis may be shorter.
        rule_addend: added to the float64 pattern of a block's largest magnitude before its exponent is read.
        element: the format of the scaled values; at most 21 stored significand bits.
        tensor_scale: 0; for blocks of NVFP4, the scale of the tensor.
        options: the mode, and the random bits of stochastic rounding.
    """
    fixed = (rule_addend, element.emax, element.emin, element.significand_bits)
    rest = (*layout, *fixed, element.max, tensor_scale, int(element.signed_zero))
    nest, shared_of = rows if layout[1] == 1 else strips, _power_scale if tensor_scale == 0 else _in_tensor
    loop = _block_loop(source.dtype, nest, shared_of)
    run_in_mode(loop, options, (source, target), rest, pieces(source.numel(), layout))


def addressed_blocks_in_mode(
    dtype: torch.dtype, block: int, rule_addend: int, element: Element, rounding: Rounding, *, strided: bool
) -> Addressed:
    """The loop of :func:`round_blocks_in_mode` for callers without Python; ``strided`` for an axis with a stride."""
    fixed = (rule_addend, element.emax, element.emin, element.significand_bits, int(element.signed_zero), STRIP)
    loop = _block_loop(dtype, strips if strided else rows, _power_scale)
    return Addressed(Calling.BLOCKS_IN_MODE, loop, dtype, numbers((block, *fixed), (element.max,), rounding))
