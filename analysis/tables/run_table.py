"""A tidy table of runs, for notebooks and scripts."""

from __future__ import annotations

import math
import warnings as python_warnings
from typing import TYPE_CHECKING

import pandas as pd

from roundoff.runs.folder import RunDirectory

from ..runs.experiment import read_experiment
from .first_failures import first_non_finite
from .summary import exponent_bits, parsed, significand_bits

if TYPE_CHECKING:
    from pathlib import Path

    from ..runs.experiment import Experiment

FIRST = (
    "run", "task", "format", "significand_bits", "exponent_bits", "bits", "seed", "status", "metric", "score", "step",
    "crash_step", "reason", "first_non_finite", "seconds",
)  # fmt: skip
"""The columns that :func:`table` always has, in this order."""

_VALUE = "value_"


def table(directory: str | Path) -> pd.DataFrame:
    """The runs in a folder as a tidy table: a row per run, ended or not, in the order of their names.

    These columns are always there, and first:

    - ``run``: name of the run's folder; ``task``: of an agent its task, of a program its function.
    - ``format``; ``significand_bits`` and ``exponent_bits`` (missing for formats that are not floats); ``bits`` per
      number, with their share of a block's scale (missing for formats that this version does not know).
    - ``seed`` (missing if the run lacks one).
    - ``status``: ``done``, ``crashed``, ``failed`` or ``waiting``.
    - ``metric``: name of the score; ``score``: missing before the end, and for crashes without a score.
    - ``step`` (the last one), ``crash_step`` and ``reason`` of a crash or failure (empty for other runs).
    - ``first_non_finite``: the first operation with a result that was not finite, of an observed run that crashed.
    - ``seconds``: that the run took; missing before the end.

    Then come the keys of the runs, alphabetically, and then the numbers that programs returned, as ``value_loss``. A
    key of a program with the name of a table's column gets a trailing ``_`` (``step_``). A key that only some runs
    of programs were given is ``default`` in the others, and null is ``none``.

    Args:
        directory: the folder of a sweep, or of runs.

    Returns:
        The table. Python warnings name damaged files that were left out.

    Raises:
        AnalysisError: the folder has no runs.
    """
    experiment = read_experiment(directory)
    for warning in experiment.warnings:
        python_warnings.warn(warning, stacklevel=2)
    runs = experiment.runs
    formats = runs["format"]
    first = pd.DataFrame(
        {
            "run": runs["id"],
            "task": runs["task"],
            "format": formats,
            "significand_bits": formats.map(significand_bits).astype("Int64"),
            "exponent_bits": formats.map(exponent_bits).astype("Int64"),
            "bits": formats.map(_bits),
            "seed": runs["seed"].astype("Int64") if "seed" in runs else pd.Series(pd.NA, runs.index, dtype="Int64"),
            "status": runs["status"],
            "metric": experiment.metric.name,
            "score": runs["return"].astype(float),
            "step": runs["step"],
            "crash_step": runs["crash_step"].astype("Int64"),
            "reason": runs["reason"],
            "first_non_finite": runs["reason"].map(first_non_finite),
            "seconds": [seconds_of(experiment, identity) for identity in runs["id"]],
        }
    )[list(FIRST)]
    keys = sorted(experiment.config_keys - {"task", "format", "seed"})
    returned = experiment.returned.set_index("id").add_prefix(_VALUE).sort_index(axis="columns")
    returned = returned.drop(columns=[name for name in returned if name in keys])  # a key has the name already
    return first.join(runs[keys]).join(returned, on="run")


def _bits(name: str) -> float:
    fmt = parsed(name)
    return math.nan if fmt is None else fmt.bits_per_number


def seconds_of(experiment: Experiment, identity: str) -> float:
    """The wall-clock time of a run, without that lost to interruptions; NaN where it has not ended, or not said it."""
    return RunDirectory(experiment.folders[identity]).seconds()
