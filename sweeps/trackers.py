"""Trackers of experiments. A sweep logs its finished runs to them: settings, curves and results."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from roundoff.extras import require

from .errors import SweepError

_BATCH = 500  # numbers that MLflow is given at once; it takes 1000
_LONGEST = 500  # characters of a setting that MLflow keeps
_NO_NAME = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not allow in names


@final
class LogTo(BaseModel):
    """The tracker of a sweep. No run depends on it.

    Attributes:
        name: the name of the tracker.
        project: the project of Weights & Biases, or the experiment of MLflow; empty: the sweep's name.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Literal["wandb", "mlflow"]
    project: Annotated[str, Field(max_length=120)] = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, content: Any) -> Any:
        if isinstance(content, str):
            content = {"name": content}
        if isinstance(content, dict) and content.get("name") == "tensorboard":
            raise ValueError(
                "each run has a log for TensorBoard in any case: leave it out, and see"
                " `tensorboard --logdir` of the sweep's folder"
            )
        return content


@dataclass(frozen=True)
class TrackedRun:
    """A run that has ended, as plain data.

    Attributes:
        name: its id in the sweep.
        status: ``done`` or ``crashed``.
        settings: by key; those inside of others by ``outer.inner``.
        curves: records in the order of writing: the step, and finite numbers by name.
        values: numbers at the end: the score, and the values that a program has returned.
        reason: the reason of a crash.
    """

    name: str
    status: str
    settings: Mapping[str, Any]
    curves: Sequence[tuple[int, Mapping[str, float]]]
    values: Mapping[str, float]
    reason: str = ""


def open_tracker(log_to: LogTo, sweep: str) -> WandB | MLflow:
    """Opens the tracker that a sweep names. Its ``log`` logs a run, or raises SweepError if the tracker refuses it.

    Raises:
        MissingExtraError: its package is not installed.
        SweepError: it cannot be used: nobody has logged in, or its server does not answer.
    """
    require(log_to.name)
    project = log_to.project or sweep
    return WandB(project, sweep) if log_to.name == "wandb" else MLflow(project, sweep)


@contextmanager
def _raising_sweep_errors(tracker: str) -> Iterator[None]:
    """Raises a tracker's exceptions in the block as errors of the sweep."""
    try:
        yield
    except Exception as error:  # each tracker has its own exceptions
        first = next(iter(str(error).splitlines()), "")
        raise SweepError(f"log_to: {tracker} says: {type(error).__name__}: {first}") from error


@final
class WandB:
    """Weights & Biases. ``WANDB_MODE=offline`` writes everything into the local folder ``wandb/``."""

    def __init__(self, project: str, sweep: str) -> None:
        self._project, self._sweep = project, sweep
        with _raising_sweep_errors("wandb"):
            import wandb  # noqa: PLC0415  not installed everywhere

            wandb.login()  # asks on a terminal; else raises if there is no key. Offline it needs none
            self._wandb = wandb

    def log(self, run: TrackedRun) -> None:
        """Logs a run, in the sweep's group."""
        with _raising_sweep_errors("wandb"):
            logged = self._wandb.init(
                project=self._project,
                group=self._sweep,
                name=run.name,
                config=dict(run.settings),
                tags=[run.status],
                reinit="create_new",  # beside a run of the user's own in this process
                settings=self._wandb.Settings(silent=True, console="off"),
            )
            try:
                logged.define_metric("*", step_metric="step")  # programs may log an earlier step after a later one
                for step, numbers in run.curves:
                    logged.log({"step": step, **numbers})
                logged.summary.update(
                    {"status": run.status, **run.values} | ({"reason": run.reason} if run.reason else {})
                )
            finally:
                logged.finish()


@final
class MLflow:
    """MLflow. ``MLFLOW_TRACKING_URI`` names a server, a database, or a folder."""

    def __init__(self, project: str, sweep: str) -> None:
        self._sweep = sweep
        with _raising_sweep_errors("mlflow"):
            from mlflow import entities  # noqa: PLC0415  not installed everywhere
            from mlflow.tracking import MlflowClient  # noqa: PLC0415  not installed everywhere

            self._entities, self._client = entities, MlflowClient()
            experiment = self._client.get_experiment_by_name(project)
            self._experiment = experiment.experiment_id if experiment else self._client.create_experiment(project)

    def log(self, run: TrackedRun) -> None:
        """Logs a run, with the sweep as a tag."""
        entities, client = self._entities, self._client
        tags = {"sweep": self._sweep, "status": run.status} | ({"reason": run.reason} if run.reason else {})
        with _raising_sweep_errors("mlflow"):
            logged = client.create_run(self._experiment, run_name=run.name, tags=tags).info.run_id
            try:
                settings = [entities.Param(_valid_name(key), str(x)[:_LONGEST]) for key, x in run.settings.items()]
                now = int(1000 * time.time())
                numbers = [
                    entities.Metric(_valid_name(name), value, now, step)
                    for step, record in (*run.curves, (run.curves[-1][0] if run.curves else 0, run.values))
                    for name, value in record.items()
                ]
                for part in range(0, len(settings), 100):
                    client.log_batch(logged, params=settings[part : part + 100])
                for part in range(0, len(numbers), _BATCH):
                    client.log_batch(logged, metrics=numbers[part : part + _BATCH])
            except BaseException:
                client.delete_run(logged)  # an incomplete run
                raise
            client.set_terminated(logged, "FINISHED" if run.status == "done" else "FAILED")


def _valid_name(name: str) -> str:
    """Replaces the characters that MLflow does not allow in a name, and cuts it."""
    return _NO_NAME.sub("_", name)[:250]


def flat(settings: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
    """Flattens settings: a nested setting is named ``outer.inner``."""
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{outer}{key}.")
        else:
            flattened[f"{outer}{key}"] = value
    return flattened


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among values, as floats."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
