"""Rounding to equally spaced numbers in any mode: the compiled loops for CPU, float32 and float64.

See :mod:`.grids_nearest`, which is faster and only rounds to nearest-even; here the shared tail rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy import int64

from ...base.modes import Rounding
from ..addends import BETWEEN, addends, fill, mode_of
from ..bits import SCRATCH, scratch32
from ..step_tail import between_steps, on_grid, to_integer
from ..threads import compiled, in_pieces
from ..widths import bits_of, float_of, real, scratch
from .grids_nearest import round_rows

if TYPE_CHECKING:
    import torch

    from ...base.modes import RandomBits
    from ..arguments import Int, Mode, Numbers, Real, Words

# Runs of fewer elements take longer to start than to round: a scale for each element of a row, then.
_SHORT = 32


def _runs(
    source: Numbers, target: Numbers, inverses: Numbers, scales: Numbers, zeros: Numbers, period: Int, first: Int,
    last: Int, length: Int, low: Real, high: Real, settings: Mode, given: Words,
) -> None:  # fmt: skip
    bits, words, mode = scratch(), scratch32(), mode_of(settings)
    between = settings[BETWEEN]
    # Runs of 0 stand for one long run, of which elements ``first`` to ``last`` are wanted.
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
            if between == 0:  # as two loops, of which the compiler vectorises this one
                for i in range(part):
                    steps = to_integer(float_of(bits[i]) * inverse, mode, words[i])
                    target[at + i] = on_grid(steps, scale, zero, low, high)
            else:
                for i in range(part):
                    steps = between_steps(float_of(bits[i]), inverse, scale, zero, mode, words[i])
                    target[at + i] = on_grid(steps, scale, zero, low, high)


def _columns(
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
            x = float_of(bits[i])
            steps = x * inverse
            # What overflows here is a multiple of a whole turn; an infinity has no place on it, and becomes NaN.
            steps = x * real(0.0) if abs(steps) == real(np.inf) else steps
            steps = to_integer(steps, mode, words[i])
            # The nearest multiple of a turn, so that the difference has no more bits than there are.
            code = steps - np.rint(steps * part_of_turn) * turn
            code = code - turn if code > high else code
            code = code + turn if code < low else code
            target[at + i] = (code + real(0.0)) * scale


def round_runs(
    source: torch.Tensor,
    target: torch.Tensor,
    runs: int,
    inverses: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    codes: tuple[int, int],
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
    *,
    between: bool,
) -> None:
    """Rounds runs of memory of equal length, run r with scale number r modulo their count.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory; not empty; contiguous
            if rounding is stochastic.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        runs: into how many runs the memory is cut; a divisor of the number of elements.
        inverses: reciprocals of the scales, contiguous, dtype of ``source``.
        scales: contiguous, dtype of ``source``.
        zeros: zero points, contiguous, dtype of ``source``.
        codes: smallest and largest integer.
        rounding: the mode.
        random: the random bits of stochastic rounding.
        between: whether to choose between the numbers as they are, rather than to round their number of steps.
    """
    n = source.numel()
    extra = addends(rounding, random, source, between=between)
    kernel = compiled(_runs, source.dtype)
    data = (source.data_ptr(), target.data_ptr(), inverses.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (n // runs if runs > 1 else 0, *codes, extra.settings, extra.words)
    period = scales.numel() if runs > 1 else 1
    in_pieces(lambda first, last: kernel(*data, period, first, last, *rest), runs if runs > 1 else n, n)


def round_channels(
    source: torch.Tensor,
    target: torch.Tensor,
    layout: tuple[int, int],
    parameters: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    codes: tuple[int, int],
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
    *,
    between: bool = False,
) -> None:
    """As :func:`round_runs`, with scales for the channels along an axis.

    Args:
        source: as there.
        target: as there.
        layout: the number of channels, and the stride of their axis.
        parameters: reciprocals of the scales, scales and zero points; one, or one for each channel.
        codes: smallest and largest integer.
        rounding: the mode.
        random: the random bits of stochastic rounding.
        between: as there.
    """
    length, inner = layout
    n = source.numel()
    runs = n // inner if length > 1 else 1
    if length > 1 and (inner == 1 or (inner < _SHORT and n > _SHORT * length * inner)):
        inverses, scales, zeros = (p.repeat_interleave(inner) if inner > 1 else p for p in parameters)
        round_columns(source, target, inverses, scales, zeros, codes, rounding, random, between=between)
    elif rounding == Rounding.NEAREST_EVEN:
        round_rows(source, target, runs, *parameters, *codes)
    else:
        round_runs(source, target, runs, *parameters, codes, rounding, random, between=between)


def round_columns(
    source: torch.Tensor,
    target: torch.Tensor,
    inverses: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    codes: tuple[int, int],
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
    *,
    between: bool,
) -> None:
    """As :func:`round_runs`, but in rows of as many elements as there are scales, each element with its own."""
    n, length = source.numel(), scales.numel()
    extra = addends(rounding, random, source, between=between)
    kernel = compiled(_columns, source.dtype)
    data = (source.data_ptr(), target.data_ptr(), inverses.data_ptr(), scales.data_ptr(), zeros.data_ptr())
    rest = (length, *codes, extra.settings, extra.words)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), n // length, n)


def round_wrapping(
    source: torch.Tensor,
    target: torch.Tensor,
    scale: float,
    codes: tuple[int, int],
    rounding: Rounding,
    random: RandomBits | torch.Tensor | None,
) -> None:
    """As :func:`round_runs` with one power-of-two scale, but beyond the codes it goes on at their other end.

    Infinity becomes NaN. The codes are a power of two in number, and exact in the carrier.
    """
    n = source.numel()
    extra = addends(rounding, random, source)
    kernel = compiled(_wrapping, source.dtype)
    data = (source.data_ptr(), target.data_ptr())
    rest = (1 / scale, scale, codes[1] - codes[0] + 1, *codes, extra.settings, extra.words)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), n, n)
