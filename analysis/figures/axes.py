"""What panels of figures have in common: the ends of their axes, their titles, the order of formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..statistics.summary import ALL_TASKS, REFERENCE, exponent_bits, significand_bits

if TYPE_CHECKING:
    from collections.abc import Iterable


def return_limits(tasks: Iterable[str], returns: Iterable[float], margin: float = 0.04) -> tuple[float, float]:
    """Ends of an axis of returns, with a margin.

    Args:
        tasks: shown there. Those of the control suite return 0 to 1000, others (``gym:...``) anything.
        returns: all that are shown; NaN is passed over.
        margin: on either side, as a fraction of the range.
    """
    low, high = 0.0, 1000.0
    if any(":" in task for task in tasks):
        finite = [0.0, *(float(value) for value in returns if value == value)]  # noqa: PLR0124  not NaN
        low, high = min(finite), max(finite)
    space = margin * ((high - low) or 1.0)
    return low - space, high + space


def titles(tasks: list[str]) -> list[str]:
    """Of panels, one for each task."""
    return ["mean over tasks" if task == ALL_TASKS else task for task in tasks]


def from_wide_to_narrow(name: str) -> tuple[bool, float, float]:
    """Sorts names of formats: fp32, then by exponent bits, then by significand bits."""
    return name != REFERENCE, -exponent_bits(name), -significand_bits(name)
