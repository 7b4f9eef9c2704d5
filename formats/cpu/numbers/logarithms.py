"""Rounding to logarithmic numbers: the compiled loops for CPU, every mode, float32 and float64.

A table gives the place of a number between two powers of two: its upper fraction bits select a cell. Cells are
narrower than the distance of two borders, so one comparison with the border inside the cell is enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numba import njit
from numpy import float64, int64, uint64

from ...base.modes import Rounding, RoundingOptions
from ..addends import fill, mode64, run_in_mode
from ..addressed import Addressed, Calling, numbers
from ..arguments import Double, Doubles, Int, Integers, Mode, Numbers, Words
from ..bits import SCRATCH, bits_of64, float_of64, scratch32, scratch64
from ..tail import addend_of64, round_shifted64
from ..threads import compiled, in_pieces


class PowerCells(NamedTuple):
    """Sorted numbers from 1 up to 2, to be searched by cell; see :func:`cells`."""

    below: torch.Tensor
    """The number of values up to the start of each cell, int64."""
    inside: torch.Tensor
    """The first number above the start of each cell, or 2, float64."""


def cells(numbers: torch.Tensor, fraction_bits: int) -> PowerCells:
    """Sorts ``numbers`` into cells of width 2^-(f + 1): at most one number is above the start of a cell, in it."""
    starts = 1.0 + torch.arange(2 << fraction_bits, dtype=torch.float64, device="cpu") / (2 << fraction_bits)
    below = torch.bucketize(starts, numbers, right=True)
    following = torch.cat([numbers, numbers.new_tensor([2.0])])  # No number of an octave passes 2.
    return PowerCells(below, following[below])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _signed_power(k: Any, bits: Any, f: Any, zero: Any, powers: Any) -> Any:
    """Returns the value with magnitude 2^(k / 2^f) and the sign of a float64's pattern; NaN for NaN."""
    k = min(max(k, zero), int64(-zero - 1))  # Saturates.
    power = bits_of64(powers[k & int64(int64(int64(1) << f) - 1)])
    result = uint64(power + uint64(int64(int64(k >> f) << 52)))  # The octave is added to the exponent.
    result = uint64(result | uint64(bits & uint64(0x8000000000000000)))
    vanishes = k == zero or uint64(bits & uint64(0x7FFFFFFFFFFFFFFF)) == uint64(0)
    result = uint64(0) if vanishes else result
    nan = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF)) > uint64(0x7FF0000000000000)
    return float_of64(uint64(0x7FF8000000000000) if nan else result)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _within(magnitude: Any) -> Any:
    """The significand of a pattern as a float64, from 1 up to 2."""
    return float_of64(uint64(uint64(magnitude & uint64(0xFFFFFFFFFFFFF)) | uint64(0x3FF0000000000000)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def nearest_power(bits: Any, f: Any, zero: Any, below: Any, inside: Any, powers: Any) -> Any:
    """A float64's pattern rounded to the nearest logarithmic number; see :func:`round_to_nearest`."""
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    octave = int64(magnitude >> uint64(52)) - int64(1023)
    cell = int64(magnitude >> uint64(51 - f)) & int64(int64(int64(2) << f) - 1)  # The upper f + 1 fraction bits.
    passed = int64(1) if inside[cell] < _within(magnitude) else int64(0)
    k = int64(octave << f) + below[cell] + passed
    return _signed_power(k, bits, f, zero, powers)


@njit(inline="always")  # type: ignore[untyped-decorator]
def power_in_mode(
    bits: Any, f: Any, zero: Any, below: Any, inside: Any, powers: Any, smallest: Any, mode: Any, word: Any
) -> Any:
    """Returns what :func:`nearest_power` does, in the modes that are not to nearest; see :func:`round_in_mode`."""
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    octave = int64(magnitude >> uint64(52)) - int64(1023)
    within = _within(magnitude)
    cell = int64(magnitude >> uint64(51 - f)) & int64(int64(int64(2) << f) - 1)
    step = below[cell] + (int64(1) if inside[cell] <= within else int64(0)) - int64(1)
    lower, upper = powers[step], powers[step + 1]
    k = int64(octave << f) + step
    # The neighbour below the smallest number is zero.
    vanishing = k <= zero
    k = min(max(k, zero), int64(-zero - 1))
    rest = float_of64(magnitude) if vanishing else within - lower
    whole = smallest if vanishing else upper - lower
    # One bit below the fraction says that it is not zero, however small.
    inexact = uint64(1) if rest > 0.0 else uint64(0)
    significand = uint64(uint64(uint64(int64(rest / whole * 4294967296.0)) << uint64(1)) | inexact)
    addend = addend_of64(mode, uint64(bits >> uint64(63)), uint64(k & int64(1)), word)
    k = k + int64(round_shifted64(significand, uint64(33), addend, mode[3]))  # 0 or 1: a fraction of 33 bits.
    return _signed_power(k, bits, f, zero, powers)


def _nearest_loop(
    source: Numbers, target: Numbers, first: Int, last: Int, f: Int, zero: Int, below: Integers, inside: Doubles,
    powers: Doubles,
) -> None:  # fmt: skip
    bits = scratch64()
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        for i in range(part):
            bits[i] = bits_of64(float64(source[at + i]))
        for i in range(part):
            target[at + i] = nearest_power(bits[i], f, zero, below, inside, powers)


def _in_mode(
    source: Numbers, target: Numbers, below: Integers, inside: Doubles, powers: Doubles, first: Int, last: Int, f: Int,
    zero: Int, smallest: Double, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch64(), scratch32(), mode64(settings)
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        fill(words, part, at, settings, given)
        for i in range(part):
            bits[i] = bits_of64(float64(source[at + i]))
        for i in range(part):
            target[at + i] = power_in_mode(bits[i], f, zero, below, inside, powers, smallest, mode, words[i])


def round_to_nearest(
    source: torch.Tensor, target: torch.Tensor, fraction_bits: int, zero: int, borders: PowerCells, powers: torch.Tensor
) -> None:
    """Rounds the elements of ``source`` to the nearest logarithmic numbers.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        fraction_bits: f.
        zero: the lowest logarithm, which represents zero.
        borders: the largest numbers below 2^((j + 1/2) / 2^f).
        powers: the numbers that represent 2^(j / 2^f), j = 0 to 2^f; float64.
    """
    kernel = compiled(_nearest_loop, source.dtype)
    data = (source.data_ptr(), target.data_ptr())
    rest = (fraction_bits, zero, borders.below.data_ptr(), borders.inside.data_ptr(), powers.data_ptr())
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), source.numel(), source.numel())


def addressed_to_nearest(
    dtype: torch.dtype, fraction_bits: int, zero: int, borders: PowerCells, powers: torch.Tensor
) -> Addressed:
    """The loop of :func:`round_to_nearest`, for callers without Python."""
    parts = (borders.below, borders.inside, powers)
    arguments = (fraction_bits, zero, *(part.data_ptr() for part in parts))
    return Addressed(Calling.LOGARITHM, _nearest_loop, dtype, numbers(arguments))


def addressed_in_mode(
    dtype: torch.dtype, fraction_bits: int, zero: int, steps: PowerCells, powers: torch.Tensor, smallest: float,
    rounding: Rounding,
) -> Addressed:  # fmt: skip
    """The loop of :func:`round_in_mode`, for callers without Python."""
    parts = (steps.below, steps.inside, powers)
    arguments = (fraction_bits, zero, *(part.data_ptr() for part in parts))
    return Addressed(Calling.LOGARITHM_IN_MODE, _in_mode, dtype, numbers(arguments, (smallest,), rounding))


def round_in_mode(
    source: torch.Tensor, target: torch.Tensor, fraction_bits: int, zero: int, steps: PowerCells, powers: torch.Tensor,
    smallest: float, options: RoundingOptions,
) -> None:  # fmt: skip
    """Rounds as :func:`round_to_nearest` does, in the modes that are not to nearest.

    Args:
        source: see :func:`round_to_nearest`; contiguous if rounding is stochastic.
        target: see :func:`round_to_nearest`.
        fraction_bits: f.
        zero: the lowest logarithm, which represents zero.
        steps: the powers 2^(j / 2^f), j = 0 to 2^f - 1.
        powers: the numbers that represent 2^(j / 2^f), j = 0 to 2^f; float64.
        smallest: the float of the smallest number above zero.
        options: the mode, and the random bits of stochastic rounding.
    """
    data = (source, target, steps.below, steps.inside, powers)
    run_in_mode(_in_mode, options, data, (fraction_bits, zero, smallest), source.numel())
