"""The tables that have a name, and their values after rounding in each mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import torch

from ..base.memory import unsimulated
from ..base.modes import Rounding
from ..cpu.numbers.tables import HIGH, LOW, TIE_HIGH, TIE_LOW, Table

# Dettmers et al., "QLoRA: Efficient finetuning of quantized LLMs" (2023), appendix E.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# bitsandbytes' FP4: sign, two exponent bits and one significand bit, in codes of its own; 8 is a second zero.
_FP4 = tuple(k / 12 for k in (0, 0.0625, 8, 12, 4, 6, 2, 3))
FP4_BNB = _FP4 + tuple(-x for x in _FP4)
NAMED: dict[str, tuple[tuple[float, ...], int | None]] = {
    "nf4": (NF4, 64),
    "fp4_bnb": (FP4_BNB, 64),
    "ternary": ((-1.0, 0.0, 1.0), None),
    "binary": ((-1.0, 1.0), None),
}
"""The tables that have a name, and how many numbers share a scale."""


@unsimulated  # a format may be used for the first time inside a simulation
def table_of(held: Sequence[float], dtype: torch.dtype) -> Table:
    """Makes a table of numbers in ascending order, each exact in ``dtype``."""
    modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
    zero = sum(number < 0 for number in held)
    gaps = list(enumerate(pairwise(held), -zero))
    choices = {mode: [_choice(mode, place, *gap) for place, gap in gaps] for mode in modes}
    thresholds = {
        mode: [_threshold(choice, *gap) for choice, (_, gap) in zip(choices[mode], gaps, strict=True)] for mode in modes
    }
    return Table(
        torch.tensor(held, dtype=dtype, device="cpu"),
        {mode: torch.tensor(numbers, dtype=torch.float64, device="cpu") for mode, numbers in thresholds.items()},
        {mode: torch.tensor(numbers, device="cpu") for mode, numbers in choices.items()},
        max(map(abs, held)),
    )


def _choice(mode: Rounding, place: int, low: float, high: float) -> int:
    """Returns the choice of a mode between two adjacent values, the lower at index ``place``, counted from zero."""
    even = TIE_LOW if place % 2 == 0 else TIE_HIGH
    return {
        Rounding.NEAREST_EVEN: even,
        Rounding.NEAREST_AWAY: TIE_HIGH if abs(high) >= abs(low) else TIE_LOW,
        Rounding.NEAREST_UP: TIE_HIGH,
        Rounding.TOWARD_ZERO: even if abs(low) == abs(high) else LOW if abs(low) < abs(high) else HIGH,
        Rounding.TO_ODD: HIGH if place % 2 == 0 else LOW,
        Rounding.UP: HIGH,
        Rounding.DOWN: LOW,
    }[mode]


def _threshold(choice: int, low: float, high: float) -> float:
    """The largest float64 that goes to the lower of two numbers."""
    if choice in (LOW, HIGH):
        return math.nextafter(high, -math.inf) if choice == LOW else low
    middle = (Fraction(low) + Fraction(high)) / 2
    near = float(middle)
    if Fraction(near) == middle:
        return near if choice == TIE_LOW else math.nextafter(near, -math.inf)
    return near if Fraction(near) < middle else math.nextafter(near, -math.inf)
