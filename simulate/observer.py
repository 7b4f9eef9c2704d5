"""Watching a simulation: per operation, module and role, what rounding did, and where the first NaN was born."""

from __future__ import annotations

import threading
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from roundoff.simulate.absorption import Additions, additions
from roundoff.simulate.counting import COUNTED, EXPONENTS, Counter
from roundoff.simulate.report import Birth, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from roundoff.formats import Format
    from roundoff.simulate.handling import Handling

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Place(NamedTuple):
    """Where an operation ran."""

    role: str
    """``forward``, ``backward`` or ``optimizer``."""
    module: str
    """Path of the innermost ``torch.nn.Module`` at work, or whose operation is derived; empty outside of modules."""
    operation: str
    """The ATen operation, without overload."""


@dataclass
class Tally:
    """Sums over all calls at one place."""

    calls: int = 0
    additions: int = 0
    absorbed: int = 0
    counters: dict[torch.dtype, Counter] = field(default_factory=dict)
    # what a checkpoint brought
    earlier: dict[str, Any] = field(default_factory=dict)

    def sums(self) -> dict[str, int]:
        """All counts by name."""
        counters = self.counters.values()
        sums = {"calls": self.calls, "results": sum(counter.results for counter in counters)}
        for position, name in enumerate(COUNTED):
            sums[name] = sum(int(counter.counts[position]) for counter in counters)
        sums |= {"additions": self.additions, "absorbed": self.absorbed}
        return {name: number + self.earlier.get(name, 0) for name, number in sums.items()}

    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest magnitude; infinity and 0 if there was none."""
        seen = [*(counter.extremes for counter in self.counters.values()), self.earlier.get("extremes", (np.inf, 0.0))]
        return min(float(low) for low, _ in seen), max(float(high) for _, high in seen)

    def histogram(self) -> np.ndarray:
        """Results by exponent."""
        total = sum((counter.histogram.sum(0) for counter in self.counters.values()), np.zeros(EXPONENTS, np.int64))
        return total + self.earlier["histogram"].numpy() if self.earlier else total


class Observer:
    """Counts what a simulation does; made by ``simulate(..., observe=True)``."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._of: dict[Handling, Tally] = {}
        self._birth: Birth | None = None
        self._lock = threading.Lock()  # threads may share a simulation, and the counting loops do without Python's

    def before(self, operation: OpOverload, args: Sequence[Any]) -> Additions | None:
        """Looks at the operands of an addition before an in-place operation overwrites them."""
        return additions(operation, args)

    def rounded(self, handling: Handling, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Counts what rounding did to ``exact``, of which it made ``x``; of tensors without data (meta) nothing."""
        if x.is_meta:
            return
        with self._lock:
            counters = self._tally(handling).counters
            counter = counters.get(x.dtype)
            if counter is None:
                smallest_normal = float(getattr(handling.arithmetic.format, "smallest_normal", 0.0))
                counter = counters[x.dtype] = Counter(x.dtype, smallest_normal)
            counter.count(exact, x)
            if self._birth is None and counter.saw_nonfinite():
                what = "overflow" if counter.counts[0] else "NaN" if counter.counts[4] else "infinity"
                self._birth = Birth(handling.role, handling.module, handling.name, what, _user_line())

    def after(self, handling: Handling, added: Additions | None, args: Sequence[Any], result: Any) -> None:
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

    def _tally(self, handling: Handling) -> Tally:
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


def _user_line() -> str:
    """The innermost stack line that is neither PyTorch's nor ours: ``file:line in function: source``."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_NOT_THE_USERS) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return "unknown"
