"""What counts of the values that a program returns."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

_Finite = Annotated[float, Field(allow_inf_nan=False)]


@final
class Metric(BaseModel):
    """The value of a program by which its runs are judged.

    Attributes:
        name: of the value in the mapping that the program returns; what a number that it returns is called.
        goal: whether more of it is better.
        crash: what a run counts for that has crashed; None: it has no score. 0 if the goal is ``maximize``.
        error: whether a run in which the program raises something has crashed, too, or has failed, and is tried again.
            After a number that is not finite it has crashed in either case.
        unit: in which it is told.
        range: the smallest and the largest value that it can have, for axes.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100)] = "score"
    goal: Literal["maximize", "minimize"] = "maximize"
    crash: _Finite | None = None
    error: Literal["fail", "crash"] = "fail"
    unit: Annotated[str, Field(max_length=40)] = ""
    range: Annotated[list[_Finite], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, dict) and given.get("goal", "maximize") == "maximize":
            return {"crash": 0.0, **given}
        return given

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [lowest, highest], the lower one first, got {self.range}")
        return self

    def as_json(self) -> dict[str, Any]:
        """Returns the metric as files have it; without ``error`` at its default, which came later than other keys."""
        return self.model_dump(mode="json", exclude={"error"} if self.error == "fail" else None)

    def score(self, value: float | None) -> float | None:
        """What a run counts for: the value, or ``crash`` for one that has crashed (None)."""
        return self.crash if value is None or not math.isfinite(value) else value
