"""Computes the loss of return from quantizing policies, over pairs of equal episodes, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ..statistics.intervals import NO_INTERVAL, Interval
from ..statistics.means import sum_of_means

_CASE = ["algorithm", "task", "format", "condition", "in"]


def paired_interval(differences: ArrayLike) -> Interval:
    """Computes Student's interval of the mean of paired differences; NaN for fewer than two.

    Args:
        differences: the difference of each pair: of episodes of the same seed, or of means of runs of the same seed.
    """
    values = np.ravel(np.asarray(differences, dtype=float))
    if values.size < 2:
        return NO_INTERVAL
    return sum_of_means([values]).interval()


def of_run(original: Sequence[float], quantized: Sequence[float], *, crashed: bool = False) -> dict[str, Any]:
    """Computes the numbers of one policy: both mean returns, their difference, and its interval over episodes.

    Args:
        original: the return of each episode of the policy as trained.
        quantized: the returns of the quantized policy in the same episodes.
        crashed: whether the quantized policy took a non-finite action, which scores 0 in every episode.
    """
    trained = np.asarray(original, dtype=float)
    rounded = np.zeros_like(trained) if crashed else np.asarray(quantized, dtype=float)
    low, high = paired_interval(rounded - trained)
    numbers = {"original": trained.mean(), "return": rounded.mean(), "difference": (rounded - trained).mean()}
    return {**numbers, "low": low, "high": high, "episodes": trained.size, "crashed": crashed}


def over_runs(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Makes a row per algorithm, task, format, condition and quantization, over its runs, paired with themselves.

    The interval is over runs; if there is only one run, over its episodes.

    Args:
        rows: results of :func:`of_run`, with ``algorithm``, ``task``, ``format``, ``condition`` (in words) and ``in``.
    """
    rows_over_runs = []
    for _, runs in pd.DataFrame(rows).groupby(_CASE, sort=False):
        ends = paired_interval(runs["difference"]) if len(runs) > 1 else Interval(*runs[["low", "high"]].iloc[0])
        row: dict[str, Any] = {key: runs[key].iloc[0] for key in _CASE}
        row |= {key: runs[key].mean() for key in ("original", "return", "difference")}
        row |= {"low": ends.low, "high": ends.high, "runs": len(runs)}
        rows_over_runs.append(row | {key: int(runs[key].sum()) for key in ("episodes", "crashed")})
    return pd.DataFrame(rows_over_runs)


def in_words(table: pd.DataFrame) -> list[dict[str, str]]:
    """Formats the rows of :func:`over_runs` for people, without columns of equal values."""
    rows = []
    for row in table.to_dict("records"):
        cells = {key: str(row[key]) for key in _CASE[:-1] if len(set(table[key])) > 1}
        cells |= {"quantized": str(row["in"]), "as trained": f"{row['original']:.4g}", "return": f"{row['return']:.4g}"}
        cells["difference"] = f"{row['difference']:+.3g}"
        has_interval = not np.isnan(row["low"])
        cells["95 % interval"] = f"{row['low']:+.3g} to {row['high']:+.3g}" if has_interval else ""
        cells |= {"runs": str(row["runs"]), "episodes": str(row["episodes"])}
        rows.append(cells | ({"crashed": str(row["crashed"])} if table["crashed"].any() else {}))
    return rows
