"""Reads the numbers that papers print, each with its place, and makes pages of tables that no sweep repeats.

Most of these tables are of time and memory. Figures print no numbers.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

from ..tables.markdown import table

ACCELERATED = "accelerated-"
"""Prefix of the names of the second paper's figures and tables."""
QUARL, ACTORQ = "quarl-", "actorq-"
"""Prefixes of the third paper's: policies quantized after and during training, and actors."""

_THIRD = 'Lam et al., "ActorQ: Quantization for Actor-Learner Distributed Reinforcement Learning", 2021'
_PAPERS = {
    ACCELERATED: 'Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", 2018',
    QUARL: _THIRD,
    ACTORQ: _THIRD,
    "": 'Björck et al., "Low-Precision Reinforcement Learning", ICML 2021',
}


def paper_of(name: str) -> str:
    """Returns the paper that has a figure or table, such as ``fig4`` or ``accelerated-fig2``."""
    return next(paper for prefix, paper in _PAPERS.items() if name.startswith(prefix))


class Printed(NamedTuple):
    """A number that a paper prints."""

    name: str
    """The name of the figure or table, such as ``table7`` or ``accelerated-table2``."""
    quantity: str
    """The quantity and its unit."""
    unit: str
    """Empty for returns and counts."""
    settings: dict[str, str]
    """The settings it was measured with, as keys and values of a run."""
    value: str
    """The number as it is printed."""
    std: str
    """The number's standard deviation, as it is printed; empty if none is."""
    place: str
    """The place of the number in the paper."""

    def __str__(self) -> str:
        return f"{self.value} ± {self.std}" if self.std else self.value


@functools.cache
def published(name: str) -> tuple[Printed, ...]:
    """Returns the values that a paper prints for a figure or table; none for most figures."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == name]
    settings = [dict(setting.split("=") for setting in row.pop("where").split()) for row in rows]
    return tuple(Printed(**row, settings=setting) for row, setting in zip(rows, settings, strict=True))


class PrintedTable(NamedTuple):
    """The form of a table of a paper.

    Attributes:
        columns: the setting that has a column for each of its values.
        machine: the machine, in words; empty if it does not matter.
        measuring: text on how a checkout measures the same, and its limits.
        quotient: two columns; a further column shows the first over the second.
        gain: whether further columns show the numbers over the first row's.
    """

    columns: str
    machine: str
    measuring: str
    quotient: tuple[str, str] | None = None
    gain: bool = False


_ON_STATES = (
    "In a checkout, `python -m bench.update` measures this on a machine with a GPU: fp32 and native fp16 in these"
    " sizes, 500 updates after 500 warm ones, by events of the device, and the peak of memory. Without a GPU it"
    " measures the time of two sizes on one thread of the CPU."
)
_ON_PIXELS = (
    "In a checkout, `python -m bench.pixels` measures something else, the time of simulated against plain arithmetic on"
    " one thread of the CPU, in smaller sizes. Native fp16 in these sizes is not measured."
)
_SAMPLING = (
    "In a checkout, `python -m bench.sampling` measures steps per second by environments per core on the CPU, and"
    " compares the gain of 16 per core over 2 with the gain in this table."
)
_SCORES = "Nothing here measures this: 49 games, 25 or 50 million steps of each."
_FORMATS = ("fp32", "fp16")
_V100 = " on a Tesla V100"

PERFORMANCE = {
    "table2": PrintedTable("format", _V100, _ON_PIXELS, quotient=_FORMATS),
    "table3": PrintedTable("format", _V100, _ON_PIXELS, quotient=_FORMATS),
    "table10": PrintedTable("format", _V100, _ON_STATES, quotient=_FORMATS),
    "table11": PrintedTable("format", _V100, _ON_STATES, quotient=_FORMATS),
    "accelerated-table1": PrintedTable("of", "", _SCORES),
    "accelerated-table3": PrintedTable("of", " on a DGX-1", _SAMPLING, gain=True),
}
"""The printed tables by name."""


def performance_page(name: str) -> str:
    """Writes the paper's numbers of a table of :data:`PERFORMANCE`, and how to measure them here, in Markdown."""
    form, numbers = PERFORMANCE[name], published(name)
    by_row: dict[str, dict[str, str]] = {}
    for number in numbers:
        row = ", ".join(f"{key} {value}" for key, value in number.settings.items() if key != form.columns)
        by_row.setdefault(row, {})[number.settings[form.columns]] = number.value
    first = next(iter(by_row.values()))
    rows = [{"size": row, **cells, **_ratios(form, cells, first)} for row, cells in by_row.items()]
    unit = f" ({numbers[0].unit})" if numbers[0].unit else ""
    place = numbers[0].place.partition(",")[0]
    heading = f"{numbers[0].quantity.capitalize()}{unit}{form.machine}, as printed in {place} of {paper_of(name)}"
    return f"# {name}\n\n{heading}:\n\n{table(rows)}\n\n{form.measuring}"


def _ratios(form: PrintedTable, cells: dict[str, str], first: dict[str, str]) -> dict[str, str]:
    ratios = {}
    if form.quotient:
        numerator, denominator = form.quotient
        ratios[f"{numerator} / {denominator}"] = f"{float(cells[numerator]) / float(cells[denominator]):.2f}"
    if form.gain:
        ratios |= {f"{key}, gain": f"{float(value) / float(first[key]):.2f}" for key, value in cells.items()}
    return ratios
