"""The wall-clock time of a run by activity: a stopwatch, and a table with a sentence about the bottleneck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Self, final

from roundoff.files import read_json

from ..errors import FileError


@final
class Stopwatch:
    """Adds up seconds by activity. The time of a nested activity does not count for the enclosing one.

    Args:
        wait: called at the end of each activity, as part of its time. A GPU computes asynchronously; without waiting,
            its time counts for the activity that next needs a result.

    Attributes:
        seconds: the time spent, by name, in the order of first use.
        wait: the argument.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.seconds: dict[str, float] = {}
        self.wait = wait
        self._nested = 0.0  # Seconds of finished activities inside of the current one.
        self._counted = self._earlier = 0.0  # Of this process before ``_since``, and of earlier processes.
        self._since: float | None = time.perf_counter()  # None: paused.

    @property
    def total(self) -> float:
        """Wall-clock time spent on the run, without interruptions and without time spent on other runs."""
        now = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._earlier + self._counted + now

    def spent(self) -> dict[str, float]:
        """Returns the seconds by activity, and as ``other`` the rest of the total since the process began the run."""
        return {**self.seconds, "other": max(0.0, self.total - self._earlier - sum(self.seconds.values()))}

    def continue_from(self, seconds: float) -> None:
        """Continues the total from the total of an earlier process."""
        self._earlier += seconds

    def count(self, seconds: float) -> None:
        """Adds seconds that passed elsewhere to the total; negative seconds exclude time spent on other runs."""
        self._counted += seconds

    def pause(self) -> None:
        """Stops the total until :meth:`go_on`."""
        self._counted, self._since = self.total - self._earlier, None

    def go_on(self) -> None:
        """Resumes the total."""
        self._since = time.perf_counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Counts the time of the block for activity ``name``."""
        nested_before, self._nested = self._nested, 0.0
        self.seconds.setdefault(name, 0.0)
        start = time.perf_counter()
        try:
            yield
            self.wait()
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] += spent - self._nested
            self._nested = nested_before + spent  # For the enclosing activity.

    def add(self, name: str, seconds: float) -> None:
        """Counts time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


_LONGEST = 1e15  # Seconds and steps; more is damage.
_DESCRIPTIONS = {
    "environment": "the environment",
    "actions": "choosing actions",
    "actors": "waiting for actors",
    "sampler-learner": "the sampler-learner, which acts and learns",
    "copies": "copying numbers to the agent and back",
    "replay": "the replay buffer",
    "updates": "updates",
    "first update": "the first update, which is compiled or read from the disk",
    "evaluation": "evaluations",
    "library": "the library, which acts and learns",
    "logging": "writing the log",
    "checkpoints": "writing checkpoints",
    "other": "other work",
}

_ABOUT_GPU = {
    True: "The GPU was waited for after each activity, so nothing overlapped; a run without --profile is faster.",
    False: "The GPU was not waited for: its work counts where a result was next needed; `train --profile` waits.",
}


@final
@dataclass(frozen=True)
class Profile:
    """The seconds that a run has spent, by activity, since it was last started, or the sums over several runs.

    Attributes:
        seconds: by activity.
        agent_steps: the number of actions of training in this time; None: unknown.
        waited: whether the run waited for its GPU at the end of each activity; None without a GPU.
        runs: the number of runs.
    """

    seconds: Mapping[str, float]
    agent_steps: int | None
    waited: bool | None = None
    runs: int = 1

    @classmethod
    def of_all(cls, profiles: Sequence[Profile]) -> Self:
        """Adds up the profiles of several runs."""
        seconds: dict[str, float] = {}
        for profile in profiles:
            for name, value in profile.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + value
        steps = [profile.agent_steps for profile in profiles if profile.agent_steps is not None]
        on_gpu = [profile.waited for profile in profiles if profile.waited is not None]
        known = len(steps) == len(profiles)  # A sum over some of the runs would be too small.
        runs = sum(profile.runs for profile in profiles)
        return cls(seconds, sum(steps) if known else None, all(on_gpu) if on_gpu else None, runs)

    def as_json(self) -> dict[str, Any]:
        """Returns the profile's part of ``timing.json``."""
        spent = {name: round(value, 3) for name, value in self.seconds.items()}
        waited = {} if self.waited is None else {"waited_for_gpu": self.waited}
        return {"spent": spent, "agent_steps": self.agent_steps, **waited}

    def __str__(self) -> str:
        """Returns a table, largest first, a sentence about the bottleneck, and a note about the GPU."""
        total = sum(self.seconds.values())
        if not total > 0:
            return "No time was measured."
        steps = self.agent_steps or 0
        lines = [f"{'':<13} {'seconds':>10} {'share':>8}" + (f" {'ms per agent step':>19}" if steps else "")]
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        for name, seconds in [*ordered, ("together", total)]:
            per_step = f" {1000 * seconds / steps:19.3f}" if steps else ""
            lines.append(f"{name:<13} {seconds:10.2f} {100 * seconds / total:6.1f} %{per_step}")
        return "\n".join(
            [*lines, self._limit(*ordered[0], total), *([] if self.waited is None else [_ABOUT_GPU[self.waited]])]
        )

    def _limit(self, name: str, seconds: float, total: float) -> str:
        this = "this run" if self.runs == 1 else f"these {self.runs} runs"
        activity, share = _DESCRIPTIONS.get(name, name), f"{100 * seconds / total:.0f} % of the time"
        if 2 * seconds >= total:
            return f"The limit of {this} is {activity}: {share}."
        return f"No single activity limits {this}; most goes to {activity}: {share}."


def read_profile(path: Path) -> Profile:
    """Reads the profile of the last uninterrupted stretch of a run from ``timing.json``.

    Raises:
        FileError: it is missing or damaged, or lacks a profile.
    """
    timing = read_json(path)
    try:  # The file may contain any JSON.
        spent = {str(name): float(_checked_value(value, int, float)) for name, value in timing["spent"].items()}
        steps = _checked_value(timing.get("agent_steps"), int, NoneType)
        waited = _checked_value(timing.get("waited_for_gpu"), bool, NoneType)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(f"{path}: says not where a run's time has gone; it was damaged after it was written") from error
    return Profile(spent, steps, waited)


def _checked_value(value: Any, *types: type) -> Any:
    if type(value) not in types or (value is not None and not 0 <= value < _LONGEST):
        raise ValueError(value)
    return value
