"""The seconds of a run by activity, as a table and as one sentence about its bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from roundoff.files import read_json

from ..errors import FileError

_LONGEST = 1e15
_IN_WORDS = {
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
    "other": "what has no name here",
}

_ABOUT_GPU = {
    True: "The GPU was waited for after each activity, so nothing overlapped; a run without --profile is faster.",
    False: "The GPU was not waited for: its work counts where a result was next needed; `train --profile` waits.",
}


@final
@dataclass(frozen=True)
class Profile:
    """The seconds that a run has spent, by activity, since it was last begun, or the sums over several runs.

    Attributes:
        seconds: by activity.
        agent_steps: actions that environments of training have taken meanwhile; None if that is not known.
        waited: whether the run waited for its GPU at the end of each activity; None without a GPU.
        runs: the number of runs.
    """

    seconds: Mapping[str, float]
    agent_steps: int | None
    waited: bool | None = None
    runs: int = 1

    @classmethod
    def of_all(cls, profiles: Sequence[Profile]) -> Self:
        """The profile of several runs: the sums of theirs."""
        seconds: dict[str, float] = {}
        for profile in profiles:
            for name, value in profile.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + value
        steps = [profile.agent_steps for profile in profiles if profile.agent_steps is not None]
        on_gpu = [profile.waited for profile in profiles if profile.waited is not None]
        known = len(steps) == len(profiles)
        runs = sum(profile.runs for profile in profiles)
        return cls(seconds, sum(steps) if known else None, all(on_gpu) if on_gpu else None, runs)

    def as_json(self) -> dict[str, Any]:
        """Returns the profile's part of ``timing.json``."""
        spent = {name: round(value, 3) for name, value in self.seconds.items()}
        waited = {} if self.waited is None else {"waited_for_gpu": self.waited}
        return {"spent": spent, "agent_steps": self.agent_steps, **waited}

    def __str__(self) -> str:
        """The table, the largest first; what limits the run; and notes on the seconds of a GPU."""
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
        what, share = _IN_WORDS.get(name, name), f"{100 * seconds / total:.0f} % of the time"
        if 2 * seconds >= total:
            return f"What limits {this} is {what}: {share}."
        return f"Nothing alone limits {this}; most goes to {what}: {share}."


def read_profile(path: Path) -> Profile:
    """Reads the profile of the last uninterrupted stretch of a run from ``timing.json``.

    Raises:
        FileError: it is missing or damaged, or lacks a profile.
    """
    timing = read_json(path)
    try:
        spent = {str(name): _seconds(value) for name, value in timing["spent"].items()}
        steps, waited = _checked(timing.get("agent_steps"), int), _checked(timing.get("waited_for_gpu"), bool)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(f"{path}: says not where a run's time has gone; it was damaged after it was written") from error
    return Profile(spent, steps, waited)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LONGEST:
        raise ValueError(value)
    return float(value)


def _checked(value: Any, kind: type[int]) -> Any:
    if value is not None and (type(value) is not kind or not 0 <= value < _LONGEST):
        raise ValueError(value)
    return value
