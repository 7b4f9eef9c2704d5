"""The observer of a simulation: counts the effects of rounding by operation, module and role; finds the first NaN."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import torch

from roundoff.locks import new_lock

from ...formats import Format, Rounding
from ..presence.user_code import here
from .absorption import Additions, additions
from .cancellation import Cancellations, is_difference
from .counting import Counter
from .first_non_finite import FirstNonFinite, FirstNonFiniteOnDevice, Origin
from .integers import unrepresented
from .report import Birth, Report, Tally
from .sources import find_constant, find_source
from .stopped import StoppedSums
from .watcher import Call, Place, Watcher


class Observer(Watcher):
    """Counts the effects of rounding in a simulation; made by ``simulate(..., observe=True)``."""

    sees_roundings = True

    def __init__(self, format: Format) -> None:
        self._format = format
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._non_finite = FirstNonFinite()
        self._non_finite_on_device = FirstNonFiniteOnDevice()
        self._stopped, self._cancelled = StoppedSums(), Cancellations()
        self._lock = new_lock()  # threads may share a simulation, and the counting loops release Python's lock

    def before(self, call: Call) -> Additions | None:
        """Looks at operands before an in-place operation overwrites them."""
        if call.operation is not None and is_difference(call.operation):
            with self._lock:
                self._cancelled.note(call)
        _writing.old_nonfinite, _writing.origin = self._non_finite.before(call), None
        return None if call.operation is None else additions(call.operation, call.args)

    def rounded(self, call: Call, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Counts the effects of rounding ``exact`` to ``x``, unless these are tensors without data (meta)."""
        if x.is_meta:
            return
        with self._lock:
            counters = self._tallies[call.place].counters
            key = x.dtype, call.format
            counter = counters.get(key)
            if counter is None:
                counter = counters[key] = Counter(x.dtype, call.format.smallest_normal or 0.0)
            if not x.is_cpu:
                counts = counter.count_on_device(exact, x)
                if counts is not None and self._non_finite.first is None:
                    operands = find_source(call, old_nonfinite=_writing.old_nonfinite)
                    self._non_finite_on_device.note(counts, call.place, here(), operands, find_constant(call, exact, x))
                return
            counter.count(exact, x)
            if not self._non_finite.is_final and counter.saw_nonfinite():
                origin = self._non_finite.find_origin(call, exact, x, old_nonfinite=_writing.old_nonfinite)
                _writing.origin = origin or _writing.origin

    def after(self, call: Call, token: Additions | None, result: Any) -> None:
        """Counts one call, and the additions that changed nothing."""
        counts: list[tuple[Any, Any]] = []
        if token is not None:
            result_tensors = call.args[0] if result is None else result  # operations on lists in place return None
            results = [result_tensors] if isinstance(result_tensors, torch.Tensor) else result_tensors
            counts = token.counts(results)
        with self._lock:
            self._non_finite.after(call, result, _writing.origin)
            tally = self._tallies[call.place]
            tally.calls += 1
            if call.whole:
                tally.unrounded += unrepresented(result, call.format)
            for added, absorbed in counts:
                tally.additions += added
                tally.absorbed += absorbed
            if token is not None and token.in_place and call.rounding is not Rounding.STOCHASTIC:  # right on average
                self._stopped.note(call.place, results, counts)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Follows values that are not finite into a tensor of another dtype."""
        with self._lock:
            self._non_finite.carried(source, target)

    def state_dict(self) -> dict[str, Any]:
        """Returns all counts, as plain numbers and tensors."""
        self._fetch()
        return {
            "tallies": [
                {"place": list(place), **tally.sums(), "extremes": list(tally.extremes())}
                | {"histogram": torch.from_numpy(tally.histogram())}
                for place, tally in self._tallies.items()
            ],
            "birth": None if self._non_finite.first is None else list(self._non_finite.first),
            "birth_is_final": self._non_finite.is_final,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the counts that :meth:`state_dict` returned."""
        self._tallies.clear()
        self._non_finite_on_device = FirstNonFiniteOnDevice()
        for entry in state["tallies"]:
            self._tallies[Place(*entry["place"])] = Tally(earlier=entry)
        self._non_finite = FirstNonFinite()
        birth = None if state["birth"] is None else Birth(*state["birth"])
        self._non_finite.load(birth, is_final=state.get("birth_is_final", birth is not None))

    def report(self) -> Report:
        """Returns the report of everything seen so far."""
        self._fetch()
        non_finite = self._non_finite
        lines = self._stopped.lines(), self._cancelled.lines()
        return Report.of(self._format, self._tallies, non_finite.first, non_finite.supplied, *lines)

    def _fetch(self) -> None:
        """Adds the counts of devices to those in the processor's memory."""
        for tally in self._tallies.values():
            tally.fetch()
        if self._non_finite.first is None and not self._non_finite.is_final:
            birth, supplied = self._non_finite_on_device.read()
            self._non_finite.load(birth, is_final=False)
            for supplied_birth in supplied:
                self._non_finite.add_supplied(supplied_birth)


class _Writing(threading.local):
    """The state of the operation that a thread runs: its overwritten memory and the origin of its results."""

    old_nonfinite: bool | torch.Tensor = False
    """Whether an overwritten value was not finite."""
    origin: Origin | None = None
    """The origin of its results that are not finite."""


_writing = _Writing()
