"""The numbers that the paper prints, each with its place; the figures themselves print none."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

PAPER = 'Björck et al., "Low-Precision Reinforcement Learning", ICML 2021'


class Printed(NamedTuple):
    """A number of the paper's."""

    name: str
    """Of the figure or table, such as ``table7``."""
    quantity: str
    """What it is a number of."""
    unit: str
    """Empty for returns."""
    where: dict[str, str]
    """The settings it was measured with, as keys and values of a run."""
    value: str
    """As it is printed."""
    std: str
    """Its standard deviation, likewise; empty if none is printed."""
    place: str
    """Where in the paper."""

    def __str__(self) -> str:
        return f"{self.value} ± {self.std}" if self.std else self.value


@functools.cache
def published(name: str) -> tuple[Printed, ...]:
    """What the paper prints for a figure or table; none for most figures."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == name]
    settings = [dict(setting.split("=") for setting in row.pop("where").split()) for row in rows]
    return tuple(Printed(**row, where=where) for row, where in zip(rows, settings, strict=True))
