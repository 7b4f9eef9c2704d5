"""The numbers that papers print, each with its place; the figures themselves print none."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

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
    """The paper that has a figure or table, such as ``fig4`` or ``accelerated-fig2``."""
    return next(paper for prefix, paper in _PAPERS.items() if name.startswith(prefix))


class Printed(NamedTuple):
    """A number of a paper's."""

    name: str
    """The name of the figure or table, such as ``table7`` or ``accelerated-table2``."""
    quantity: str
    """The quantity and its unit."""
    unit: str
    """Empty for returns and counts."""
    where: dict[str, str]
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
    return tuple(Printed(**row, where=where) for row, where in zip(rows, settings, strict=True))
