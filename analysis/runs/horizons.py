"""Horizons that critics have learned: the mean target over the mean reward, in the last part of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from .experiment import Experiment

_LAST = 0.1  # of training
_COLUMNS = ["id", "step", "q", "episode_return"]


def learned_horizons(experiment: Experiment) -> pd.Series:
    """The horizon of each agent's values, in agent steps, by run; NaN where it cannot be told.

    A critic that is right about a reward r at every step of a task without end gives r / (1 - discount), which is a
    horizon of 1 / (1 - discount) steps. The measured one is the mean of the logged targets, ``q``, over the mean reward
    of an agent step, both in the last tenth of training. Values that still rise, and episodes that end early, make it
    smaller. It cannot be told of runs that log no ``q`` or no episodes in that tenth, nor where the two have unlike
    signs.
    """
    training = experiment.training
    found = pd.Series(np.nan, index=pd.Index(experiment.runs["id"], name="id"))
    if not set(_COLUMNS) <= set(training) or "action_repeat" not in experiment.runs:
        return found
    repeats = pd.to_numeric(experiment.runs.set_index("id")["action_repeat"], errors="coerce")
    logged = training[_COLUMNS].dropna(subset="episode_return")
    for name, rows in logged.groupby("id", sort=False):
        run = str(name)
        last = rows[rows["step"] > (1 - _LAST) * rows["step"].max()]
        before = rows["step"][rows["step"] < last["step"].min()]
        if last["q"].notna().any() and len(before):
            steps = float(last["step"].max()) - float(before.max())
            with np.errstate(all="ignore"):  # numbers near the largest one
                reward = float(last["episode_return"].sum()) * float(repeats[run]) / steps
                value = float(last["q"].mean())
            horizon = value / reward if reward else np.nan
            found[run] = horizon if np.isfinite(horizon) and horizon > 0 else np.nan
    return found
