"""What runs have logged, line by line: evaluations, values, and where results of observed runs lie."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from roundoff.files import parse_json, read_bytes

from .files import MALFORMED
from .outcome import finite, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_records(path: Path, warnings: list[str], metric: str) -> list[tuple[str, dict[str, Any]]]:
    """The points of learning curves, also quantized, of the exponent histograms and of training, each with its kind.

    Args:
        path: of ``metrics.jsonl``.
        warnings: gets a line for each record that is damaged.
        metric: the value among those that a program logs that its learning curve is made of.
    """
    try:
        lines = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        warnings.append(f"{path}: {error.strerror}; left out")
        return []
    try:  # all at once, which is several times as fast as one by one
        whole = [line for line in lines if line]
        records = parse_json(b"[%b]" % b",".join(whole))
        if len(records) == len(whole):
            return [point for record in records for point in _points(record, metric)]
    except MALFORMED:
        pass
    return list(_points_of_undamaged(lines, path, warnings, metric))


def _points_of_undamaged(
    lines: list[bytes], path: Path, warnings: list[str], metric: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        try:
            yield from _points(parse_json(line), metric) if line else []
        except MALFORMED:
            what = "is torn (the run was killed as it wrote)" if number == len(lines) else "is damaged"
            warnings.append(f"{path}:{number}: this line {what}; left out")


def _points(record: dict[str, Any], metric: str) -> list[tuple[str, dict[str, Any]]]:
    if record["kind"] == "eval":
        return [("eval", {"step": whole(record["step"]), "return": finite(record["return_mean"])})]
    if record["kind"] == "eval_in":
        point = {"step": whole(record["step"]), "in": str(record["in"]), "return": finite(record["return_mean"])}
        return [("eval_in", point)]
    if record["kind"] == "numerics":
        return [("numerics", point) for point in _exponents(record)]
    if record["kind"] == "train":
        return [("train", {"step": whole(record["step"]), **_numbers(record)})]
    if record["kind"] == "log":
        return list(_logged(record, metric))
    return []


def _logged(record: dict[str, Any], metric: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a program has logged: the metric, and everything else; infinity for what is not finite."""
    step = whole(record["step"])
    numbers = {name: value if isfinite(value) else inf for name, value in _numbers(record).items()}
    score = numbers.pop(metric, inf)
    if score < inf:
        yield "eval", {"step": step, "return": score}
    if numbers:
        yield "train", {"step": step, **numbers}


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """What a record holds beside its kind and step; NaN for null, which stands for what is not finite."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in record.items()
        if name not in ("kind", "step", "id") and (value is None or isinstance(value, (int, float)))
    }


def _exponents(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"step": whole(record["step"]), "role": role, "exponent": whole(exponent), "results": whole(results)}
        for role, counts in record.items()
        if role not in ("kind", "step")
        for exponent, results in counts["exponents"].items()
    ]
