"""What runs are scored by: the return of an agent, or the metric that a program was swept for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

GOALS = ("maximize", "minimize")


@dataclass(frozen=True)
class Metric:
    """A score of runs.

    Attributes:
        name: what the program calls it.
        goal: ``maximize`` or ``minimize``.
        crash: the score of a crashed run; None: it has none, and is worse than every run that has one.
        unit: of the score, in words; empty if it has none.
        range: the smallest and the largest score there can be; None: not known.
        of_agents: whether it is the return of an agent, whose range its task decides.
    """

    name: str
    goal: str = "maximize"
    crash: float | None = 0.0
    unit: str = ""
    range: tuple[float, float] | None = None
    of_agents: bool = False

    @property
    def label(self) -> str:
        """The label of an axis: the name, with the unit if there is one."""
        if self.of_agents and not self.unit:
            return "return per episode"
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def steps(self) -> str:
        """What steps are called on an axis."""
        return "environment steps" if self.of_agents else "step"

    @property
    def sign(self) -> int:
        """What a score is multiplied by so that more is better."""
        return 1 if self.goal == "maximize" else -1

    @property
    def worst(self) -> float:
        """What a crashed run counts as in comparisons: its score, or an infinity where it has none."""
        return -self.sign * math.inf if self.crash is None else self.crash

    @property
    def scored(self) -> str:
        """How a crashed run is scored, in words."""
        return "no score" if self.crash is None else f"scored {self.crash:g}"

    @property
    def better(self) -> str:
        """The side on which better scores lie, in words."""
        return "above" if self.goal == "maximize" else "below"

    def shown(self, score: float) -> str:
        """A score where space is dear."""
        return f"{score:.0f}" if self.of_agents else f"{score:.3g}"


RETURN = Metric("return", of_agents=True)
"""What agents are scored by."""


def read_metric(content: Any) -> Metric:
    """The metric that ``sweep.json`` or a result describes.

    Raises:
        KeyError, TypeError, ValueError: it describes none.
    """
    name, goal, ends = content["name"], content["goal"], content.get("range")
    if not isinstance(name, str) or goal not in GOALS:
        raise ValueError
    low, high = (_finite(end) for end in ends) if ends is not None else (0.0, 1.0)
    if not low < high:
        raise ValueError
    crash = content.get("crash")
    return Metric(
        name,
        goal,
        None if crash is None else _finite(crash),
        str(content.get("unit") or ""),
        None if ends is None else (low, high),
    )


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError
    return float(value)
