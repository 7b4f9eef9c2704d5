"""Finds the operations that a training run cannot do in its format: delta debugging over short runs."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roundoff.files import read_bytes
from roundoff.runs.folder import RunDirectory

from ...formats import Format
from ...simulate import HIGH, MOVES, Blame, BlameError, Trial, Trials, plain_name, search
from ..config.train_config import TrainConfig
from ..errors import FileError
from .alone import train

UNROUNDED: list[dict[str, Any]] = [{"operation": "*", "format": HIGH}]
"""Rules under which only data from outside are rounded."""
LEFT_MOVES: dict[str, Any] = {"operation": sorted(MOVES), "format": HIGH}
"""The rule by which moves do not round: they are not blamed for values that others computed."""


def blame_run(
    config: TrainConfig,
    directory: Path,
    *,
    at_least: float | None = None,
    over: str = "operation",
    on_trial: Callable[[str], None] = lambda _: None,
    allow_imports: Collection[str] = (),
) -> Blame:
    """Finds a minimal set of operations or roles that must stay in float32 for a training run to succeed.

    The search is the same as in :func:`roundoff.blame`, with training runs for trials. Each has its own folder below
    ``directory``, and none is repeated: the same call continues after an interruption.

    Args:
        config: a run that fails, as short as possible.
        directory: the folder of the trials.
        at_least: the smallest return of a successful run; None: a run that does not crash is successful.
        over: ``operation`` or ``role``.
        on_trial: called with a line about every trial.
        allow_imports: see :func:`roundoff.agents.train`.

    Raises:
        BlameError: the run succeeds, or also fails in high precision.
        RunError: as for training.
    """
    check_over(over)
    return search(_RunTrials(config, directory, at_least, over, on_trial, allow_imports))


def check_over(over: str) -> None:
    """Raises BlameError unless an agent has such units."""
    if over not in ("operation", "role"):
        raise BlameError(f"over must be operation or role, got {over!r}: an agent has no modules")


def with_rules(config: TrainConfig, rules: Sequence[dict[str, Any]], **changes: Any) -> TrainConfig:
    """Returns a run with more rules, which override its policy's, and with other changes.

    Raises:
        BlameError: such a run cannot have rules.
    """
    if getattr(config, "storage", None):
        raise BlameError("storage keeps numbers in formats that no rule for an operation or role reaches; leave it out")
    policy = config.policy
    merged = {**policy, "rules": [*policy.get("rules", []), *rules]} if rules else policy
    try:
        return TrainConfig(**{**config.as_json(), "policy": merged, **changes})
    except ValidationError as error:
        reasons = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise BlameError(f"blame changes the policy of a run, which this one does not allow: {reasons}") from None


def units_of_run(folder: Path, over: str) -> set[str]:
    """Returns the operations or roles that computed something in an observed run, and did not only move values.

    Raises:
        FileError: its table is missing, or damaged.
    """
    path = RunDirectory(folder).numerics
    try:
        table = csv.DictReader(read_bytes(path).decode().splitlines())
        # Moves compute nothing, and no agent reads data from outside by them.
        rows = [row for row in table if int(row["results"]) and plain_name(row["operation"]) not in MOVES]
        units = {plain_name(row[over]) for row in rows}
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); delete {folder} to repeat the trial") from error
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise FileError(f"{path}: is damaged; delete {folder} to repeat the trial") from error
    if not units:
        raise FileError(f"{path}: is damaged: it names no {over}; delete {folder} to repeat the trial")
    return units


class _RunTrials(Trials):
    """Training runs under more rules; each has a folder, which is named after its settings."""

    noun = "run"

    def __init__(
        self,
        config: TrainConfig,
        directory: Path,
        at_least: float | None,
        over: str,
        on_trial: Callable[[str], None],
        allow_imports: Collection[str],
    ) -> None:
        super().__init__(Format.parse(config.format), over, on_trial)
        self._config, self._directory, self._at_least = config, directory, at_least
        self._allow_imports = allow_imports

    def watched(self, *, rounded: bool) -> Trial:
        trial, folder = self._run([] if rounded else UNROUNDED, observe=True)
        return trial._replace(units=units_of_run(folder, self.over))

    def under(self, formats: Mapping[str, str]) -> Trial:
        rules = [{self.over: unit, "format": fmt} for unit, fmt in formats.items()]
        return self._run([*rules, LEFT_MOVES], observe=False)[0]

    def _run(self, rules: Sequence[dict[str, Any]], *, observe: bool) -> tuple[Trial, Path]:
        config = with_rules(self._config, rules, observe=observe)
        settings = json.dumps(config.as_json(), sort_keys=True).encode()
        folder = self._directory / f"trial-{hashlib.sha256(settings).hexdigest()[:12]}"
        result = train(config, folder, allow_imports=self._allow_imports)
        passed = result.crash is None and (self._at_least is None or result.return_mean >= self._at_least)
        outcome = f"return {result.return_mean:.1f}" if result.crash is None else f"crashed at {result.crash.step}"
        return Trial(passed, outcome), folder
