"""Rounding to equally spaced numbers in any mode: the compiled loops for CPU, float32 and float64.

See :mod:`.grids_nearest`, which is faster and only rounds to nearest-even; here the shared tail rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy import int64

from ...base.modes import Rounding, RoundingOptions
from ..addends import BETWEEN, fill, mode_of, run_in_mode
from ..addressed import Addressed, Calling, numbers
from ..arguments import Int, Mode, Numbers, Real, Words
from ..bits import SCRATCH, scratch32
from ..tail import between_steps, on_grid, to_integer
from ..widths import bits_of, float_of, real, scratch
from .grids_nearest import round_rows, row_loop

# Runs of fewer elements take longer to start than to round: a scale for each element of a row, then.
_SHORT = 32


def _runs(
    source: Numbers, target: Numbers, inverses: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int,
    period: Int, length: Int, low: Real, high: Real, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    between = settings[BETWEEN]
    # A length of 0 means one long run, and ``first`` to ``last`` count its elements.
    runs, size = (last - first, length) if length > 0 else (int64(1), last - first)
    start = first * length if length > 0 else first
    for run in range(runs):
        k = (first + run) % period
        inverse, scale, zero = inverses[k], scales[k], zeros[k]
        for at in range(start + run * size, start + (run + 1) * size, SCRATCH):
            part = min(int64(SCRATCH), start + (run + 1) * size - at)
            fill(words, part, at, settings, given)
            for i in range(part):
                bits[i] = bits_of(source[at + i])
            if between == 0:  # Two loops: the compiler vectorises only this one.
                for i in range(part):
                    steps = to_integer(float_of(bits[i]) * inverse, mode, words[i])
                    target[at + i] = on_grid(steps, scale, zero, low, high)
            else:
                for i in range(part):
                    steps = between_steps(float_of(bits[i]), inverse, scale, zero, mode, words[i])
                    target[at + i] = on_grid(steps, scale, zero, low, high)


def _column_loop(
    source: Numbers, target: Numbers, inverses: Numbers, scales: Numbers, zeros: Numbers, first: Int, last: Int,
    length: Int, low: Real, high: Real, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    between = settings[BETWEEN]
    for row in range(first, last):
        for column in range(0, length, SCRATCH):
            part = min(int64(SCRATCH), length - column)
            at = row * length + column
            fill(words, part, at, settings, given)
            for i in range(part):
                bits[i] = bits_of(source[at + i])
            if between == 0:
                for i in range(part):
                    k = column + i
                    steps = to_integer(float_of(bits[i]) * inverses[k], mode, words[i])
                    target[at + i] = on_grid(steps, scales[k], zeros[k], low, high)
            else:
                for i in range(part):
                    k = column + i
                    steps = between_steps(float_of(bits[i]), inverses[k], scales[k], zeros[k], mode, words[i])
                    target[at + i] = on_grid(steps, scales[k], zeros[k], low, high)


@njit(inline="always")  # type: ignore[untyped-decorator]
def within_turn(code: Any, turn: Any, part_of_turn: Any, low: Any, high: Any) -> Any:
    """An integer in the carrier, moved by a multiple of ``turn`` to a code from ``low`` to ``high``; +0 for zero."""
    # The nearest multiple of a turn, so that the difference has no more bits than there are.
    code = code - np.rint(code * part_of_turn) * turn
    code = code - turn if code > high else code
    code = code + turn if code < low else code
    return code + real(0.0)


@njit(inline="always")  # type: ignore[untyped-decorator]
def wrapped(
    x: Any, inverse: Any, scale: Any, turn: Any, part_of_turn: Any, low: Any, high: Any, mode: Any, word: Any
) -> Any:
    """A value rounded to a code times the scale; beyond the codes it wraps around by a multiple of ``turn``."""
    steps = x * inverse
    # A finite x that overflows here is a multiple of a turn, which is code 0. An infinity times 0 is NaN.
    steps = x * real(0.0) if abs(steps) == real(np.inf) else steps
    return within_turn(to_integer(steps, mode, word), turn, part_of_turn, low, high) * scale


def _wrapping(
    source: Numbers, target: Numbers, first: Int, last: Int, inverse: Real, scale: Real, turn: Real, low: Real,
    high: Real, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    part_of_turn = real(1.0) / turn
    for at in range(first, last, SCRATCH):
        part = min(int64(SCRATCH), last - at)
        fill(words, part, at, settings, given)
        for i in range(part):
            bits[i] = bits_of(source[at + i])
        for i in range(part):
            target[at + i] = wrapped(float_of(bits[i]), inverse, scale, turn, part_of_turn, low, high, mode, words[i])


def round_channels(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int],
    parameters: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    codes: tuple[int, int],
    options: RoundingOptions,
    *,
    between: bool = False,
) -> None:
    """Rounds to equally spaced numbers, with a scale for all, or one for each channel along an axis.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        layout: the number of channels, and the stride of their axis.
        parameters: reciprocals of scales, scales, zero points; one or one per channel; contiguous, dtype of ``source``.
        codes: smallest and largest integer.
        options: the mode, and the random bits of stochastic rounding.
        between: whether to choose between the numbers as they are, rather than to round their number of steps.
    """
    length, inner = layout
    n = source.numel()
    runs = n // inner if length > 1 else 1
    if length > 1 and (inner == 1 or (inner < _SHORT and n > _SHORT * length * inner)):
        each = [p.repeat_interleave(inner) if inner > 1 else p for p in parameters]
        row = length * inner
        run_in_mode(_column_loop, options, (source, target, *each), (row, *codes), n // row, between=between)
    elif options.rounding == Rounding.NEAREST_EVEN:
        round_rows(source, target, runs, *parameters, *codes)
    else:  # run r has the scale r modulo their count
        period, size = (parameters[1].numel(), n // runs) if runs > 1 else (1, 0)
        items = runs if runs > 1 else n
        run_in_mode(_runs, options, (source, target, *parameters), (period, size, *codes), items, between=between)


def round_wrapping(
    source: torch.Tensor, target: torch.Tensor, scale: float, codes: tuple[int, int], options: RoundingOptions
) -> None:
    """Rounds as :func:`round_channels` does with one power-of-two scale, but wraps around beyond the codes.

    Infinity becomes NaN. The codes are a power of two in number, and exact in the carrier.
    """
    rest = (1 / scale, scale, codes[1] - codes[0] + 1, *codes)
    run_in_mode(_wrapping, options, (source, target), rest, source.numel())


def addressed_grid(
    dtype: torch.dtype, scale: float, codes: tuple[int, int], rounding: Rounding, *, wraps: bool
) -> Addressed:
    """The loops of :func:`round_channels` and :func:`round_wrapping` with one power-of-two scale, without Python."""
    arguments = numbers(codes, (1 / scale, scale), rounding)
    if wraps:
        return Addressed(Calling.WRAPPING, _wrapping, dtype, arguments)
    if rounding is Rounding.NEAREST_EVEN:
        return Addressed(Calling.GRID, row_loop, dtype, arguments, places=True)
    return Addressed(Calling.GRID_IN_MODE, _runs, dtype, arguments)
