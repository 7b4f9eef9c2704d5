"""Watching a simulation: per operation, module and role, what rounding did, and where the first NaN was born."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from ..presence.user_code import user_line
from .absorption import Additions, additions
from .counting import Counter
from .report import Birth, Report
from .tally import Place, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from ...formats import Format


class Observer:
    """Counts what a simulation does; made by ``simulate(..., observe=True)``."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._of: dict[Any, Tally] = {}
        self._birth: Birth | None = None
        self._lock = threading.Lock()  # threads may share a simulation, and the counting loops do without Python's

    def before(self, operation: OpOverload, args: Sequence[Any]) -> Additions | None:
        """Looks at the operands of an addition before an in-place operation overwrites them."""
        return additions(operation, args)

    def rounded(self, handling: Any, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Counts what rounding did to ``exact``, of which it made ``x``; of tensors without data (meta) nothing."""
        if x.is_meta:
            return
        with self._lock:
            counters = self._tally(handling).counters
            counter = counters.get(x.dtype)
            if counter is None:
                smallest_normal = handling.arithmetic.format.smallest_normal or 0.0
                counter = counters[x.dtype] = Counter(x.dtype, smallest_normal)
            counter.count(exact, x)
            if self._birth is None and counter.saw_nonfinite():
                what = "overflow" if counter.counts[0] else "NaN" if counter.counts[4] else "infinity"
                self._birth = Birth(handling.role, handling.module, handling.name, what, user_line())

    def after(self, handling: Any, added: Additions | None, args: Sequence[Any], result: Any) -> None:
        """Closes the books on one call; ``added`` is what :meth:`before` gave."""
        number = absorbed = 0
        if added is not None:
            results = args[0] if result is None else result
            number, absorbed = added.count([results] if isinstance(results, torch.Tensor) else results)
        with self._lock:
            tally = self._tally(handling)
            tally.calls += 1
            tally.additions += number
            tally.absorbed += absorbed

    def _tally(self, handling: Any) -> Tally:
        tally = self._of.get(handling)
        if tally is None:
            tally = self._of[handling] = self._tallies[Place(handling.role, handling.module, handling.name)]
        return tally

    def state_dict(self) -> dict[str, Any]:
        """All counts, as plain numbers and tensors."""
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
            "birth": None if self._birth is None else list(self._birth),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self._tallies.clear()
        self._of.clear()
        for entry in state["tallies"]:
            self._tallies[Place(*entry["place"])] = Tally(earlier=entry)
        self._birth = None if state["birth"] is None else Birth(*state["birth"])

    def report(self) -> Report:
        """What was seen so far."""
        return Report.of(self._format, self._tallies, self._birth)
