"""Rounding of one element for each family, inserted into the kernel of :mod:`.each`.

Each function takes a number of the carrier, its place in the tensor, the format's parameters as tensors on the device,
and the random word of 32 bits. They call the same functions as the CPU's loops; see :mod:`.translation`.
"""

# ruff: noqa: ARG001  all functions have the same arguments

from __future__ import annotations

from typing import Any

import triton.language as tl
from numpy import float64

from ..cpu.addends import mode64, mode_of
from ..cpu.bits import bits_of64
from ..cpu.numbers.floats_by_mode import by_mode, read
from ..cpu.numbers.grids import wrapped
from ..cpu.numbers.logarithms import nearest_power, power_in_mode
from ..cpu.numbers.posits import nearest_posit, posit_in_mode
from ..cpu.numbers.powers_of_two import power_of
from ..cpu.numbers.qtorch import rounded as rounded_as_qtorch
from ..cpu.numbers.tables import drawn
from ..cpu.tail import between_steps, on_grid, to_integer
from ..cpu.widths import KernelPart, bits_of, float_of, real

constants: Any = KernelPart()
rounded: Any = KernelPart()


def float_nearest(x: Any, index: Any, data: Any, word: Any) -> Any:
    """One of the ways of :mod:`..cpu.numbers.floats_nearest`."""
    # A program computes the constants once.
    return float_of(rounded(bits_of(x), constants(read(data[0]))))


def float_stochastic(x: Any, index: Any, data: Any, word: Any) -> Any:
    """One of the ways of :mod:`..cpu.numbers.floats_by_mode`."""
    return float_of(rounded(bits_of(x), constants(read(data[0])), word))


def float_by_mode(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds in any other mode, or with the caller's random words."""
    return float_of(by_mode(bits_of(x), read(data[0]), word))


def unsigned_float(x: Any, index: Any, data: Any, word: Any) -> Any:
    """A format without a sign, in any mode: negative numbers and -0 become 0, NaN stays."""
    positive = real(0.0) if x <= real(0.0) else x  # noqa: FURB136  Triton's maximum of 0 and NaN is 0
    return float_of(by_mode(bits_of(positive), read(data[0]), word))


def scaled_float(x: Any, index: Any, data: Any, word: Any) -> Any:
    """A float of a tensor with one scale, in any mode."""
    scale = tl.load(data[1])  # Of the tensor.
    return float_of(by_mode(bits_of(x * scale), read(data[0]), word)) / scale


def on_one_grid(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Equally spaced numbers: of fixed point, and of integers to the nearest."""
    settings, p = data  # p: reciprocal, scale, zero point, smallest and largest code
    steps = to_integer(x * p[0], mode_of(settings), word)
    return on_grid(steps, p[1], p[2], p[3], p[4])


def between_codes(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Integers in other modes."""
    settings, p = data
    return on_grid(between_steps(x, p[0], p[1], p[2], mode_of(settings), word), p[1], p[2], p[3], p[4])


def on_grid_of_channel(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds as :func:`on_one_grid` does, with a scale for each channel or group, found by the number's place."""
    settings, inverses, scales, zeros, ends, layout = data  # layout: neighbours that share a scale, scales
    k = index // layout[0] % layout[1]
    steps = to_integer(x * inverses[k], mode_of(settings), word)
    return on_grid(steps, scales[k], zeros[k], ends[0], ends[1])


def between_codes_of_channel(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds as :func:`between_codes` does, with a scale for each channel, or group."""
    settings, inverses, scales, zeros, ends, layout = data
    k = index // layout[0] % layout[1]
    steps = between_steps(x, inverses[k], scales[k], zeros[k], mode_of(settings), word)
    return on_grid(steps, scales[k], zeros[k], ends[0], ends[1])


def wrapping(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Fixed point that wraps round at its ends."""
    settings, p = data  # p: reciprocal, scale, number of codes, smallest and largest code
    return wrapped(x, p[0], p[1], p[2], real(1.0) / p[2], p[3], p[4], mode_of(settings), word)


def posit(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to the nearest posit."""
    settings, p = data  # p: exponent bits, width - 1, patterns of maxpos and minpos
    return nearest_posit(float64(x), p[0], p[1], p[2], p[3])


def posit_by_mode(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to a posit in the other modes that are not stochastic."""
    settings, p = data
    return posit_in_mode(float64(x), p[0], p[1], p[2], p[3], mode64(settings), False, word)


def posit_stochastic(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to a posit by a random word."""
    settings, p = data
    return posit_in_mode(float64(x), p[0], p[1], p[2], p[3], mode64(settings), True, word)


def logarithmic(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to the nearest logarithmic number."""
    settings, p, below, inside, powers, smallest = data  # p: fraction bits, lowest logarithm
    return nearest_power(bits_of64(float64(x)), p[0], p[1], below, inside, powers)


def logarithmic_by_mode(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to a logarithmic number in the other modes."""
    settings, p, below, inside, powers, smallest = data
    bits = bits_of64(float64(x))
    return power_in_mode(bits, p[0], p[1], below, inside, powers, smallest[0], mode64(settings), word)


def power_of_two(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to E8M0."""
    settings, p = data  # p: patterns of an overflow and of infinity
    return power_of(bits_of64(float64(x)), mode64(settings), p[0], p[1], word)


def place_in(numbers: Any, thresholds: Any, count: Any) -> Any:
    """Counts, for each element, how many of ``count`` thresholds it is above; NaN is above none."""
    place = tl.full(numbers.shape, 0, tl.int64)
    rest = count  # A binary search, each step for all elements.
    while rest > 0:
        half = (rest + 1) // 2
        above = numbers > tl.load(thresholds + place + half - 1)
        place += tl.where(above, half, 0)
        rest -= half
    return place


def in_table(x: Any, index: Any, data: Any, word: Any) -> Any:
    """A number of a table."""
    settings, values, thresholds, count = data
    place = place_in(float64(x), thresholds, count[0] - 1)
    return values[place] if x == x else x  # noqa: PLR0124  NaN keeps its payload


def drawn_from_table(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds to a number of a table by a random word."""
    settings, values, thresholds, count = data
    wide, most = float64(x), count[0] - 1
    place = place_in(wide, thresholds, most)
    between = place < most and wide > float64(values[0])
    lower, upper = float64(values[place]), float64(values[min(place + 1, most)])
    inner = lower if between else float64(0.0)  # elsewhere the quotient might be no number
    outer = upper if between else float64(1.0)
    place = drawn(wide if between else float64(0.0), place, inner, outer, word) if between else place
    return values[place] if x == x else x  # noqa: PLR0124


def as_qtorch(x: Any, index: Any, data: Any, word: Any) -> Any:
    """Rounds as qtorch 0.3.0 does."""
    p = data[0]
    return float_of(rounded_as_qtorch(bits_of(x), p[0], p[1], p[2], p[3], p[4], p[5]))
