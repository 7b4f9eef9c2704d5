"""Reads records of runs: evaluations with areas under their curves, logged values, and results of observers.

:class:`Logged` reads them on first use, as tables over all runs of a folder.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from roundoff.files import parse_json
from roundoff.locks import cached_property
from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import damaged_line_warning, read_log
from roundoff.runs.result import MALFORMED

from .outcome import finite, whole

KINDS = ("eval", "eval_in", "numerics", "train")
_NO_VALUES = ("kind", "step", "id")
_NUMBERS = {int, float, bool, type(None)}


class Block(NamedTuple):
    """Points of a run, of one kind and with the same names.

    Attributes:
        kind: one of :data:`KINDS`.
        names: the names of the columns besides the step.
        places: the indices of the points among the points of the run.
        steps: the steps of the points.
        columns: the values, name by name.
    """

    kind: str
    names: tuple[str, ...]
    places: Sequence[int]
    steps: Sequence[int]
    columns: Sequence[Sequence[Any] | NDArray[Any]]


def read_records(path: Path, warnings: list[str], metric: str) -> list[Block]:
    """Reads the points of learning curves, also of quantized policies, of exponent histograms, and of training.

    Args:
        path: the path of ``metrics.jsonl``.
        warnings: gets a line for each record that is damaged.
        metric: the logged value of a program that its learning curve shows.
    """
    lines = read_log(path, warnings).split(b"\n")
    try:  # all lines at once, which is several times as fast as one by one
        written = [line for line in lines if line]
        records = parse_json(b"[%b]" % b",".join(written))
        if len(records) == len(written):
            return _group_records(records, metric)
    except MALFORMED:
        pass
    points: list[tuple[int, str, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        try:
            points += [(number, *point) for point in _points(parse_json(line), metric)] if line else []
        except MALFORMED:
            warnings.append(damaged_line_warning(path, number, len(lines)))
    return _blocks(points)


def read_evaluations(path: Path) -> Iterator[tuple[int, float]]:
    """Yields steps and returns of an agent's evaluations, which are few of the lines of ``metrics.jsonl``.

    Damaged lines are skipped without a warning: :func:`read_records` warns of them.
    """
    for line in read_log(path, []).split(b"\n"):
        if b'"eval"' in line:
            with suppress(*MALFORMED):
                points = _points(parse_json(line), "")
                yield from ((point["step"], point["return"]) for kind, point in points if kind == "eval")


def _group_records(records: list[dict[str, Any]], metric: str) -> list[Block]:
    """Makes the blocks of undamaged records; records with equal keys, as nearly all of training have, at once."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, record in enumerate(records):
        groups.setdefault((record["kind"], *record), []).append(place)
    blocks: list[Block] = []
    others: list[tuple[int, str, dict[str, Any]]] = []
    for (kind, *keys), places in groups.items():
        rows = [records[place] for place in places]
        if kind in ("train", "log") and len(rows) > 1:  # most lines of a file: column by column, not value by value
            columns = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
            if all(set(map(type, column)) <= _NUMBERS for name, column in columns.items() if name != "kind"):
                blocks += _number_blocks(kind, places, columns, metric)
                continue
        others += [(place, *point) for place, row in zip(places, rows, strict=True) for point in _points(row, metric)]
    return blocks + _blocks(others)


def _number_blocks(kind: str, places: list[int], columns: dict[str, tuple[Any, ...]], metric: str) -> Iterator[Block]:
    steps = [whole(step) for step in columns["step"]]
    numbers = {name: np.array(values, float) for name, values in columns.items() if name not in _NO_VALUES}
    if kind == "log":
        # JSON has no NaN and infinities: they are logged as null.
        numbers = {name: np.where(np.isfinite(values), values, inf) for name, values in numbers.items()}
        scores = numbers.pop(metric, None)
        if scores is not None and (scored := np.flatnonzero(scores < inf)).size:
            places_and_steps = [places[i] for i in scored], [steps[i] for i in scored]
            yield Block("eval", ("return",), *places_and_steps, [scores[scored]])
        if not numbers:
            return
    yield Block("train", tuple(numbers), places, steps, list(numbers.values()))


def _blocks(points: list[tuple[int, str, dict[str, Any]]]) -> list[Block]:
    """Groups points, each with its place and kind, by their names."""
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = {}
    for place, kind, point in points:
        groups.setdefault((kind, *point), []).append((place, point))
    blocks = []
    for (kind, *keys), members in groups.items():
        names = [name for name in keys if name != "step"]
        columns = [[point[name] for _, point in members] for name in names]
        steps = [point["step"] for _, point in members]
        blocks.append(Block(kind, tuple(names), [place for place, _ in members], steps, columns))
    return blocks


