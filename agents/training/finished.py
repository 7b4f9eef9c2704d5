"""The agent of a finished run, restored for an evaluation, or for an export."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..config.train_config import TrainConfig
from ..environments.parallel import EnvironmentGroup
from ..errors import RunError
from ..run.parts import check_run, make_learner, open_environments
from ..run.restored import take_over
from ..sizes import Sizes

if TYPE_CHECKING:
    from ..algorithms.learner import Learner
    from ..experience.intake import Intake


# Only this process learns and acts; some algorithms lack these keys.
_SINGLE_PROCESS = {"learners": 1, "asynchronous": False, "actors": None, "sampler_learner": None}


class FinishedAgent(NamedTuple):
    """The parts that evaluate the policy of a finished run."""

    learner: Learner
    """The learner with the final weights and the final arithmetic, on the CPU."""
    intake: Intake
    """The intake of its observations."""
    episodes: EnvironmentGroup
    """The environments of an evaluation."""


def looked_at(config: TrainConfig, episodes: int) -> TrainConfig:
    """Returns a config only for evaluating the policy of a run: one learner, on the CPU, with a small replay buffer."""
    plain: dict[str, Any] = {"native": False, "observe": False, "evaluate_in": (), "keep_networks": False}
    plain |= {"device": "cpu", "environments": 1, "environment_workers": 0, "eval_episodes": episodes}
    plain |= {name: value for name, value in _SINGLE_PROCESS.items() if name in type(config).model_fields}
    return config.model_copy(update=plain | config.soon_learning())


@contextmanager
def finished_agent(
    config: TrainConfig, step: int, weights: dict[str, Any], place: Path, *, allow_imports: Collection[str] = ()
) -> Iterator[FinishedAgent]:
    """Restores the agent of a finished run, with its environments, for the block.

    Args:
        config: from :func:`looked_at`.
        step: environment steps that the run took; they determine whether ``qat`` was on at the end.
        weights: the final weights of the run, by name.
        place: the file of the weights, for messages.
        allow_imports: see :func:`roundoff.agents.train`.

    Raises:
        RunError: the weights are another agent's, or the task cannot be made.
    """
    check_run(config, allow_imports)
    with open_environments(config, lambda: None, allow_imports) as environments:
        learner, intake = learner_with(weights, config, step, environments, place)
        yield FinishedAgent(learner, intake, environments.groups[-1])


def learner_with(
    weights: dict[str, Any], config: TrainConfig, step: int, sizes: Sizes, place: Path
) -> tuple[Learner, Intake]:
    """Returns the learner of a finished run, see :func:`finished_agent`, and its intake of observations.

    Raises:
        RunError: the weights are another agent's.
    """
    try:
        learner, recorder = make_learner(config, sizes, torch.device("cpu"))
    except (RuntimeError, MemoryError, OverflowError) as error:  # Damaged sizes may need more memory than there is.
        raise RunError(f"{place}: the agent of its sizes cannot be made ({error})") from error
    take_over(weights, learner.weights(), str(place))
    learner.be_quantized(quantized=config.is_quantized(step))
    learner.acted = max(0, step // config.action_repeat - config.steps_before_learning)
    return learner, recorder.intake
