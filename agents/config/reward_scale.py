"""The key for what rewards are multiplied by, so that values fit into the format."""

from __future__ import annotations

import math
from typing import Any

AUTO = "auto"

_HEADROOM = 2
"""The ratio of the largest number to the largest value expected: room for entropy in soft values and critics'
errors."""


def read_reward_scale(value: Any) -> Any:
    """A value of the key; raises ValueError in words for what is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value == AUTO or (number and 0 < value < math.inf and math.frexp(value)[0] == 0.5):
        return float(value) if number else value
    near = ""
    if number and 0 < value < math.inf:
        below = 2.0 ** math.floor(math.log2(value))
        near = f"; the nearest are {below:g} and {2 * below:g}"
    raise ValueError(
        f"must be a power of two such as 0.0625, by which rewards are exact, or {AUTO}, got {value!r}{near}"
    )


def automatic_reward_scale(format: str, discount: float, largest: float) -> float:
    """The largest power of two, at most 1, with which the values of such rewards fit into a format twice.

    A reward of ``largest`` at every step is worth largest / (1 - discount).

    Args:
        format: of the agent.
        discount: below 1.
        largest: the largest reward of an agent step.
    """
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

    most = Format.parse(format).max
    assert most is not None
    fits = most * (1 - discount) / (_HEADROOM * largest)
    return min(1.0, 2.0 ** math.floor(math.log2(fits)))
