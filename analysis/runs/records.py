"""Records of runs: evaluations with areas under their curves, logged values, and paths of observer results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roundoff.files import parse_json
from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import about_damaged_line, read_log
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
    """The points of learning curves, also quantized, of the exponent histograms and of training.

    Args:
        path: the path of ``metrics.jsonl``.
        warnings: gets a line for each record that is damaged.
        metric: the logged value of a program that its learning curve shows.
    """
    lines = read_log(path, warnings).split(b"\n")
    try:  # all at once, which is several times as fast as one by one
        written = [line for line in lines if line]
        records = parse_json(b"[%b]" % b",".join(written))
        if len(records) == len(written):
            return _alike(records, metric)
    except MALFORMED:
        pass
    points: list[tuple[int, str, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        try:
            points += [(number, *point) for point in _points(parse_json(line), metric)] if line else []
        except MALFORMED:
            warnings.append(about_damaged_line(path, number, len(lines)))
    return _blocks(points)


def read_evaluations(path: Path) -> Iterator[tuple[int, float]]:
    """Steps and returns of an agent's evaluations, which are few of the lines of ``metrics.jsonl``.

    Damaged lines are left out without a word: :func:`read_records` says it of them.
    """
    for line in read_log(path, []).split(b"\n"):
        if b'"eval"' in line:
            with suppress(*MALFORMED):
                points = _points(parse_json(line), "")
                yield from ((point["step"], point["return"]) for kind, point in points if kind == "eval")


def _alike(records: list[dict[str, Any]], metric: str) -> list[Block]:
    """The points of undamaged records; those with the same keys, as nearly all that train have, at once."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, record in enumerate(records):
        groups.setdefault((record["kind"], *record), []).append(place)
    blocks: list[Block] = []
    rest: list[tuple[int, str, dict[str, Any]]] = []
    for (kind, *keys), places in groups.items():
        rows = [records[place] for place in places]
        if kind in ("train", "log") and len(rows) > 1:
            columns = dict(zip(keys, zip(*(row.values() for row in rows), strict=True), strict=True))
            if all(set(map(type, column)) <= _NUMBERS for name, column in columns.items() if name != "kind"):
                blocks += _of_numbers(kind, places, columns, metric)
                continue
        rest += [(place, *point) for place, row in zip(places, rows, strict=True) for point in _points(row, metric)]
    return blocks + _blocks(rest)


def _of_numbers(kind: str, places: list[int], columns: dict[str, tuple[Any, ...]], metric: str) -> Iterator[Block]:
    steps = [whole(step) for step in columns["step"]]
    numbers = {name: np.array(values, float) for name, values in columns.items() if name not in _NO_VALUES}
    if kind == "log":
        numbers = {name: np.where(np.isfinite(values), values, inf) for name, values in numbers.items()}
        scores = numbers.pop(metric, None)
        if scores is not None and (scored := np.flatnonzero(scores < inf)).size:
            at = [places[one] for one in scored], [steps[one] for one in scored]
            yield Block("eval", ("return",), *at, [scores[scored]])
        if not numbers:
            return
    yield Block("train", tuple(numbers), places, steps, list(numbers.values()))


def _blocks(points: list[tuple[int, str, dict[str, Any]]]) -> list[Block]:
    """Points, each with its place and kind, those with the same names together."""
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = {}
    for place, kind, point in points:
        groups.setdefault((kind, *point), []).append((place, point))
    blocks = []
    for (kind, *keys), found in groups.items():
        names = [name for name in keys if name != "step"]
        columns = [[point[name] for _, point in found] for name in names]
        steps = [point["step"] for _, point in found]
        blocks.append(Block(kind, tuple(names), [place for place, _ in found], steps, columns))
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
        return [("train", {"step": whole(record["step"]), **_numbers(record)})]
    if record["kind"] == "log":
        return list(_logged(record, metric))
    return []


def _logged(record: dict[str, Any], metric: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of a program: the metric, and everything else; infinity for values that are not finite."""
    step = whole(record["step"])
    numbers = {name: value if isfinite(value) else inf for name, value in _numbers(record).items()}
    score = numbers.pop(metric, inf)
    if score < inf:
        yield "eval", {"step": step, "return": score}
    if numbers:
        yield "train", {"step": step, **numbers}


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Returns the values of a record besides its kind and step; NaN for null (a value that is not finite)."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in record.items()
        if name not in _NO_VALUES and (value is None or isinstance(value, (int, float)))
    }


def area(curve: Iterable[tuple[float, float]]) -> float:
    """The area under a learning curve, over its length: a mean return, comparable with the final return.

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
        found = float(np.trapezoid(returns, (steps - steps[0]) / (steps[-1] - steps[0])))
    return found if isfinite(found) else nan


def areas(folders: Mapping[str, Path]) -> dict[str, float]:
    """The area of each agent's run, by id; NaN where it logged fewer than two evaluations."""
    return {name: area(read_evaluations(RunDirectory(folder).metrics)) for name, folder in folders.items()}
