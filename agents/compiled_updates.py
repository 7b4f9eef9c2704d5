"""The updates of an agent that learns from states as compiled programs: one each for critics, actor, and targets."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch

from roundoff.agents.kahan_momentum import KahanEMA, PlainEMA
from roundoff.agents.replay import Replay
from roundoff.agents.sac import SAC, SoftActorCritic
from roundoff.agents.tracing import (
    LONGEST_TABLE,
    OptimizerState,
    TracedKahanEMA,
    TracedOptimizer,
    average_state,
    steps_until_constant,
)
from roundoff.formats import Format, Rounding
from roundoff.simulate import CompiledStep
from roundoff.simulate.graph_writer import FormatsAsData

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from roundoff.agents.replay import Batch
    from roundoff.agents.sac import Metrics

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
    reason = _reason_against(agent, replay)
    if reason is None and wanted is None:
        if agent.simulation is None:
            reason = "it saves little of what is not simulated"
        elif updates < _WORTHWHILE_UPDATES:
            reason = f"it takes longer than it saves in {updates} updates"
    if reason is None and wanted is not False:
        assert isinstance(agent, SAC)
        assert isinstance(replay, Replay)
        compiled = CompiledUpdates(agent, replay, on_notice)
        if compiled.reason is None:
            agent.compiled = compiled
            return "updates are compiled"
        reason = compiled.reason
    return f"updates run eagerly: {reason or 'as asked'}"


def _reason_against(agent: SoftActorCritic[Any, Any], replay: object) -> str | None:
    """Why the updates of an agent cannot be compiled, in words; None if they can be."""
    config = agent.config
    if not isinstance(agent, SAC) or not isinstance(replay, Replay):
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

_PROGRAMS: dict[str, tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]] = {}
"""The programs of this process, by the kind of agent: a worker that trains many traces each kind once."""


def _kind(agent: SAC, replay: Replay) -> str:
    """What the programs of an agent depend on beside the shapes of its tensors; formats are data to them."""
    config = {key: value for key, value in agent.config.as_json().items() if key not in _OF_THE_RUN}
    if agent.simulation is not None:
        policy = agent.simulation.policy
        if set(policy.settings("rounding")) == {Rounding.NEAREST_EVEN}:
            formats = FormatsAsData([Format.parse(agent.config.format)], agent.dtype, agent.log_temperature.device)
            config["format"] = formats.kinds or config["format"]
        else:
            config["seed"] = agent.config.seed
    return json.dumps([config, replay.observation_size, replay.action_size])


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
        self._agent = agent
        self._as_batch = replay.as_batch
        self._optimizers = {
            name: OptimizerState(getattr(agent, f"{name}_optimizer")) for name in ("actor", "critic", "temperature")
        }
        average = agent.target_average
        assert isinstance(average, (KahanEMA, PlainEMA))
        tensors: dict[str, Any] = {name: state.tensors for name, state in self._optimizers.items()}
        tensors["target"] = average_state(average) if isinstance(average, KahanEMA) else {"average": average.average}
        threshold = torch.tensor(
            agent.policy.softplus_threshold, dtype=agent.dtype, device=agent.log_temperature.device
        )
        tensors["threshold"] = threshold
        self._tensors = tensors
        programs = _PROGRAMS.setdefault(_kind(agent, replay), ({}, {}, {}))
        self._critic = CompiledStep(self._update_critic, agent.simulation, programs[0], self._run_eagerly)
        self._actor = CompiledStep(self._update_actor_and_temperature, agent.simulation, programs[1], self._run_eagerly)
        self._target = CompiledStep(self._update_target, agent.simulation, programs[2], self._run_eagerly)
        self._on_notice = on_notice

    def update_critic(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_critic``."""
        return self._critic(self._tensors, batch.rows, noise)

    def update_actor_and_temperature(self, batch: Batch, noise: Tensor) -> Metrics:
        """As ``agent.update_actor_and_temperature``."""
        return self._actor(self._tensors, batch.rows, noise)

    def update_target(self) -> None:
        """As ``agent.update_target``."""
        self._target(self._tensors)

    def write_back(self) -> None:
        """Tells the agent what its parts keep as Python numbers; waits for the device."""
        for state in self._optimizers.values():
            state.write_back()
        if "scale" in self._tensors["target"]:
            average = self._agent.target_average
            assert isinstance(average, KahanEMA)
            average.scale = float(self._tensors["target"]["scale"])

    def _run_eagerly(self, reason: str) -> None:
        """Says, once, that the compiler has failed."""
        if self.reason is None and self._on_notice:
            self._on_notice(f"updates run eagerly: {reason}")
        self.reason = self.reason or reason

    def _update_critic(self, tensors: dict[str, Any], rows: Tensor, noise: Tensor) -> Metrics:
        return self._traced(tensors).update_critic(self._as_batch(rows), noise)

    def _update_actor_and_temperature(self, tensors: dict[str, Any], rows: Tensor, noise: Tensor) -> Metrics:
        return self._traced(tensors).update_actor_and_temperature(self._as_batch(rows), noise)

    def _update_target(self, tensors: dict[str, Any]) -> None:
        self._traced(tensors).update_target()

    def _traced(self, tensors: dict[str, Any]) -> SAC:
        """The agent, made of these tensors."""
        agent = copy(self._agent)
        agent.compiled = None
        # Where this runs eagerly, the parameters are the agent's own, and must not be left with other gradients.
        own = {name: {**tensors[name], "parameters": tensors[name]["parameters"].detach()} for name in self._optimizers}
        tensors = tensors | own
        for name in self._optimizers:
            eager = getattr(agent, f"{name}_optimizer")
            setattr(agent, f"{name}_optimizer", TracedOptimizer(eager, tensors[name]))
        agent.actor = agent.actor.bound_to(tensors["actor"]["parameters"])
        agent.critic = agent.critic.bound_to(tensors["critic"]["parameters"])
        agent.log_temperature = tensors["temperature"]["parameters"]
        agent.policy = replace(agent.policy, softplus_threshold=tensors["threshold"])
        average = copy(self._agent.target_average)
        if isinstance(average, KahanEMA):
            average = TracedKahanEMA(average, tensors["target"])
        average.average = tensors["target"]["average"]
        agent.target_average = average
        agent.target = agent.critic.views(average.average)
        return agent
