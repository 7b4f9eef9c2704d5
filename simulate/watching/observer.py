"""Watching a simulation: per operation, module and role, what rounding did, and where the first NaN was born."""

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
from .sources import brought, supplied_constant
from .stopped import StoppedSums
from .watcher import Call, Place, Watcher


class Observer(Watcher):
    """Counts the effects of a simulation; made by ``simulate(..., observe=True)``."""

    sees_roundings = True

    def __init__(self, format: Format) -> None:
        self._format = format
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._found = FirstNonFinite()
        self._first_on_device = FirstNonFiniteOnDevice()
        self._stopped, self._cancelled = StoppedSums(), Cancellations()
        self._lock = new_lock()  # threads may share a simulation, and the counting loops do without Python's

    def before(self, call: Call) -> Additions | None:
        """Looks at operands before an in-place operation overwrites them."""
        if call.operation is not None and is_difference(call.operation):
            with self._lock:
                self._cancelled.note(call)
        _writing.over_others, _writing.origin = self._found.before(call), None
        return None if call.operation is None else additions(call.operation, call.args)

    def rounded(self, call: Call, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Counts the effects of rounding ``exact`` to ``x``; for tensors without data (meta) nothing."""
        if x.is_meta:
            return
        with self._lock:
            counters = self._tallies[call.place].counters
            key = x.dtype, call.format
            counter = counters.get(key)
            if counter is None:
                counter = counters[key] = Counter(x.dtype, call.format.smallest_normal or 0.0)
            if not x.is_cpu:
                counts = counter.count_there(exact, x)
                if counts is not None and self._found.first is None:
                    came = brought(call, over_others=_writing.over_others)
                    self._first_on_device.note(counts, call.place, here(), came, supplied_constant(call, exact, x))
                return
            counter.count(exact, x)
            if not self._found.is_final and counter.saw_nonfinite():
                found = self._found.look_at(call, exact, x, over_others=_writing.over_others)
                _writing.origin = found or _writing.origin

    def after(self, call: Call, token: Additions | None, result: Any) -> None:
        """Counts one call, and the additions that changed nothing."""
        counts: list[tuple[Any, Any]] = []
        if token is not None:
            written = call.args[0] if result is None else result
            results = [written] if isinstance(written, torch.Tensor) else written
            counts = token.counts(results)
        with self._lock:
            self._found.after(call, result, _writing.origin)
            tally = self._tallies[call.place]
            tally.calls += 1
            if call.whole:
                tally.unrounded += unrepresented(result, call.format)
            for number, absorbed in counts:
                tally.additions += number
                tally.absorbed += absorbed
            if token is not None and token.in_place and call.rounding is not Rounding.STOCHASTIC:  # right on average
                self._stopped.note(call.place, results, counts)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Follows values that are not finite into a tensor of another dtype."""
        with self._lock:
            self._found.carried(source, target)

    def state_dict(self) -> dict[str, Any]:
        """All counts, as plain numbers and tensors."""
        self._fetch()
        return {
            "tallies": [
                {
                    "place": list(place),
                    **tally.sums(),
                    "extremes": list(tally.extremes()),
                    "histogram": torch.from_numpy(tally.histogram()),
                }
                for place, tally in self._tallies.items()
            ],
            "birth": None if self._found.first is None else list(self._found.first),
            "birth_is_final": self._found.is_final,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self._tallies.clear()
        self._first_on_device = FirstNonFiniteOnDevice()
        for entry in state["tallies"]:
            self._tallies[Place(*entry["place"])] = Tally(earlier=entry)
        self._found = FirstNonFinite()
        birth = None if state["birth"] is None else Birth(*state["birth"])
        self._found.load(birth, is_final=state.get("birth_is_final", birth is not None))

    def report(self) -> Report:
        """Returns the report of everything seen so far."""
        self._fetch()
        found = self._found
        lines = self._stopped.found(), self._cancelled.found()
        return Report.of(self._format, self._tallies, found.first, found.given, *lines)

    def _fetch(self) -> None:
        """Takes over the counts from devices, once for each report."""
        for tally in self._tallies.values():
            tally.fetch()
        if self._found.first is None and not self._found.is_final:
            birth, given = self._first_on_device.read()
            self._found.load(birth, is_final=False)
            for one in given:
                self._found.give(one)


class _Writing(threading.local):
    """The state of the operation that a thread runs: its overwritten memory and the origin of its results."""

    over_others: bool | torch.Tensor = False
    """Whether some number there was not finite before."""
    origin: Origin | None = None
    """The origin of its results that are not finite."""


_writing = _Writing()
