"""An agent that learns from states as compiled programs: the updates of critics, actor and targets, and acting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, final

import torch

from ...formats import FloatFormat, Rounding
from ...simulate import CompiledStep
from ...simulate.dispatch.graph_writer import FormatsAsData
from ..algorithms.sac import SAC, SoftActorCritic
from ..experience.replay import Replay
from ..models.networks import forward
from ..optimizers.adam import LONGEST_TABLE, steps_until_constant
from .traced_agent import TracedAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ...simulate import Simulation
    from ..algorithms.sac import Metrics
    from ..config.train_config import TrainConfig
    from ..experience.replay import Batch

_BASELINES = ("none", "naive", "eps")

# What compilation costs (seconds, for programs that are on disk) over what it saves of a small simulated update.
_WORTHWHILE_UPDATES = 3000


def compile_updates(
    agent: SoftActorCritic[Any, Any],
    replay: object,
    updates: int,
    *,
    wanted: bool | None,
    on_notice: Callable[[str], None] | None = None,
) -> str:
    """Compiles the updates of an agent, where that is possible and pays.

    Args:
        agent: new or resumed; its ``compiled`` is set, and its ``acting``.
        replay: its replay buffer.
        updates: how many there are to come.
        wanted: True compiles where it is possible at all, False nowhere, None where it saves time.
        on_notice: called, in words, if the compiler fails when the updates begin; they run eagerly then.

    Returns:
        What was decided, and why, in words.
    """
    reason = reason_against(agent.config)
    if reason is None and wanted is None:
        reason = reason_not_to(agent.simulation, updates)
    if reason is None and wanted is not False:
        assert isinstance(agent, SAC)
        assert isinstance(replay, Replay)
        compiled = CompiledUpdates(agent, replay, on_notice)
        if compiled.reason is None:
            agent.compiled = compiled
            compile_acting(agent, replay, on_notice)
            return "updates are compiled"
        reason = compiled.reason
    return f"updates run eagerly: {reason or 'as asked'}"


def compile_acting(agent: SAC, replay: Replay, on_notice: Callable[[str], None] | None = None) -> None:
    """Compiles the choice of actions in training, half of whose time goes by between operations."""
    policy, actor = agent.policy, agent.actor
    settings = set() if agent.simulation is None else set(agent.simulation.policy.settings("rounding"))
    if Rounding.STOCHASTIC in settings:
        return  # the noise has its random bits between those of the network and those of the action

    def sample(parameters: Tensor, observations: Tensor, noise: Tensor) -> Tensor:
        return policy.sample(forward(actor.bound_to(parameters).layers, observations)[0], noise)

    def choose_eagerly(reason: str) -> None:
        if on_notice:
            on_notice(f"actions are chosen eagerly: {reason}")

    programs = _programs_of(agent, replay)[3]
    agent.acting = CompiledStep[..., Any](sample, agent.simulation, programs, choose_eagerly, fixed=(actor.flat,))


def reason_not_to(simulation: Simulation | None, updates: int) -> str | None:
    """Why it would not save time, in words; None if it would."""
    if simulation is None:
        return "it saves little of what is not simulated"
    if updates < _WORTHWHILE_UPDATES:
        return f"it takes longer than it saves in {updates} updates"
    return None


def reason_against(config: TrainConfig) -> str | None:
    """Why the updates of such an agent cannot be compiled, in words; None if it may be possible."""
    if config.observations != "states":
        return "agents that learn from pixels are not compiled"
    if config.native:
        return "native half precision is computed by PyTorch's own kernels"
    if config.baseline not in _BASELINES:
        return f"the baseline {config.baseline} is not compiled"
    if config.device != "cpu":
        return "the compiled programs are made for the CPU"
    for key in ("adam_beta1", "adam_beta2"):
        beta = getattr(config, key)
        if steps_until_constant(beta) > LONGEST_TABLE:
            return f"{key} = {beta} is so near to 1 that the table of its bias corrections would be too long"
    return None


# Keys of a config that no update depends on.
_OF_THE_RUN = {
    "seed", "task", "steps", "seed_steps", "action_repeat", "eval_every", "eval_episodes", "checkpoint_every",
    "replay_capacity", "environments", "environment_workers", "keep_networks",
}  # fmt: skip
# Keys that are data to the programs, as formats are.
_AS_DATA = {"lr", "discount", "tau", "initial_temperature"}

_Programs = tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]
_PROGRAMS: dict[str, _Programs] = {}


def programs_of(kind: str) -> _Programs:
    """The programs of this process for a kind of agent: a worker that trains many traces each kind once."""
    return _PROGRAMS.setdefault(kind, ({}, {}, {}, {}))


def kind(config: TrainConfig, simulation: Simulation | None) -> str:
    """What the programs of an agent depend on beside the shapes of its tensors; formats are data to them."""
    relevant = {key: value for key, value in config.as_json().items() if key not in _OF_THE_RUN | _AS_DATA}
    if simulation is not None:
        relevant["products"] = simulation.products
        policy = simulation.policy
        if set(policy.settings("rounding")) == {Rounding.NEAREST_EVEN}:
            assert isinstance(policy.format, FloatFormat)
            dtype = policy.format.carrier
            relevant["format"] = [str(dtype), FormatsAsData(policy.formats(), dtype, torch.device("cpu")).kind]
        else:
            relevant["seed"] = config.seed
    return json.dumps(relevant)


def _programs_of(agent: SAC, replay: Replay) -> _Programs:
    sizes = (replay.observation_size, replay.action_size)
    return programs_of(f"{kind(agent.config, agent.simulation)}{sizes}")


@final
class CompiledUpdates:
    """Takes the updates of an agent over: the same bits, in less time.

    The programs change the agent's own tensors.

    Args:
        agent: an agent as it is, new or resumed.
        replay: whose batches it is updated with; for their layout.
        on_notice: called, in words, if the compiler fails later, when a program is first needed.

    Attributes:
        reason: why updates run eagerly, in words; None if they are compiled.
    """

    def __init__(self, agent: SAC, replay: Replay, on_notice: Callable[[str], None] | None = None) -> None:
        self.reason: str | None = None
        self._on_notice: Callable[[str], None] | None = None  # what is known from the beginning is no news
        traced = TracedAgent(agent, replay)
        programs = _programs_of(agent, replay)
        steps: list[Callable[..., Any]]
        steps = [traced.update_critic, traced.update_actor_and_temperature, traced.update_target]
        self._critic, self._actor, self._target = (
            CompiledStep[..., Any](step, agent.simulation, kept, self._run_eagerly, fixed=(traced.tensors,))
            for step, kept in zip(steps, programs[:3], strict=True)
        )
        self._on_notice = on_notice

    def update_critic(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_critic``."""
        metrics: Metrics = self._critic(batch.rows, noise)
        return metrics

    def update_actor_and_temperature(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_actor_and_temperature``."""
        metrics: Metrics = self._actor(batch.rows, noise)
        return metrics

    def update_target(self) -> None:
        """As ``agent.update_target``."""
        self._target()

    def write_back(self) -> None:
        """Nothing: the programs change the agent's own tensors."""

    def _run_eagerly(self, reason: str) -> None:
        """Says, once, that the compiler has failed."""
        if self.reason is None and self._on_notice:
            self._on_notice(f"updates run eagerly: {reason}")
        self.reason = self.reason or reason
