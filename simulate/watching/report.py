"""The report of an observed simulation: totals by place, a table, exponent histograms and a readable text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from roundoff.notebook import as_html

from ...formats import Format
from .cancellation import CancelledAtLine
from .counting import COUNTED, EXPONENTS, LOWEST_EXPONENT, Counter
from .stopped import StoppedAtLine
from .watcher import Place


@dataclass
class Tally:
    """The sums of counts over all calls at one place."""

    calls: int = 0
    additions: int | torch.Tensor = 0  # a tensor on another device, until it is fetched
    absorbed: int | torch.Tensor = 0
    unrounded: int = 0
    counters: dict[tuple[torch.dtype, Format], Counter] = field(default_factory=dict)
    earlier: dict[str, Any] = field(default_factory=dict)  # the sums that a checkpoint contained

    def fetch(self) -> None:
        """Adds the counts of devices, and waits for them."""
        self.additions, self.absorbed = int(self.additions), int(self.absorbed)
        for counter in self.counters.values():
            counter.fetch()

    def sums(self) -> dict[str, int]:
        """Returns all counts by name."""
        counters = self.counters.values()
        sums = {"calls": self.calls, "results": sum(counter.results for counter in counters)}
        for position, name in enumerate(COUNTED):  # over carriers and formats at this place
            sums[name] = sum(int(counter.counts[position]) for counter in counters)
        sums |= {"additions": int(self.additions), "absorbed": int(self.absorbed), "unrounded": self.unrounded}
        return {name: number + self.earlier.get(name, 0) for name, number in sums.items()}

    def extremes(self) -> tuple[float, float]:
        """Returns the smallest and the largest magnitude; infinity and 0 without any."""
        earlier = self.earlier.get("extremes", (np.inf, 0.0))
        extremes = [earlier, *(counter.extremes for counter in self.counters.values())]
        return min(float(low) for low, _ in extremes), max(float(high) for _, high in extremes)

    def histogram(self) -> np.ndarray:
        """Returns the numbers of results by exponent."""
        total = sum((counter.histogram.sum(0) for counter in self.counters.values()), np.zeros(EXPONENTS, np.int64))
        return total + self.earlier["histogram"].numpy() if self.earlier else total


_PLACE = ["role", "module", "operation"]
_COUNTS = [
    "calls", "results", "overflow", "underflow", "subnormal", "infinite", "nan", "inexact", "additions", "absorbed",
    "unrounded",
]  # fmt: skip
_MOST_LINES_SHOWN = 3  # of each kind
_SHOWN = ["overflow", "underflow", "subnormal", "nan", "absorbed"]


class Birth(NamedTuple):
    """The place where the first result appeared that was not finite."""

    role: str
    module: str
    operation: str
    what: str
    """``overflow``, ``infinity`` (as from a division by zero) or ``NaN``."""
    line: str
    """The caller's own stack line; in the backward pass, the line of the call to backward."""

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"first non-finite result: {self.what} in {self.operation} ({self.role}{where})\n  at {self.line}"


