"""The folder of a sweep: the plan, and the outcome of each run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from roundoff.errors import FileError
from roundoff.files import is_name, is_temporary, make_directory, make_directory_inside, read_json, write_json
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import Metric
from roundoff.runs.result import AnyResult, ProgramResult

from ..errors import SweepError
from ..language.plan import Plan
from ..subjects.subject import Run

LAYOUT = 1
MARKER = "sweep.json"
COSTS = "costs.json"
_OWN_NAMES = {"runs", MARKER, ".lock", COSTS}

State = Literal["running", "waiting", "done", "crashed", "failed"]
"""The state of a run: ``waiting`` for a worker; ``done`` and ``crashed`` are results; ``failed`` is tried again."""


class SweepDirectory:
    """The files of a sweep; see docs/architecture.md.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.marker = self.path / MARKER
        self.leases = self.path / "leases"

    def run_path(self, run: Run) -> Path:
        """The folder of one run."""
        return self.path / "runs" / run.id

    def check(self, plan: Plan) -> None:
        """Raises SweepError unless the folder is new, empty, or this sweep's."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise SweepError(f"{self.path}: is not a folder; choose another --out")
        if not self.marker.exists():
            names = [entry.name for entry in self.path.iterdir()]
            foreign = sorted(name for name in names if name not in _OWN_NAMES and not is_temporary(name))
            if foreign or (self.path / "runs").exists():
                name = foreign[0] if foreign else "runs"
                raise SweepError(
                    f"{self.path}: is not empty (it holds {name}) and not the folder of a sweep (there is no {MARKER});"
                    " choose an empty or a new one with --out"
                )
            return
        name = self.read()["name"]
        if name != plan.name:
            raise SweepError(
                f"{self.path}: holds the sweep {name!r}, and this one is {plan.name!r}; choose another --out,"
                " or give the sweep that name to extend it"
            )

    def claim(self, plan: Plan) -> list[str]:
        """Writes the plan; runs of an earlier plan of the same sweep stay listed.

        Returns:
            Notices for the user: the program has changed since; ended runs are scored by the metric of this plan.

        Raises:
            SweepError: the folder is something else.
            FileError: it cannot be written.
        """
        self.check(plan)
        make_directory(self.path)
        # The runs of this plan in its order, then the runs that only earlier plans had.
        entries: dict[str, dict[str, Any]] = {}
        for run in plan.runs:
            case = {"case": run.case} if run.case else {}
            entries[run.id] = {"id": run.id, "config": run.config.as_json(), **case}
        if self.marker.exists():
            for entry in self.read()["runs"]:
                entries.setdefault(entry["id"], entry)
        content = {
            "layout": LAYOUT,
            "name": plan.name,
            "description": plan.description,
            "varying": list(plan.varying),
            "runs": list(entries.values()),
        }
        if plan.program and plan.metric:
            program = plan.program.program
            metric = plan.metric.as_json()
            content |= {"program": program.text, "source": program.source(), "metric": metric}
        content |= {"answered_in": plan.answered_in} if plan.answered_in else {}
        earlier = self.read() if self.marker.exists() else content
        if not self.marker.exists() or earlier != content:  # unchanged content keeps the file's time
            write_json(self.marker, content)
        notices = list(_changes(earlier, content))
        if plan.metric:
            count = sum(self._rescore(run, plan.metric) for run in plan.runs if self.has_ended(run))
            notices += [f"{count} runs that had ended are scored by {plan.metric.name} now"] * bool(count)
        return notices

    def _rescore(self, run: Run, metric: Metric) -> bool:
        """Scores a run that has ended by another metric; returns False if the metric is the same as before."""
        result = self.result(run)
        values = result.values if isinstance(result, ProgramResult) else {}
        if isinstance(result, ProgramResult) and result.metric == metric:
            return False
        value = values.get(metric.name)
        if value is None and result.status == "done":
            raise SweepError(
                f"{self.run_path(run)}: has returned {', '.join(values) or 'nothing'}, and no finite {metric.name},"
                " which this sweep is scored by; choose another --out, or another metric"
            )
        score = metric.score(None if result.status == "crashed" else value)
        scored = ProgramResult(result.status, score, result.step, result.crash, values, metric)
        write_json(self.files(run).result, scored.as_json())
        return True

    def state(self, run: Run) -> State:
        """Returns the state of a run, from its folder only; a run that somebody works on is also ``waiting``."""
        return self.files(run).outcome().state

    def has_ended(self, run: Run) -> bool:
        """Whether a run has a result that can be read: it was done, or has crashed."""
        return self.state(run) in ("done", "crashed")

    def have_ended(self, runs: Iterable[Run]) -> bool:
        """Whether each of these runs has a result that can be read."""
        return all(map(self.has_ended, runs))

    def damage(self, run: Run) -> str:
        """The reason that the result of a run cannot be read; empty if it can, or does not exist."""
        try:
            self.files(run).read_result()
        except FileError as error:
            return str(error)
        return ""

    def result(self, run: Run) -> AnyResult:
        """Reads the result of an ended run.

        Raises:
            SweepError: it has not.
            FileError: its result is damaged.
        """
        result = self.files(run).read_result()
        if result is None:
            raise SweepError(f"{self.run_path(run)}: has no result; run the sweep again")
        return result

    def record_failure(self, run: Run, reason: str) -> None:
        """Writes the reason why a run has failed into its folder."""
        make_directory_inside(self.path / "runs", run.id)
        self.files(run).record_failure(reason)

    def files(self, run: Run) -> RunDirectory:
        """The files of one run."""
        return RunDirectory(self.run_path(run))

    def read(self) -> dict[str, Any]:
        """The content of ``sweep.json``.

        Raises:
            SweepError: it is of another version, or something else.
            FileError: it cannot be read.
        """
        content = read_json(self.marker)
        layout = content.get("layout") if isinstance(content, dict) else None
        if layout != LAYOUT:
            raise SweepError(
                f"{self.marker}: has layout {layout!r}, this version of roundoff reads {LAYOUT}; choose another --out"
            )
        assert isinstance(content, dict)
        try:
            entries = [(entry["id"], entry["config"]) for entry in content["runs"]]
            is_valid = isinstance(content["name"], str) and all(
                # The key ``steps`` of a program may have any value.
                is_name(identity) and ("program" in config or config.get("steps", 0) + 0 is not None)
                for identity, config in entries
            )
        except (KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise SweepError(f"{self.marker}: is not the plan of a sweep; it was damaged after it was written")
        return content


def _changes(earlier: dict[str, Any], current: dict[str, Any]) -> Iterator[str]:
    """Yields the changes of a program since runs of the sweep were made."""
    if "program" not in earlier or "program" not in current:
        return
    if earlier["program"] != current["program"]:
        yield f"earlier runs of this sweep are runs of {earlier['program']}, these of {current['program']}"
    elif earlier.get("source") != current["source"]:
        yield (
            f"{current['program']} has changed since the first runs of this sweep; runs that have ended are kept as"
            " they are: choose another --out to repeat them"
        )
