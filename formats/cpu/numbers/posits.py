"""Rounding to posits: the compiled loops for CPU.

In a float64's pattern, less the bias, everything above the lowest es exponent bits is the regime k as a number in two's
complement, and the bits below are the posit's own exponent and fraction. So rounding a posit's bit string cuts that
pattern at a place that depends on k, and a carry moves into the regime by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import njit
from numpy import float64, int64, uint32, uint64

from ...base.modes import Rounding, RoundingOptions
from ..addends import FIXED, KIND, fill, mode64, run_in_mode
from ..addressed import Addressed, Calling, numbers
from ..arguments import Int, Mode, Numbers, Words
from ..bits import SCRATCH, bits_of64, float_of64, scratch32, scratch64
from ..tail import addend_of64, round_shifted64
from ..threads import compiled, in_pieces


@njit(inline="always")  # type: ignore[untyped-decorator]
def nearest_posit(x: Any, exponent_bits: Any, room: Any, largest: Any, smallest: Any) -> Any:
    """The float64 ``x`` rounded to the bit string's nearest-even; ``room`` is the width less the sign: n - 1."""
    bits = int64(bits_of64(x))
    sign = int64(bits & int64(-0x8000000000000000))
    magnitude = int64(bits ^ sign)
    clamped = min(max(magnitude, smallest), largest)
    pattern = int64(clamped - int64(1023 << 52))
    below_regime = int64(52) + exponent_bits
    k = int64(pattern >> below_regime)
    # A run of k + 1 ones and a zero, or of -k zeros and a one.
    regime = k + int64(2) if k >= int64(0) else int64(1) - k
    tail_bits = max(room - regime, int64(0))
    drop = max(below_regime - tail_bits, int64(0))
    unit = int64(int64(1) << drop)
    # Where nothing is kept below the regime, the regime's last bit is the code's last: 0 after ones, 1 after zeros.
    regime_odd = int64(1) if k < int64(0) else int64(0)
    odd = int64(int64(pattern >> drop) & int64(1)) if tail_bits > int64(0) else regime_odd
    # Half a unit, less one, plus the parity; with nothing to cut (unit 1) nothing is added.
    add = int64(int64(unit >> int64(1)) - int64(1) + odd) if drop > int64(0) else int64(0)
    pattern = int64(int64(pattern + add) & int64(-unit))
    result = int64(pattern + int64(1023 << 52)) | sign
    result = int64(0) if magnitude == int64(0) else result
    result = int64(0x7FF8000000000000) if magnitude >= int64(0x7FF0000000000000) else result
    return float_of64(uint64(result))


@njit(inline="always")  # type: ignore[untyped-decorator]
def posit_in_mode(
    x: Any, exponent_bits: Any, room: Any, largest: Any, smallest: Any, mode: Any, stochastic: Any, word: Any
) -> Any:
    """Returns what :func:`nearest_posit` does, in the mode of :func:`.mode64`, or by a random word."""
    bits = bits_of64(x)
    sign = int64(bits & uint64(0x8000000000000000))
    magnitude = int64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    clamped = min(max(magnitude, smallest), largest)
    pattern = int64(clamped - int64(1023 << 52))
    below_regime = int64(52) + exponent_bits
    k = int64(pattern >> below_regime)
    regime = k + int64(2) if k >= int64(0) else int64(1) - k
    tail_bits = max(room - regime, int64(0))
    drop = max(below_regime - tail_bits, int64(0))
    unit = int64(int64(1) << drop)
    lower = int64(pattern & int64(-unit))
    if stochastic:
        below = float_of64(uint64(lower + int64(1023 << 52)))
        above = float_of64(uint64(lower + unit + int64(1023 << 52)))
        fraction = int64((float_of64(uint64(clamped)) - below) / (above - below) * 4294967296.0)
        up = int64(int64(fraction + int64(word)) >> int64(32))
    else:
        regime_odd = uint64(1) if k < int64(0) else uint64(0)
        odd = uint64(uint64(pattern >> drop) & uint64(1)) if tail_bits > int64(0) else regime_odd
        minus = uint64(1) if sign != int64(0) else uint64(0)
        addend = addend_of64(mode, minus, odd, uint32(0))
        up = int64(round_shifted64(uint64(pattern - lower), uint64(drop), addend, mode[3]))
    result = int64(lower + (unit if up > int64(0) else int64(0)) + int64(1023 << 52)) | sign
    result = int64(0) if magnitude == int64(0) else result
    result = int64(0x7FF8000000000000) if magnitude >= int64(0x7FF0000000000000) else result
    return float_of64(uint64(result))


def _any_mode(
    source: Numbers, target: Numbers, first: Int, last: Int, exponent_bits: Int, room: Int, largest: Int, smallest: Int,
    settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch64(), scratch32(), mode64(settings)
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        fill(words, part, at, settings, given)
        for i in range(part):
            bits[i] = bits_of64(float64(source[at + i]))
        if settings[KIND] == FIXED:
            for i in range(part):
                x = float_of64(bits[i])
                target[at + i] = posit_in_mode(x, exponent_bits, room, largest, smallest, mode, False, words[i])
        else:
            for i in range(part):
                x = float_of64(bits[i])
                target[at + i] = posit_in_mode(x, exponent_bits, room, largest, smallest, mode, True, words[i])


def _nearest_loop(
    source: Numbers, target: Numbers, first: Int, last: Int, exponent_bits: Int, room: Int, largest: Int, smallest: Int
) -> None:
    for i in range(first, last):
        target[i] = nearest_posit(float64(source[i]), exponent_bits, room, largest, smallest)


def round_posit(
    source: torch.Tensor,
    target: torch.Tensor,
    width: int,
    exponent_bits: int,
    ends: tuple[int, int],
    options: RoundingOptions,
) -> None:
    """Rounds the elements of ``source`` to posits.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        width: bits of the posit, n.
        exponent_bits: es.
        ends: the float64 patterns of maxpos and minpos.
        options: the mode, and the random bits of stochastic rounding; ``source`` is contiguous then.
    """
    rest = (exponent_bits, width - 1, *ends)
    if options.rounding != Rounding.NEAREST_EVEN:
        run_in_mode(_any_mode, options, (source, target), rest, source.numel())
        return
    data = (source.data_ptr(), target.data_ptr())
    kernel = compiled(_nearest_loop, source.dtype, in_place=target is source)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), source.numel(), source.numel())


def addressed_posit(
    dtype: torch.dtype, width: int, exponent_bits: int, ends: tuple[int, int], rounding: Rounding
) -> Addressed:
    """The loop of :func:`round_posit`, for callers without Python."""
    arguments = numbers((exponent_bits, width - 1, *ends), rounding=rounding)
    if rounding is Rounding.NEAREST_EVEN:
        return Addressed(Calling.POSIT, _nearest_loop, dtype, arguments, places=True)
    return Addressed(Calling.POSIT_IN_MODE, _any_mode, dtype, arguments)
