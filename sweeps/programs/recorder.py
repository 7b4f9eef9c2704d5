"""Logs and checkpoints of a program's run."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Self, final

import numpy as np
import torch

from roundoff.files import encodable
from roundoff.runs.log import MetricsLog

from ...agents import Reporter, StopRequest, checkpoint
from ...simulate import Simulation, exact

_MOST_STEPS = 2**63  # which tables of integers can hold
# Exactly these: numpy.float64 is a float, but reading one executes something.
_PLAIN = {
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype,
    torch.device,
}  # fmt: skip
_MAPPINGS, _LISTS = {dict, OrderedDict, Counter}, {list, tuple, set}


class ProgramStopped(BaseException):  # so that a program's ``except Exception`` lets it pass
    """A program ends early on request, after saving the state that it needs to continue."""


@final
class ProgramRecorder:
    """Listens to one program; see :mod:`roundoff.current_run`.

    Args:
        reporter: the reporter of the run.
        metric: name of the value that counts.
        simulation: the simulation of the run.
        stop: once it is made, the program stops at its next checkpoint, or at its next log call if it does not save.

    Attributes:
        step: the last step that the program has logged.
        last: the last value of the metric that it has logged, if any.
        not_finite: by name, the values that were not finite when last logged, in words.
    """

    def __init__(self, reporter: Reporter, metric: str, simulation: Simulation, stop: StopRequest) -> None:
        self._reporter, self._metric, self._simulation, self._stop = reporter, metric, simulation, stop
        self._checkpoint_file = reporter.files.checkpoint
        self._state = checkpoint.load(self._checkpoint_file) if self._checkpoint_file.exists() else None
        self._log: MetricsLog | None = None
        self._has_checkpoints = self._checked = self._loading = False
        self._saved_at = time.monotonic()
        self.last: float | None = None
        self.step = 0
        self.not_finite: dict[str, str] = {}

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a record."""
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise TypeError(f"roundoff.log: step must be an integer, got {step!r}")
        if not 0 <= step < _MOST_STEPS:
            raise ValueError(f"roundoff.log: step must be 0 or more, and less than 2**63, got {step}")
        numbers = {encodable(name): number(f"roundoff.log: {name}", value) for name, value in values.items()}
        if reserved := {"kind", "step", "id"} & numbers.keys():
            raise ValueError(f"roundoff.log: no value can be called {' or '.join(sorted(reserved))}")
        self._loading = False
        self.step = int(step)
        for name, value in numbers.items():
            self.not_finite.pop(name, None)
            if not math.isfinite(value):
                self.not_finite[name] = f"{name} is {value}"
        self._open_log().write("log", self.step, numbers)
        if self._metric in numbers:
            self.last = numbers[self._metric]
            self._reporter.write_numerics(self.step)
        if self._reporter.is_due:
            finite = self.last if self.last is not None and math.isfinite(self.last) else None
            self._reporter.last_return = finite
            self._reporter.report(self.step)
        if self._stop.made and not self._has_checkpoints:
            raise ProgramStopped

    def checkpoint(self, state: Any, every: float) -> None:
        """Saves, if it is time; stops, if a stop was requested."""
        if not self._checked:  # at once, not when the first one is due
            _check_plain(state, "state")
        self._has_checkpoints = self._checked = True
        if self._loading:
            # Forgets the program's operations since it got its state, once its state equals the saved one (is loaded).
            # Copies are also operations: an observer counts them, and stochastic rounding draws bits for them.
            self._loading = False
            saved = checkpoint.load(self._checkpoint_file)  # anew: the program may have written into what it was given
            with exact():
                is_loaded = _are_equal(saved["state"], state)
            if is_loaded:
                self._continue_from(saved)
        if not self._stop.made and time.monotonic() - self._saved_at < every:
            return
        _check_plain(state, "state")
        with exact():
            self._save(state)
        self._saved_at = time.monotonic()
        if self._stop.made:
            raise ProgramStopped

    def restore(self) -> Any:
        """Returns the state that was saved last; the log is cut to its length at that time."""
        self._has_checkpoints = True
        state, self._state = self._state, None
        if state is None:
            return None
        with checkpoint.taking_over(self._checkpoint_file):
            self._open_log(state["metrics_length"], state["step"], state.get("metrics_checksum"))
            self.step, self.last, self.not_finite = state["step"], state["last"], state["not_finite"]
            self._reporter.stopwatch.continue_from(state["seconds"])
            self._continue_from(state)
            # Restored tensors that held integers remain integers.
            integers = self._simulation.whole
            for x, whole in zip(_tensors(state["state"]), state.get("whole", ()), strict=False):
                if integers is not None and whole:
                    integers.mark(x)
        self._loading = True
        return state["state"]

    def _continue_from(self, saved: dict[str, Any]) -> None:
        if self._reporter.numerics:
            self._reporter.numerics.load_state_dict(saved["numerics"])
        self._simulation.step = saved["simulation"]["step"]
        self._simulation.advance(draws=saved["simulation"]["draws"])
        _set_generators(saved["generators"])

    def finish(self) -> None:
        """Writes the remaining output."""
        log = self._open_log()
        self._reporter.write_numerics(self.step)
        self._reporter.write_table()
        log.synced_length()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the log, whatever has happened."""
        if self._log:
            self._log.__exit__(None, None, None)

    def _open_log(self, length: int = 0, step: int = 0, checksum: int | None = None) -> MetricsLog:
        """Returns the log, and opens it at the first call. Without an earlier ``restore`` it is empty."""
        if self._log is None:
            self._log = MetricsLog(self._reporter.files, length=length, step=step, checksum=checksum)
            self._reporter.log = self._log
        return self._log

    def _save(self, state: Any) -> None:
        integers, numerics = self._simulation.whole, self._reporter.numerics
        checkpoint.save(
            self._checkpoint_file,
            {
                "state": state,
                "whole": [integers is not None and x in integers for x in _tensors(state)],
                "metrics_length": self._open_log().synced_length(),
                "metrics_checksum": self._open_log().checksum,
                "step": self.step,
                "last": self.last,
                "not_finite": self.not_finite,
                "seconds": self._reporter.stopwatch.total,
                "numerics": numerics.state_dict() if numerics else None,
                "simulation": {"step": self._simulation.step, "draws": self._simulation.draws},
                "generators": _generators(),
            },
        )


def number(name: str, value: Any) -> float:
    """Converts a number, or a tensor with one element, to a float.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        with exact():
            value = value.detach().item()
    elif isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        shape = getattr(value, "shape", None)
        shown = repr(value)[:100] if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"
        raise TypeError(f"{name} must be a number, or a tensor with one, got {shown}")
    return float(value)


