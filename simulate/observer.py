"""Watching a simulation: per operation, module and role, what rounding did, and where the first NaN was born."""

from __future__ import annotations

import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from roundoff.simulate.absorption import Additions, additions
from roundoff.simulate.counting import EXPONENTS, count
from roundoff.simulate.report import Birth, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from roundoff.formats import Format
    from roundoff.simulate.handling import Handling

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


_SUMS = (
    "calls", "results", "overflow", "underflow", "subnormal", "infinite", "nan", "inexact", "additions", "absorbed",
)  # fmt: skip


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
    results: int = 0
    overflow: int = 0
    underflow: int = 0
    subnormal: int = 0
    infinite: int = 0
    nan: int = 0
    inexact: int = 0
    additions: int = 0
    absorbed: int = 0
    extremes: list[float] = field(default_factory=lambda: [float("inf"), 0.0])
    histogram: np.ndarray = field(default_factory=lambda: np.zeros((4, EXPONENTS), dtype=np.int64))


class Observer:
    """Counts what a simulation does; made by ``simulate(..., observe=True)``."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._tallies: defaultdict[Place, Tally] = defaultdict(Tally)
        self._birth: Birth | None = None

    def before(self, operation: OpOverload, args: Sequence[Any]) -> Additions | None:
        """Looks at the operands of an addition before an in-place operation overwrites them."""
        return additions(operation, args)

    def rounded(self, handling: Handling, exact: torch.Tensor, x: torch.Tensor) -> None:
        """Counts what rounding did to ``exact``, of which it made ``x``."""
        place = Place(handling.role, handling.module, handling.name)
        tally = self._tallies[place]
        smallest_normal = float(getattr(handling.arithmetic.format, "smallest_normal", 0.0))
        counts = count(exact, x, smallest_normal, tally.extremes, tally.histogram)
        tally.results += counts.results
        tally.overflow += counts.overflow
        tally.underflow += counts.underflow
        tally.subnormal += counts.subnormal
        tally.infinite += counts.infinite
        tally.nan += counts.nan
        tally.inexact += counts.inexact
        if self._birth is None and (counts.nan or counts.infinite):
            self._birth = Birth(*place, _what(counts.nan, counts.overflow), _user_line())

    def after(self, handling: Handling, added: Additions | None, args: Sequence[Any], result: Any) -> None:
        """Closes the books on one call; ``added`` is what :meth:`before` gave."""
        tally = self._tallies[Place(handling.role, handling.module, handling.name)]
        tally.calls += 1
        if added is not None:
            results = args[0] if result is None else result
            number, absorbed = added.count([results] if isinstance(results, torch.Tensor) else results)
            tally.additions += number
            tally.absorbed += absorbed

    def state_dict(self) -> dict[str, Any]:
        """All counts, as plain numbers and tensors."""
        return {
            "tallies": [
                {
                    "place": list(place),
                    **{name: getattr(tally, name) for name in _SUMS},
                    "extremes": list(tally.extremes),
                    "histogram": torch.from_numpy(tally.histogram.sum(0)),
                }
                for place, tally in self._tallies.items()
            ],
            "birth": None if self._birth is None else list(self._birth),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self._tallies.clear()
        for entry in state["tallies"]:
            tally = self._tallies[Place(*entry["place"])]
            for name in _SUMS:
                setattr(tally, name, entry[name])
            tally.extremes = list(entry["extremes"])
            tally.histogram[0] = entry["histogram"].numpy()
        self._birth = None if state["birth"] is None else Birth(*state["birth"])

    def report(self) -> Report:
        """What was seen so far."""
        return Report.of(self._format, self._tallies, self._birth)


def _what(nan: int, overflow: int) -> str:
    if overflow:
        return "overflow"
    return "NaN" if nan else "infinity"


def _user_line() -> str:
    """The innermost stack line that is neither PyTorch's nor ours: ``file:line in function: source``."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_NOT_THE_USERS) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return "unknown"