@dataclass(frozen=True)
class Report:
    """A snapshot of the observations of a simulation; ``print`` it, or take its tables.

    Attributes:
        format: name of the format.
        table: one row per role, module and operation; counts of elements (``calls``: of operations), and the
            ``smallest`` and ``largest`` finite magnitude other than zero, NaN if none exists. ``unrounded`` counts
            integers that were left unrounded although the format does not represent them.
        histogram: one row per role and exponent k: the number of results with a magnitude in [2^k, 2^(k+1)).
        birth: Place of the first non-finite result of finite operands; None if none occurred. If a value that is not
            finite reached a parameter, or was read, it is the result that this value follows from.
        given: Places where the program supplied values that are not finite or beyond the range of the format, the first
            few: constants such as masks of -inf, or data; ``what`` is the number, or ``among its operands``.
        stopped: sums in place that rounding has stopped: moving averages, moments or weights; since the process began.
        cancelled: lines where at least a quarter of the differences of two rounded values are below an ulp of these
            values, such as errors of critics; since the process began.
    """

    format: str
    table: pd.DataFrame
    histogram: pd.DataFrame
    birth: Birth | None
    given: tuple[Birth, ...] = ()
    stopped: tuple[StoppedAtLine, ...] = ()
    cancelled: tuple[CancelledAtLine, ...] = ()

    @staticmethod
    def of(
        format: Format, tallies: Mapping[Place, Tally], birth: Birth | None, given: Iterable[Birth] = (),
        stopped: Iterable[StoppedAtLine] = (), cancelled: Iterable[CancelledAtLine] = (),
    ) -> Report:  # fmt: skip
        """Collects the tallies of an observer."""
        rows = []
        bins: dict[str, np.ndarray] = {}
        for place, tally in tallies.items():
            sums, extremes = tally.sums(), tally.extremes()
            magnitudes = extremes if extremes[1] > 0 else (np.nan, np.nan)  # all results were zero or not finite
            rows.append((*place, *(sums[name] for name in _COUNTS), *magnitudes))
            bins[place.role] = bins.get(place.role, np.zeros(EXPONENTS, dtype=np.int64)) + tally.histogram()
        table = pd.DataFrame(rows, columns=[*_PLACE, *_COUNTS, "smallest", "largest"])
        filled = [(role, int(k) + LOWEST_EXPONENT, int(n[k])) for role, n in bins.items() for k in np.flatnonzero(n)]
        histogram = pd.DataFrame(filled, columns=["role", "exponent", "results"])
        table = table.sort_values(_PLACE, ignore_index=True)
        return Report(str(format), table, histogram, birth, tuple(given), tuple(stopped), tuple(cancelled))

    def __str__(self) -> str:
        worst = self._worst()
        return "\n".join([*self._lines(), *([worst.to_string(index=False)] if len(worst) else [])])

    def _repr_html_(self) -> str:
        """Returns the report as HTML, for notebooks."""
        worst = self._worst()
        return as_html(*self._lines(), *([worst] if len(worst) else []))

    def _lines(self) -> list[str]:
        total = self.table[_COUNTS].sum()
        lines = [
            f"{self.format}: {total['results']} results of {total['calls']} operations; "
            + ", ".join(f"{total[name]} {name}" for name in _SHOWN)
        ]
        if self.birth is not None:
            lines.append(str(self.birth))
        if self.given:
            places = "; ".join(f"{birth.what} in {birth.operation} at {birth.line}" for birth in self.given)
            lines.append(f"not finite as passed in by the program: {places}")
        if total["unrounded"]:
            lines.append(
                f"{total['unrounded']} integers that {self.format} does not represent were left unrounded;"
                ' whole="rounded" rounds integers like data'
            )
        for name, rows in (("stopped", self.stopped), ("cancelled", self.cancelled)):
            lines += map(str, rows[:_MOST_LINES_SHOWN])
            if len(rows) > _MOST_LINES_SHOWN:
                lines.append(f"and {len(rows) - _MOST_LINES_SHOWN} further lines: report.{name}")
        return lines

    def _worst(self) -> pd.DataFrame:
        """Returns the row of the first non-finite result, then those with most overflow, underflow and absorption."""
        counts = self.table[["overflow", "underflow", "absorbed"]]  # subnormals and inexact results are usual
        trouble = counts.sum(axis=1)
        # The birthplace comes first; without one the column is false everywhere.
        is_birthplace = (self.table[_PLACE].apply(tuple, axis=1) == self.birth[:3]) if self.birth else trouble < 0
        rows = self.table.assign(trouble=trouble, born=is_birthplace)[(trouble > 0) | is_birthplace]
        worst = rows.sort_values(["born", "trouble"], ascending=False, kind="stable").head(20)
        return worst[[*_PLACE, "results", *_SHOWN, "smallest", "largest"]]
