"""Lists the private names of PyTorch that are used here: the purpose of each, and the effect of its absence.

A version of PyTorch may drop or change any of them. The imports are made where the names are used, since some take
seconds; ``private_names.csv`` lists all of them, and a test compares it with the sources. Three other things depend on
the version:

-  (``simulate/aten/tables.py``, ``simulate/composites/``, ``simulate/rounded_once/``,
  ``simulate/compiling/graphs/written_operations.py``). An operation that no table has is run by its kernel, and its
  results are rounded, which is right for every new operation that computes; a name that a version lacks is passed over;
- the C++ of plain operations (``simulate/native/``), compiled against PyTorch's headers. Where that fails, operations
  run in Python, with the same bits, and a warning says so;
- the bits of the kernels in PyTorch. Accumulators and exact results do not depend on them, and all else does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

FORMATS, SIMULATIONS, COMPILED, AGENTS = "formats", "simulations", "compiled steps", "agents"


class PrivateName(NamedTuple):
    """The use of one name, or of the names that begin with it and a point: a row of ``private_names.csv``."""

    part: str
    """The part that needs it: formats, simulations, compiled steps or agents."""
    purpose: str
    without: str
    """The effect of its absence."""


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    NAMES = {row.pop("name"): PrivateName(**row) for row in csv.DictReader(_file)}


def missing_names(part: str) -> Iterator[str]:
    """Yields the names of a part that the installed version of PyTorch lacks.

    Args:
        part: formats, simulations, compiled steps or agents.
    """
    for name, use in NAMES.items():
        if use.part == part:
            try:
                resolve_name(name)
            except (ImportError, AttributeError):
                yield name
