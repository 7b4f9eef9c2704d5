"""Defines the result of a run, as stored in ``result.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from .metric import Metric, read_metric

Status = Literal["done", "crashed"]
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of reading JSON with another structure."""


@final
@dataclass(frozen=True)
class Crash:
    """The step (in environment steps) of a crash, and its reason."""

    step: int
    reason: str


@final
@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        status: ``"done"``, or ``"crashed"`` by a non-finite action.
        return_mean: mean return of the final evaluation; 0 for a crash.
        return_std: standard deviation of its episodes' returns; 0 for a crash.
        step: environment steps taken.
        crash: the crash, if the run crashed.
        quantized: mean return of the final evaluation by quantization; 0 if that took a non-finite action.
        updates: the number of updates, of several learners by the first; None if a library does not count them, and in
            the results of older versions.
        untrained: mean return before the first update, in reference runs, which are in fp32; None if it was not
            measured, or was not finite.
    """

    status: Status
    return_mean: float
    return_std: float
    step: int
    crash: Crash | None = None
    quantized: dict[str, float] = field(default_factory=dict)
    updates: int | None = None
    untrained: float | None = None

    @property
    def score(self) -> float:
        """The score of the run: the mean return."""
        return self.return_mean

    def as_json(self) -> dict[str, Any]:
        """Returns what ``result.json`` has."""
        return {
            **_common(self),
            "return_std": self.return_std,
            "updates": self.updates,
            **({} if self.untrained is None else {"untrained": self.untrained}),
            **({"in": self.quantized} if self.quantized else {}),
        }


@final
@dataclass(frozen=True)
class ProgramResult:
    """The result of a run of a program.

    Attributes:
        status: ``crashed`` if its metric, or a value logged last, is not finite; or if it raised an exception after
            such a value; or, if its metric is defined so, after any exception.
        score: The value of the metric; for a crash, the metric's score of a crash.
        step: The last logged step.
        crash: when and why, if it crashed.
        values: the finite ones among the returned values, by name.
        metric: The metric that judges the run.
    """

    status: Status
    score: float | None
    step: int
    crash: Crash | None
    values: dict[str, float]
    metric: Metric

    def as_json(self) -> dict[str, Any]:
        """Returns what ``result.json`` has."""
        return {**_common(self), "return_std": 0.0, "values": self.values, "metric": self.metric.as_json()}


AnyResult: TypeAlias = Result | ProgramResult


def _common(result: AnyResult) -> dict[str, Any]:
    crash = {"step": result.crash.step, "reason": result.crash.reason} if result.crash else None
    return {"status": result.status, "return": result.score, "step": result.step, "crash": crash}


def read_result(value: Any) -> AnyResult:
    """Reads a result from the output of ``as_json``.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: it is not a result.
    """
    status: Status = {"done": "done", "crashed": "crashed"}[value["status"]]  # type: ignore[assignment]
    crash_content, step = value.get("crash"), _whole(value["step"])
    crash = Crash(_whole(crash_content["step"]), str(crash_content.get("reason", "unknown"))) if crash_content else None
    values, metric = _parse_values(value.get("values")), value.get("metric")
    if metric is not None:
        score = None if status == "crashed" and value["return"] is None else _real(value["return"])
        return ProgramResult(status, score, step, crash, values, read_metric(metric))
    updates, untrained = value.get("updates"), value.get("untrained")
    return Result(
        status,
        _real(value["return"]),
        _real(value.get("return_std", 0.0)),
        step,
        crash,
        _parse_values(value.get("in")),
        None if updates is None else _whole(updates),
        None if untrained is None else _real(untrained),
    )


def _parse_values(content: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: _real(value) for name, value in ({} if content is None else content).items()}


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError
    return float(value)
