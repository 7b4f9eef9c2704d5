"""The updates of an agent that learns from states as compiled programs: one each for critics, actor, and targets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, final

import torch

from roundoff.agents.replay import Replay
from roundoff.agents.sac import SAC, SoftActorCritic
from roundoff.agents.traced_agent import TracedAgent
from roundoff.agents.tracing import LONGEST_TABLE, steps_until_constant
from roundoff.formats import FloatFormat, Rounding
from roundoff.simulate import CompiledStep
from roundoff.simulate.graph_writer import FormatsAsData

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from roundoff.agents.config import TrainConfig
    from roundoff.agents.replay import Batch
    from roundoff.agents.sac import Metrics
    from roundoff.simulate import Simulation

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
        agent: new or resumed; its ``compiled`` is set.
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
            return "updates are compiled"
        reason = compiled.reason
    return f"updates run eagerly: {reason or 'as asked'}"


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

_Programs = tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]
_PROGRAMS: dict[str, _Programs] = {}


def programs_of(kind: str) -> _Programs:
    """The programs of this process for a kind of agent: a worker that trains many traces each kind once."""
    return _PROGRAMS.setdefault(kind, ({}, {}, {}))


def kind(config: TrainConfig, simulation: Simulation | None) -> str:
    """What the programs of an agent depend on beside the shapes of its tensors; formats are data to them."""
    relevant = {key: value for key, value in config.as_json().items() if key not in _OF_THE_RUN | _AS_DATA}
    if simulation is not None:
        policy = simulation.policy
        if set(policy.settings("rounding")) == {Rounding.NEAREST_EVEN}:
            assert isinstance(policy.format, FloatFormat)
            dtype = policy.format.carrier
            relevant["format"] = [str(dtype), FormatsAsData(policy.formats(), dtype, torch.device("cpu")).kind]
        else:
            relevant["seed"] = config.seed
    return json.dumps(relevant)


@final
class CompiledUpdates:
    """Takes the updates of an agent over: the same bits, in less time.

    The programs change the agent's tensors. What the agent keeps as Python numbers (steps, loss scales) they keep in
    tensors; :meth:`write_back` tells the agent, before it is saved or its metrics are read.

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
        self._traced = traced = TracedAgent(agent, replay)
        sizes = (replay.observation_size, replay.action_size)
        programs = programs_of(f"{kind(agent.config, agent.simulation)}{sizes}")
        self._critic = CompiledStep(traced.update_critic, agent.simulation, programs[0], self._run_eagerly)
        self._actor = CompiledStep(
            traced.update_actor_and_temperature, agent.simulation, programs[1], self._run_eagerly
        )
        self._target = CompiledStep(traced.update_target, agent.simulation, programs[2], self._run_eagerly)
        self._on_notice = on_notice

    def update_critic(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_critic``."""
        return self._critic(self._traced.tensors, batch.rows, noise)

    def update_actor_and_temperature(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_actor_and_temperature``."""
        return self._actor(self._traced.tensors, batch.rows, noise)

    def update_target(self) -> None:
        """As ``agent.update_target``."""
        self._target(self._traced.tensors)

    def write_back(self) -> None:
        """Tells the agent what its parts keep as Python numbers; waits for the device."""
        self._traced.write_back()

    def _run_eagerly(self, reason: str) -> None:
        """Says, once, that the compiler has failed."""
        if self.reason is None and self._on_notice:
            self._on_notice(f"updates run eagerly: {reason}")
        self.reason = self.reason or reason
