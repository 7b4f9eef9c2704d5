"""Areas under learning curves: the mean return over the whole of training, which sees how fast a run learned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from roundoff.runs.folder import RunDirectory

from .records import read_evaluations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def area(curve: Iterable[tuple[float, float]]) -> float:
    """The area under a learning curve, over its length: a mean return, which compares with that of the end.

    Args:
        curve: steps and returns of evaluations, in any order; of several at a step the last one counts.

    Returns:
        The integral by trapezoids from the first evaluation to the last, over the steps between them; NaN of fewer
        than two steps, and where it is beyond float64.
    """
    points = sorted(dict(curve).items())
    if len(points) < 2:
        return math.nan
    steps, returns = np.array(points, float).T
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(np.trapezoid(returns, (steps - steps[0]) / (steps[-1] - steps[0])))
    return found if math.isfinite(found) else math.nan


def areas(folders: Mapping[str, Path]) -> dict[str, float]:
    """The area of each agent's run, by id; NaN where it logged fewer than two evaluations."""
    return {name: area(read_evaluations(RunDirectory(folder).metrics)) for name, folder in folders.items()}