def _points(record: dict[str, Any], metric: str) -> list[tuple[str, dict[str, Any]]]:
    if record["kind"] == "eval":
        return [("eval", {"step": whole(record["step"]), "return": finite(record["return_mean"])})]
    if record["kind"] == "eval_in":
        point = {"step": whole(record["step"]), "in": str(record["in"]), "return": finite(record["return_mean"])}
        return [("eval_in", point)]
    if record["kind"] == "numerics":
        step = whole(record["step"])
        return [
            ("numerics", {"step": step, "role": role, "exponent": whole(exponent), "results": whole(results)})
            for role, counts in record.items()
            if role not in ("kind", "step")
            for exponent, results in counts["exponents"].items()
        ]
    if record["kind"] == "train":
        return [("train", {"step": whole(record["step"]), **_numeric_values(record)})]
    if record["kind"] == "log":
        return list(_program_points(record, metric))
    return []


def _program_points(record: dict[str, Any], metric: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of a program: the metric, and everything else; infinity for values that are not finite."""
    step = whole(record["step"])
    numbers = {name: value if isfinite(value) else inf for name, value in _numeric_values(record).items()}
    score = numbers.pop(metric, inf)
    if score < inf:
        yield "eval", {"step": step, "return": score}
    if numbers:
        yield "train", {"step": step, **numbers}


def _numeric_values(record: dict[str, Any]) -> dict[str, float]:
    """Returns the values of a record besides its kind and step; NaN for null (a value that is not finite)."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in record.items()
        if name not in _NO_VALUES and (value is None or isinstance(value, (int, float)))
    }


def area(curve: Iterable[tuple[float, float]]) -> float:
    """Computes the area under a learning curve over its length: a mean return, comparable with the final return.

    Args:
        curve: steps and returns of evaluations, in any order; of several at a step the last one counts.

    Returns:
        The integral by trapezoids from the first evaluation to the last, over the steps between them; NaN of fewer
        than two steps, and where it is beyond float64.
    """
    points = sorted(dict(curve).items())
    if len(points) < 2:
        return nan
    steps, returns = np.array(points, float).T
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.trapezoid(returns, (steps - steps[0]) / (steps[-1] - steps[0])))
    return mean if isfinite(mean) else nan


def areas(folders: Mapping[str, Path]) -> dict[str, float]:
    """Computes the area of each agent's run, by id; NaN if it logged fewer than two evaluations."""
    return {name: area(read_evaluations(RunDirectory(folder).metrics)) for name, folder in folders.items()}


_MOST_LOGGED = 200  # logged names in a table: each is a column with a value for every record


@final
class Logged:
    """The records of runs, read on first use: commands that compare only final scores do not need them.

    Args:
        folders: the folders of the runs, by id, in the order of the tables.
        metric: the name of the value that the learning curves of programs show.
        warnings: receives lines about damaged files that are left out, when the records are read.
        about: the folder of all runs, for warnings.
    """

    def __init__(self, folders: Mapping[str, Path], metric: str, warnings: list[str], about: Path) -> None:
        self._folders, self._metric, self._warnings, self._about = folders, metric, warnings, about

    @cached_property
    def _blocks_by_kind(self) -> dict[str, list[tuple[int, Block]]]:
        """The blocks with the number of their run, by kind."""
        blocks: dict[str, list[tuple[int, Block]]] = {kind: [] for kind in KINDS}
        collecting = gc.isenabled()
        gc.disable()  # faster: makes millions of values, none in a reference cycle
        try:
            for number, folder in enumerate(self._folders.values()):
                for block in read_records(RunDirectory(folder).metrics, self._warnings, self._metric):
                    blocks[block.kind].append((number, block))
        finally:
            if collecting:
                gc.enable()
        return blocks

    def read(self) -> None:
        """Reads the records, if they were not read before."""
        _ = self._blocks_by_kind

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
        names = sorted({name for _, block in self._blocks_by_kind["train"] for name in block.names})
        if len(names) > _MOST_LOGGED:
            self._warnings.append(
                f"{self._about}: its runs log {len(names)} values; all but the first {_MOST_LOGGED} are left out"
            )
        return self._table("train", names[:_MOST_LOGGED])

    def _table(self, kind: str, names: list[str]) -> pd.DataFrame:
        """Makes a row per point, run by run, in the order of logging; NaN if a run lacks the value."""
        blocks = self._blocks_by_kind[kind]
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
        parts = [
            block.columns[block.names.index(name)] if name in block.names else np.full(size, np.nan)
            for (_, block), size in zip(blocks, sizes, strict=True)
        ]
        return np.concatenate([np.asarray(part, object if isinstance(part[0], str) else None) for part in parts])
