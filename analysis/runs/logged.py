"""Tables of all values that the runs of a folder logged, read on first use."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd

from roundoff.locks import cached_property
from roundoff.runs.folder import RunDirectory

from .records import KINDS, Block, read_records

_MOST_LOGGED = 200  # names: each is a column, which every record fills


@final
class Logged:
    """The records of runs; each run costs a file, which commands that compare only final scores need not read.

    Args:
        folders: the folders of the runs, by id, in the order of the tables.
        metric: the name of the value that the learning curves of programs show.
        warnings: receives lines about damaged files that are left out, when the records are read.
        about: the folder of all, for warnings.
    """

    def __init__(self, folders: Mapping[str, Path], metric: str, warnings: list[str], about: Path) -> None:
        self._folders, self._metric, self._warnings, self._about = folders, metric, warnings, about

    @cached_property
    def _found(self) -> dict[str, list[tuple[int, Block]]]:
        """The blocks with the number of their run, by kind."""
        found: dict[str, list[tuple[int, Block]]] = {kind: [] for kind in KINDS}
        collecting = gc.isenabled()
        gc.disable()  # millions of values are made, none in a circle
        try:
            for number, folder in enumerate(self._folders.values()):
                for block in read_records(RunDirectory(folder).metrics, self._warnings, self._metric):
                    found[block.kind].append((number, block))
        finally:
            if collecting:
                gc.enable()
        return found

    def read(self) -> None:
        """Reads the records, if they were not."""
        _ = self._found

    @cached_property
    def curves(self) -> pd.DataFrame:
        """``id``, ``step`` and ``return`` of evaluations."""
        return self._table("eval", ["return"])

    @cached_property
    def exponents(self) -> pd.DataFrame:
        """``id``, ``step``, ``role``, ``exponent`` and ``results`` of observed runs."""
        return self._table("numerics", ["role", "exponent", "results"])

    @cached_property
    def quantized(self) -> pd.DataFrame:
        """``id``, ``step``, ``in`` and ``return`` of evaluations of quantized policies."""
        return self._table("eval_in", ["in", "return"])

    @cached_property
    def training(self) -> pd.DataFrame:
        """``id``, ``step``, and the numbers that runs have logged, by name."""
        names = sorted({name for _, block in self._found["train"] for name in block.names})
        if len(names) > _MOST_LOGGED:
            self._warnings.append(
                f"{self._about}: its runs log {len(names)} values; all but the first {_MOST_LOGGED} are left out"
            )
        return self._table("train", names[:_MOST_LOGGED])

    def _table(self, kind: str, names: list[str]) -> pd.DataFrame:
        """A row per point, run by run, in the order of logging; NaN if a run lacks the value."""
        blocks = self._found[kind]
        if not blocks:
            return pd.DataFrame(columns=["id", "step", *names])
        sizes = [len(block.places) for _, block in blocks]
        runs = np.repeat([number for number, _ in blocks], sizes)
        places = np.concatenate([block.places for _, block in blocks])
        order = np.lexsort((places, runs))
        ids = pd.Series(list(self._folders))
        columns = {
            "id": ids.take(runs[order]).array,
            "step": np.concatenate([block.steps for _, block in blocks])[order],
            **{name: self._column(blocks, sizes, name)[order] for name in names},
        }
        return pd.DataFrame(columns)

    def _column(self, blocks: list[tuple[int, Block]], sizes: list[int], name: str) -> np.ndarray:
        found = [
            block.columns[block.names.index(name)] if name in block.names else np.full(size, np.nan)
            for (_, block), size in zip(blocks, sizes, strict=True)
        ]
        return np.concatenate([np.asarray(part, object if isinstance(part[0], str) else None) for part in found])
