"""The folder of a run: whose it is, and what it holds once the run has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, Self, final

from roundoff.files import make_directory, read_json, write_json

from ..errors import FileError, RunError


@final
@dataclass(frozen=True)
class Crash:
    """When (environment steps) and why a run crashed."""

    step: int
    reason: str


@final
@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        status: ``"done"``, or ``"crashed"`` by a non-finite action.
        return_mean: mean return of the final evaluation; 0 for a crash.
        return_std: standard deviation of its episodes' returns; 0 for a crash.
        step: environment steps taken.
        crash: when and why, if it crashed.
        quantized: mean return of the final evaluation by quantization; 0 where that took a non-finite action.
        updates: how many were made, of several learners by the first; None where a library does not tell, and in the
            results of older versions.
        untrained: mean return before the first update, in runs that others are compared with: those in fp32; None
            where it was not looked at, or was not finite.
    """

    status: Literal["done", "crashed"]
    return_mean: float
    return_std: float
    step: int
    crash: Crash | None = None
    quantized: dict[str, float] = field(default_factory=dict)
    updates: int | None = None
    untrained: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns what ``result.json`` has."""
        crash = {"step": self.crash.step, "reason": self.crash.reason} if self.crash else None
        return {
            "status": self.status,
            "return": self.return_mean,
            "return_std": self.return_std,
            "step": self.step,
            "crash": crash,
            "updates": self.updates,
            **({} if self.untrained is None else {"untrained": self.untrained}),
            **({"in": self.quantized} if self.quantized else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Reads what :meth:`as_json` returned; raises KeyError, TypeError or ValueError for anything else."""
        crash = Crash(_whole(value["crash"]["step"]), str(value["crash"]["reason"])) if value["crash"] else None
        if value["status"] != ("crashed" if crash else "done"):
            raise ValueError(value["status"])
        quantized = {str(name): _real(mean) for name, mean in dict(value.get("in", {})).items()}
        numbers = _real(value["return"]), _real(value["return_std"]), _whole(value["step"])
        updates, untrained = value.get("updates"), value.get("untrained")
        known = None if updates is None else _whole(updates), None if untrained is None else _real(untrained)
        return cls(value["status"], *numbers, crash, quantized, *known)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


class Config(Protocol):
    """What a run is given."""

    def as_json(self) -> dict[str, Any]:
        """Returns what ``config.json`` has."""

    def later_keys(self) -> dict[str, Any]:
        """Keys that are left out of it at their defaults, and these, since runs existed before them."""


@final
class RunDirectory:
    """Names and meaning of the files of a run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.checkpoint = self.path / "checkpoint.pt"
        self.agent = self.path / "agent.pt"
        self.result = self.path / "result.json"
        self.numerics = self.path / "numerics.csv"
        self.timing = self.path / "timing.json"
        self.snapshots = self.path / "snapshots"
        self.learners = self.path / "learners"

    def checkpoint_of(self, learner: int, step: int) -> Path:
        """What a learner that follows another one saves with the checkpoint of a step."""
        return self.learners / f"{learner}-{step}.pt"

    def room_for_checkpoint_of(self, learner: int, step: int) -> Path:
        """Makes room for :meth:`checkpoint_of`; keeps the newest older one, which the leader's checkpoint may need."""
        make_directory(self.learners)
        for old in sorted(self.learners.glob(f"{learner}-*.pt"), key=lambda path: int(path.stem.split("-")[1]))[:-1]:
            old.unlink()
        return self.checkpoint_of(learner, step)

    def claim(self, config: Config) -> None:
        """Makes the folder the one of the run with ``config``, or checks that it is.

        Raises:
            RunError: it is another run's, or holds something else.
            FileError: it cannot be read or written.
        """
        if self.config.exists():
            self.check(config)
            return
        strangers = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        if strangers:
            raise RunError(
                f"{self.path}: holds {strangers[0]} but no config.json, so it is no run's folder;"
                " choose an empty or a new one"
            )
        write_json(self.config, {"config": config.as_json(), "version": version("roundoff")})

    def check(self, config: Config) -> None:
        """Raises RunError if the folder is the one of a run with another config, naming the keys that differ."""
        content = read_json(self.config)
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise FileError(f"{self.config}: is not the config of a run; delete the folder to start the run anew")
        check_same_config(content["config"], config, str(self.config))

    def read_result(self) -> Result | None:
        """How the run ended; None if it has not."""
        if not self.result.exists():
            return None
        try:
            return Result.from_json(read_json(self.result))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileError(f"{self.result}: is not the result of a run; delete it to repeat the run") from error


def check_same_config(found: dict[str, Any], config: Config, place: str) -> None:
    """Raises RunError naming every key in which ``found``, read from ``place``, differs from ``config``."""
    defaults = config.later_keys()
    there, here = defaults | found, defaults | config.as_json()
    differing = [
        f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]
    if differing:
        raise RunError(f"{place}: belongs to another run: {'; '.join(differing)}; choose another folder")
