"""Defines the metric of a run: an agent's return, or one of the values that a program returns."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Metric(BaseModel):
    """The value that scores the runs of a program.

    Attributes:
        name: Name of the value in the returned mapping, or of the returned number.
        goal: whether more of it is better.
        crash: the score of a crashed run; None: it lacks a score, and is worse than every run with one.
            0 if the goal is ``maximize``.
        error: whether a run with an exception of the program has crashed, or has failed and is tried again.
            After a number that is not finite it has crashed in either case.
        unit: Unit of the value, for display.
        range: the smallest and the largest value that it can have, for axes.
        of_agents: whether it is the return of an agent, with a range that depends on the task.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    of_agents: ClassVar[bool] = False

    name: Annotated[str, Field(min_length=1, max_length=100)] = "score"
    goal: Literal["maximize", "minimize"] = "maximize"
    crash: _Finite | None = None
    error: Literal["fail", "crash"] = "fail"
    unit: Annotated[str, Field(max_length=40)] = ""
    range: Annotated[list[_Finite], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, content: Any) -> Any:
        if isinstance(content, str):
            content = {"name": content}
        if isinstance(content, dict) and content.get("goal", "maximize") == "maximize":
            return {"crash": 0.0, **content}
        return content

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [lowest, highest], the lower one first, got {self.range}")
        return self

    def as_json(self) -> dict[str, Any]:
        """Returns the metric as JSON values; without ``error`` at its default, which was added later."""
        return self.model_dump(mode="json", exclude={"error"} if self.error == "fail" else None)

    def score(self, value: float | None) -> float | None:
        """Returns the score of a run: the value, or ``crash`` for a crashed run (None)."""
        return self.crash if value is None or not math.isfinite(value) else value

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
        """The name of steps on an axis."""
        return "environment steps" if self.of_agents else "step"

    @property
    def sign(self) -> int:
        """The factor of scores that makes more better: 1 or -1."""
        return 1 if self.goal == "maximize" else -1

    @property
    def worst(self) -> float:
        """The score of a crashed run in comparisons: its score, or else an infinity."""
        return -self.sign * math.inf if self.crash is None else self.crash

    @property
    def scored(self) -> str:
        """The score of a crashed run, in words."""
        return "no score" if self.crash is None else f"scored {self.crash:g}"

    @property
    def better(self) -> str:
        """The side of better scores, in words."""
        return "above" if self.goal == "maximize" else "below"

    def shown(self, score: float) -> str:
        """Formats a score briefly."""
        return f"{score:.0f}" if self.of_agents else f"{score:.3g}"


@final
class AgentMetric(Metric):
    """The metric of agents: the return, or a quantity that is shown as one."""

    of_agents: ClassVar[bool] = True


RETURN = AgentMetric(name="return")
"""The metric of agents."""


def read_metric(content: Any) -> Metric:
    """Reads the metric in ``sweep.json`` or a result, which a later version may have written.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not a metric.
    """
    fields = {key: content[key] for key in Metric.model_fields if content.get(key) is not None}
    return Metric.model_validate({"crash": None, "name": content["name"], "goal": content["goal"], **fields})
