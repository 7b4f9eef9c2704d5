"""Reads and writes the folder of a run: its config, its files and its outcome; finds runs that no plan lists."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, final

from roundoff.errors import FileError, RunError
from roundoff.files import make_directory, read_json, try_json, write_json
from roundoff.origin import origin

from .result import MALFORMED, AnyResult, read_result


class Outcome(NamedTuple):
    """The outcome of a run according to its folder.

    Attributes:
        state: ``done`` and ``crashed`` are results; ``failed`` is tried again; ``waiting`` is every other run, even if
            somebody works on it.
        reason: Reason of a crash or a failure; otherwise empty.
        result: Result of a run that has ended.
        complaint: the message about a damaged file, with its path; empty if no file is damaged.
    """

    state: Literal["waiting", "done", "crashed", "failed"]
    reason: str = ""
    result: AnyResult | None = None
    complaint: str = ""


class Config(Protocol):
    """The config of a run."""

    def as_json(self) -> dict[str, Any]:
        """Returns the content of ``config.json``."""

    def unsaid(self) -> dict[str, Any]:
        """Returns the keys that :meth:`as_json` leaves out at their defaults, with the defaults."""


@final
class RunDirectory:
    """The files of a run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.checkpoint = self.path / "checkpoint.pt"
        self.agent = self.path / "agent.pt"
        self.result = self.path / "result.json"
        self.failure = self.path / "failed.json"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.numerics = self.path / "numerics.csv"
        self.timing = self.path / "timing.json"
        self.snapshots = self.path / "snapshots"
        self.learners = self.path / "learners"

    def checkpoint_of(self, learner: int, step: int) -> Path:
        """Returns the path of the file that a following learner saves with the checkpoint of a step."""
        return self.learners / f"{learner}-{step}.pt"

    def forget_checkpoints_after(self, learner: int, step: int) -> None:
        """Removes files that a killed follower saved after ``step``, the leader's last checkpoint."""
        for path in self.learners.glob(f"{learner}-*.pt"):
            if int(path.stem.split("-")[1]) > step:
                path.unlink()

    def room_for_checkpoint_of(self, learner: int, step: int) -> Path:
        """Makes room for :meth:`checkpoint_of`; keeps the newest older one, which the leader's checkpoint may need."""
        make_directory(self.learners)
        for old in sorted(self.learners.glob(f"{learner}-*.pt"), key=lambda path: int(path.stem.split("-")[1]))[:-1]:
            old.unlink()
        return self.checkpoint_of(learner, step)

    def claim(self, config: Config) -> None:
        """Writes the config of a run into the folder, or checks that the folder belongs to this run.

        Raises:
            RunError: it is another run's, or holds something else.
            FileError: it cannot be read or written.
        """
        if self.config.exists():
            self.check(config)
            return
        # Names with a dot are the lock, and leftovers of killed processes.
        foreign = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        if foreign:
            raise RunError(
                f"{self.path}: holds {foreign[0]} but no config.json, so it is not the folder of a run;"
                " choose an empty or a new one"
            )
        write_json(self.config, {"config": config.as_json(), "version": version("roundoff")})

    def check(self, config: Config) -> None:
        """Raises RunError if the folder belongs to a run with another config, naming the keys that differ."""
        stored = config_in(read_json(self.config))
        if stored is None:
            raise FileError(f"{self.config}: is not the config of a run; delete the folder to start the run again")
        check_same_config(stored, config, str(self.config))

    def end(self, result: AnyResult, timing: Mapping[str, Any]) -> None:
        """Writes the outcome and the time of the run; removes its checkpoints."""
        write_json(self.timing, {**origin(), **timing})
        # The result is the last file: a run with a result is complete, and is never opened again.
        write_json(self.result, result.as_json())
        self.checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.learners, ignore_errors=True)

    def read_result(self) -> AnyResult | None:
        """Reads the result of the run; None if it has not ended.

        Raises:
            FileError: the file is damaged.
        """
        if not self.result.exists():
            return None
        try:
            return read_result(read_json(self.result))
        except FileError as error:
            raise FileError(f"{error}; delete the file to repeat the run") from error
        except MALFORMED as error:
            raise FileError(f"{self.result}: is not the result of a run; delete the file to repeat the run") from error

    def outcome(self) -> Outcome:
        """Returns the outcome of the run, also if files are damaged."""
        content, complaint = try_json(self.result)
        if content is not None:
            try:
                result = read_result(content)
                return Outcome(result.status, result.crash.reason if result.crash else "", result)
            except MALFORMED:
                complaint = "is not the result of a run"
        if complaint or self.result.exists():  # it holds `null`, or cannot be read
            reason = "result.json is damaged; delete it to repeat the run"
            return Outcome("failed", reason, None, f"{self.result}: {complaint or 'is empty'}")
        if not self.failure.exists():
            return Outcome("waiting")
        content, complaint = try_json(self.failure)
        reason = str((isinstance(content, dict) and content.get("reason")) or "unknown")
        return Outcome("failed", reason, None, complaint and f"{self.failure}: {complaint}")

    def record_failure(self, reason: str) -> None:
        """Writes the reason why the run has failed."""
        write_json(self.failure, {"reason": reason})

    def forget_failure(self) -> None:
        """Removes the reason of a failure when the run is tried again."""
        self.failure.unlink(missing_ok=True)

    def read_timing(self) -> dict[str, Any]:
        """Reads the run's times, versions and machine; empty if it has not ended, or the file is damaged."""
        content, _ = try_json(self.timing)
        return content if isinstance(content, dict) else {}

    def seconds(self) -> float:
        """Returns the wall-clock time of the run without time lost to interruptions; NaN if it is not recorded."""
        seconds = self.read_timing().get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf else math.nan


def config_in(content: Any) -> dict[str, Any] | None:
    """Returns the config in the content of ``config.json``; None if that is something else."""
    config = content.get("config") if isinstance(content, dict) else None
    return config if isinstance(config, dict) else None


def unplanned_runs(runs: Path, planned: Collection[str]) -> list[str]:
    """Returns warnings about folders that look like runs and are not planned; other files are ignored.

    Args:
        runs: the folder that holds the folders of runs; it may be missing.
        planned: the ids of the runs in ``sweep.json``.
    """
    if not runs.is_dir():
        return []
    unplanned = [RunDirectory(path) for path in sorted(runs.iterdir()) if path.name not in planned]
    return [
        f"{files.path}: is not in sweep.json; left out"
        for files in unplanned
        if any(map(os.path.lexists, (files.config, files.metrics, files.result)))
    ]


def check_same_config(stored: dict[str, Any], config: Config, place: str) -> None:
    """Raises RunError naming every key with different values in ``stored``, read from ``place``, and ``config``."""
    # Files leave out some keys at their defaults, such as keys that are newer than the file.
    there, here = config.unsaid() | stored, config.unsaid() | config.as_json()
    differing = [
        f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]
    if differing:
        raise RunError(f"{place}: belongs to another run: {'; '.join(differing)}; choose another folder")
