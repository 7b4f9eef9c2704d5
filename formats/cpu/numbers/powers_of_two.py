"""Rounding to powers of two, E8M0: the compiled loop for CPU, every mode, float32 and float64."""

from __future__ import annotations

from typing import Any

import torch
from numba import njit
from numpy import float64, int64, uint64

from ...base.modes import RoundingOptions
from ..addends import fill, mode64, run_in_mode
from ..arguments import Int, Mode, Numbers, Words
from ..bits import SCRATCH, bits_of64, float_of64, scratch32, scratch64
from ..tail import addend_of64, round_shifted64


@njit(inline="always")  # type: ignore[untyped-decorator]
def power_of(bits: Any, mode: Any, over: Any, infinite: Any, word: Any) -> Any:
    """The float64 pattern ``bits`` rounded to 2^(code - 127), as a float64."""
    fraction = uint64(bits & uint64(0xFFFFFFFFFFFFF))
    # Numbers that are subnormal in float64 are far below the smallest power, like all numbers with a code below 0.
    code = int64(bits >> uint64(52)) - int64(896)
    addend = addend_of64(mode, uint64(0), uint64(code & int64(1)), word)
    up = int64(round_shifted64(fraction, uint64(52), addend, mode[3]))
    code = code + up if code >= int64(0) else int64(0)
    result = uint64(uint64(code + int64(896)) << uint64(52))
    result = uint64(over) if code > int64(254) else result
    result = uint64(infinite) if bits == uint64(0x7FF0000000000000) else result
    # Zero, negative numbers (whose pattern is beyond) and NaN have no code.
    nothing = bits == uint64(0) or bits > uint64(0x7FF0000000000000)
    return float_of64(uint64(0x7FF8000000000000) if nothing else result)


def _powers(
    source: Numbers, target: Numbers, first: Int, last: Int, over: Int, infinite: Int, settings: Mode, given: Words
) -> None:
    bits, words, mode = scratch64(), scratch32(), mode64(settings)
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        fill(words, part, at, settings, given)
        for i in range(part):
            bits[i] = bits_of64(float64(source[at + i]))
        for i in range(part):
            target[at + i] = power_of(bits[i], mode, over, infinite, words[i])


def round_to_powers(
    source: torch.Tensor, target: torch.Tensor, over: int, infinite: int, options: RoundingOptions
) -> None:
    """Rounds the elements of ``source`` to powers of two from 2^-127 to 2^127; zero and negative ones become NaN.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        over: the float64 pattern that represents a number beyond 2^127.
        infinite: the pattern that represents infinity.
        options: the mode, and the random bits of stochastic rounding; ``source`` is contiguous then.
    """
    run_in_mode(_powers, options, (source, target), (over, infinite), source.numel())
