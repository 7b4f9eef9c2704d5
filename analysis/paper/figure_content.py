"""Lists the figures and tables of three papers, with their contents and the matching figures of this project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from roundoff.runs.metric import AgentMetric

from ..runs.experiment import Experiment
from ..tables.run_table import seconds_of
from ..tables.summary import records
from .measured import (
    TIME_TO_REWARD,
    Measured,
    breakdown,
    distances,
    draws,
    gradients,
    norms,
    q_distances,
    returns,
    spread,
    times_to_reward,
)
from .published import ACCELERATED, ACTORQ, QUARL
from .quantized import after_training, by_bits, by_columns, by_moment, returns_by_moment

QUANTITY = "time of 50 million steps"
_STEPS = 50e6
_TIME = AgentMetric(name="time", goal="minimize", unit="h for 50 million steps")
_WITH_LEARNERS = {"learners", "asynchronous", "environments", "batch_size"}  # keys that go with their number


def by_hours(experiment: Experiment) -> Experiment:
    """Scores each run by the hours that it would take for 50 million agent steps at its average speed.

    These are wall-clock hours, including evaluations and other work of the machine; NaN if a run is not done.
    """
    runs = experiment.runs
    seconds = runs["id"].map(lambda identity: seconds_of(experiment, identity))
    taken = runs["step"] / runs.get("action_repeat", 1)
    hours = (seconds / 3600 * _STEPS / taken).where(runs["status"] == "done")
    return replace(experiment, runs=runs.assign(**{"return": hours}), metric=_TIME)


def hours(experiment: Experiment, summary: pd.DataFrame) -> list[Measured]:
    """Lists the hours of every condition, and its speed relative to the same condition with one learner."""
    # Settings that do not vary also tell which of the paper's numbers belong to a row.
    conditions, constant = experiment.conditions, {}
    for key in sorted(experiment.config_keys):
        values = experiment.runs[key].drop_duplicates()
        if len(values) == 1:
            constant[key] = values.iloc[0]
    shared_keys = ["task", "format", *(key for key in conditions.independent if key not in _WITH_LEARNERS)]
    hours_of_one_learner: dict[tuple[str, ...], float] = {}
    rows = records(summary)
    for row in rows:
        if row.get("learners", 1) == 1:
            hours_of_one_learner[tuple(str(row[key]) for key in shared_keys)] = row["mean"]
    measured = []
    for row in rows:
        one_learner = hours_of_one_learner.get(tuple(str(row[key]) for key in shared_keys), np.nan)
        speed = one_learner / row["mean"]
        cells = {"task": row["task"], "format": row["format"], "condition": conditions.label(row)}
        cells["hours"] = "" if np.isnan(row["mean"]) else spread(row["mean"], row["std"], ".3g")
        cells["speed over one learner"] = "" if np.isnan(speed) else f"{speed:.2f}"
        measured.append(Measured(cells | {"runs": str(row["n"])}, {**constant, **row}, over_tasks=True))
    return measured


class FigureContent(NamedTuple):
    """The content of one of a paper's figures.

    Attributes:
        figure: one of ``FIGURES``, which shows the same.
        title: in words.
        finding: the conclusion of the paper, in our words.
        measured: the numbers of an experiment that belong to it.
        excluded: runs of the sweep that do not belong to it, by the values of a key.
        quantity: The quantity of the printed numbers next to the measured ones.
        rescore: gives the runs of an experiment other scores; None: they keep their returns.
    """

    figure: str
    title: str
    finding: str
    measured: Callable[[Experiment, pd.DataFrame], list[Measured]] = returns
    excluded: tuple[str, tuple[str, ...]] | None = None
    quantity: str = "return"
    rescore: Callable[[Experiment], Experiment] | None = None


NOT_OF_THE_PAPER = "The paper has no such figure."
"""The finding of a figure that no paper has."""

REPRODUCIBLE = {
    "fig1": FigureContent(
        "comparison", "SAC in fp16 with methods from supervised learning",
        "Plain fp16 always crashes; coercion, loss scaling and mixed precision do far worse than fp32.",
        excluded=("baseline", ("amp", "eps")),
    ),
    "fig2": FigureContent("curves", "Learning from states", "fp16 with all six fixes learns like fp32 on every task."),
    "fig3": FigureContent(
        "comparison", "The six fixes added one by one",
        "fp16 without fixes crashes; every fix that is added improves the return.",
    ),
    "fig4": FigureContent(
        "degradation", "Return against significand bits, five exponent bits",
        "The return falls monotonically with fewer bits, first gently, then dramatically at five.",
    ),
    "fig5": FigureContent("curves", "Learning from pixels", "On average fp16 with all fixes is close to fp32."),
    "fig6": FigureContent(
        "gradients", "Magnitudes of gradients",
        "Gradients of actor and critic span many orders of magnitude.", gradients,
    ),
    "fig7": FigureContent(
        "comparison", "One fix left out at a time", "Leaving out any one of the fixes lowers the return."
    ),
    "fig8": FigureContent(
        "comparison", "Further baselines: amp's loss scale, a larger eps of Adam", "None of them works well."
    ),
    "fig9": FigureContent(
        "comparison", "The six fixes added one by one, by task",
        "Every task needs several of the fixes; tasks differ in how many.",
    ),
    "fig10": FigureContent(
        "curves", "Learning from pixels, fp32 without weight standardization",
        "On average fp16 with all fixes is again close to fp32.",
    ),
    "fig11": FigureContent(
        "differences", "Distance between the weights of fp32 and fp16",
        "Weights differ, and the more the longer the training; more so from images.", distances,
    ),
    "fig12": FigureContent(
        "differences", "Difference between the Q values of fp32 and fp16",
        "It grows in the beginning and settles, though not at 0; it is larger from images.", q_distances,
    ),
    "table7": FigureContent(
        "hyperparameters", "Random hyper-parameters", "fp16 with all fixes is close to fp32 for every draw.", draws
    ),
    f"{ACCELERATED}fig2": FigureContent(
        "curves-environments", "Learning with many simulators",
        "Scores of A2C are largely unchanged from 16 to 512 simulators, with learning rates that grow as the root of"
        " their number; sample efficiency decays gradually.",
    ),
    f"{ACCELERATED}fig2-a3c": FigureContent(
        "curves-learners", "Learning with many asynchronous learners",
        "Learning curves of A3C are nearly indistinguishable in most cases; some degrade at the largest scales.",
    ),
    f"{ACCELERATED}fig2-ppo": FigureContent(
        "curves-environments", "Rollouts of many simulators for few steps",
        "PPO learns up to the largest scale, 512 simulators for 4 steps each.",
    ),
    f"{ACCELERATED}fig2-appo": FigureContent(
        "curves-communicate_every", "Asynchronous learners by how often they communicate",
        "In most cases the adapted versions match the performance of the baseline.",
    ),
    f"{ACCELERATED}fig3": FigureContent(
        "curves-batch_size", "Q-learning with large batches",
        "DQN learns well with batches up to 512, categorical DQN up to 2048.",
    ),
    f"{ACCELERATED}fig5": FigureContent(
        "curves", "Learning from what another agent experiences",
        "With small batches an agent keeps pace with the one of large batches that it learns from; with large batches"
        " it does not learn at all from one of small batches; with batches alike the two match (Figure 7).",
    ),
    f"{ACCELERATED}fig8": FigureContent(
        "norms", "Norms of weights, gradients and steps by batch size",
        "Larger batches have smaller gradients and larger steps. With Adam the norms of the weights lie close together"
        " at one learning rate; RMSProp needs a larger one for larger batches.",
        norms,
        quantity="norm",
    ),
    f"{ACCELERATED}table2": FigureContent(
        "comparison", "Hours of 50 million steps by the number of GPUs",
        "Eight GPUs are about six times as fast as one for A2C and categorical DQN; DQN gains less beyond two.",
        hours, quantity=QUANTITY, rescore=by_hours,
    ),
    f"{QUARL}table4": FigureContent(
        "degradation", "Policies quantized after training: fp32, fp16 and 8 bits",
        "Policies of A2C, DQN, PPO and DDPG that are quantized to 8 bits have rewards similar to full precision.",
        after_training, rescore=by_columns,
    ),
    f"{QUARL}fig7": FigureContent(
        "degradation-bits", "Policies quantized after training, from 16 to 2 bits",
        "There is a sweet spot: sometimes fewer bits outperform more. It depends on the task.",
        after_training, rescore=by_bits,
    ),
    f"{QUARL}fig5": FigureContent(
        "degradation-bits", "Quantization-aware training",
        "Generally, the performance relative to full precision is maintained until 5/6-bit quantization, after which"
        " there is a drop; at 8 bits there is none. Quantization-aware training achieves higher rewards than"
        " quantization after training, and sometimes than full precision.",
        returns_by_moment, rescore=by_moment,
    ),
    f"{ACTORQ}table2": FigureContent(
        "curves", "Time to 95 % of fp32's return with quantized actors",
        "Actors in int8 bring the learner to the same return 1.5 to 5.4 times as soon, in fp16 0.8 to 3.1 times.",
        times_to_reward, quantity=TIME_TO_REWARD,
    ),
    f"{ACTORQ}fig4": FigureContent(
        "actor-time", "Where the time of actors goes",
        "Inference takes most of it where actors pull rarely, and quantization speeds that up; where they pull often,"
        " smaller messages also do. Loading quantized weights takes longer.",
        breakdown, quantity="time of a step",
    ),
    f"{ACTORQ}fig3": FigureContent(
        "curves-pull_every", "Learning curves by how often actors pull weights",
        "How often actors pull affects convergence: it decides how stale the policies are that fill the replay buffer.",
        returns,
    ),
    f"{ACTORQ}fig4ab": FigureContent(
        "actor-time", "Few bits in what is sent, and in what is computed",
        "Where actors pull often, sending 8 bits saves up to 30 %; where they do rarely, little, since computation"
        " takes the time.",
        breakdown, quantity="time of a step",
    ),
    "bits": FigureContent("plane", "Return over exponent and significand bits", NOT_OF_THE_PAPER),
    "exponent-bits": FigureContent("degradation-exponent", "Return against exponent bits", NOT_OF_THE_PAPER),
}  # fmt: skip
"""Contents by the name of the figure or table, or by the subject where the paper has none."""