def _check_plain(value: Any, where: str) -> None:
    """Raises TypeError for a value that cannot be read again without executing code."""
    if type(value) in _MAPPINGS:
        for key, part in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(part, f"{where}[{key!r}]")
    elif type(value) in _LISTS:
        for i, part in enumerate(value):
            _check_plain(part, f"{where}[{i}]")
    elif type(value) not in _PLAIN:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"roundoff.checkpoint: {where} is a {kind}; a checkpoint holds tensors, Python's numbers, text, and lists,"
            " tuples and dicts of them"
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a state, in its order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in _MAPPINGS or isinstance(value, (list, tuple)):
        for part in value.values() if type(value) in _MAPPINGS else value:
            yield from _tensors(part)


def _are_equal(first: Any, second: Any) -> bool:
    """Compares two states; tensors are equal if they have the same bits, on whatever device."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        same_layout = (first.shape, first.dtype, first.layout) == (second.shape, second.dtype, second.layout)
        return same_layout and first.layout is torch.strided and torch.equal(_bytes(first), _bytes(second))
    if type(first) is not type(second):
        return False
    if type(first) in _MAPPINGS:
        return list(first) == list(second) and all(_are_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool(first == second)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _generators() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002  the one that programs without a generator use
    words = np.asarray(keys).tolist()
    states = {"python": random.getstate(), "numpy": [kind, words, *rest], "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_generators(states: dict[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002  the one that programs use
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_generators(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  the one that programs without a generator use
    torch.manual_seed(seed)
