"""Programs of others in formats and policies: their outcome, and their CPU time relative to plain PyTorch.

``python -m bench.programs`` needs the packages of ``bench/others.py``; ``python -m bench.what_runs`` writes the page.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

import roundoff
from bench.others import PROGRAMS
from bench.timing import RESULTS, interleaved, record
from roundoff.errors import RoundoffError
from roundoff.simulate import CompileWarning, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.others import Program, Training

PACKAGES = ("transformers", "stable_baselines3", "gymnasium", "scikit-learn")
COMPILED = "compiled"
TIMED = ("runs", "eager")  # what stops, or computes with NaN, has no comparable time
MODES: dict[str, dict[str, object]] = {
    "e5m10": {"policy": "e5m10"},
    "bfloat16": {"policy": "e8m7"},
    "mixed": {"policy": Policy.mixed_precision("e8m7")},
    "fp8": {"policy": Policy.fp8("tensorwise")},
    "stochastic": {"policy": "e8m7", "rounding": "stochastic"},
    "observe": {"policy": "e8m7", "observe": True},
    COMPILED: {"policy": "e8m7"},
}


@dataclass
class Outcome:
    """What became of a program: ``runs``, ``NaN``, ``refused``, ``eager`` (compiled in vain) or ``fails``; and why."""

    word: str
    why: str = ""


def simulation(mode: str, **more: object):
    """A new simulation of the mode."""
    settings = MODES[mode] | more
    return roundoff.simulate(settings.pop("policy"), **settings)


def started(program: Program, entered) -> tuple[Training, Callable[[], torch.Tensor | None]]:
    """A program begun within a context manager, and its step within it."""
    torch.manual_seed(0)
    with entered:
        training = program.begin()

    def step() -> torch.Tensor | None:
        with entered:
            return training.step(*training.batch)

    return training, step


def ready(program: Program, mode: str) -> tuple[Training, Callable[[], torch.Tensor | None]]:
    """A program begun in a mode, and its step."""
    entered = simulation(mode)
    training, step = started(program, entered)
    if mode == COMPILED:
        compiled = roundoff.compile(training.step, entered)
        return training, lambda: compiled(*training.batch)
    return training, step


def finite(program: Program, training: Training, step: Callable[[], torch.Tensor | None]) -> bool:
    """Whether all results and parameters are finite after the program's steps."""
    losses = [step() for _ in range(program.steps)]
    seen = [x for x in (*losses, *training.parameters) if x is not None]
    return all(bool(torch.isfinite(x.detach()).all()) for x in seen)


def birth(program: Program, mode: str) -> str:
    """The first operation of the program's steps with a result that is not finite; "" without one."""
    training, _ = started(program, simulation(mode, observe=False))
    entered = simulation(mode, observe=True)
    with contextlib.suppress(Exception), entered:
        finite(program, training, lambda: training.step(*training.batch))
    born = entered.report().birth
    return f"{born.what} in {born.operation} ({born.role})" if born else ""


def outcome(program: Program, mode: str) -> Outcome:
    """Runs a program in a mode."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            good = finite(program, *ready(program, mode))
        except RoundoffError as error:
            return Outcome("refused", str(error).splitlines()[0])
        except Exception as error:  # noqa: BLE001  whatever a program of others raises is a result
            if born := birth(program, mode):
                return Outcome("NaN", f"{born}; raises {type(error).__name__}")
            return Outcome("fails", f"{type(error).__name__}: {error}".splitlines()[0])
        if not good:
            return Outcome("NaN", birth(program, mode))
    vain = [str(warning.message) for warning in caught if issubclass(warning.category, CompileWarning)]
    return Outcome("eager", vain[0].splitlines()[0]) if vain else Outcome("runs")


def measured(program: Program) -> dict[str, object]:
    """One row: the outcome of each mode, and its multiple of the CPU time of plain PyTorch."""
    modes = [mode for mode in MODES if program.compiles or mode != COMPILED]
    plain = started(program, contextlib.nullcontext())
    assert finite(program, *plain), program.name
    outcomes = {mode: outcome(program, mode) for mode in modes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contestants = {mode: ready(program, mode)[1] for mode, found in outcomes.items() if found.word in TIMED}
        quick = program.steps > 1
        seconds = interleaved(
            {"plain": plain[1]} | contestants, rounds=5 if quick else 3, seconds=0.02 if quick else 0.01,
            clock=time.process_time,
        )  # fmt: skip
    row: dict[str, object] = {"program": program.name, "package": program.package, "seconds": seconds["plain"]}
    for mode, found in outcomes.items():
        slower = {"slowdown": seconds[mode] / seconds["plain"]} if mode in seconds else {}
        row[mode] = {"word": found.word, "why": found.why} | slower
        print(f"{program.name:20} {mode:12} {found.word:8} {slower.get('slowdown', 0):5.2f} {found.why}", flush=True)
    return row


def main() -> None:
    """Prints and records what runs: all, or the programs named; rows of others stay as they are."""
    chosen = [program for program in PROGRAMS if not sys.argv[1:] or program.name in sys.argv[1:]]
    missing = {program.package for program in chosen if find_spec(program.package) is None}
    if missing:
        print("bench.programs needs", ", ".join(sorted(missing)))
        return
    path = RESULTS / "programs.json"
    rows = {row["program"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for program in chosen:
        rows[program.name] = measured(program)
        record("programs", [rows[each.name] for each in PROGRAMS if each.name in rows], packages=PACKAGES)
    print("written to", path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
