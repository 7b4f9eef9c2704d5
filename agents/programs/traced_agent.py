"""The updates of an agent that learns from states as functions of tensors: what is traced and compiled of it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from ..optimizers.kahan_momentum import KahanEMA, PlainEMA

if TYPE_CHECKING:
    from torch import Tensor

    from ..algorithms.sac import SAC, Metrics
    from ..experience.replay import Replay

_OPTIMIZERS = ("actor", "critic", "temperature")


@final
class TracedAgent:
    """An agent as programs see it: tensors, which they change, and functions of such tensors.

    Args:
        agent: as it is, new or resumed.
        replay: whose batches it is updated with; for their layout.

    Attributes:
        agent: the same.
        tensors: all that an update reads and writes, and hyper-parameters that are data to programs.
    """

    def __init__(self, agent: SAC, replay: Replay) -> None:
        self.agent = agent
        self._as_batch = replay.as_batch
        average = agent.target_average
        assert isinstance(average, (KahanEMA, PlainEMA))
        number = agent.log_temperature.new_tensor
        self.tensors: dict[str, Any] = {
            **{name: getattr(agent, f"{name}_optimizer").tensors for name in _OPTIMIZERS},
            "target": average.tensors,
            "threshold": number(agent.policy.softplus_threshold),
            "discount": number(agent.discount),
        }

    def update_critic(self, tensors: dict[str, Any], rows: Tensor, noise: Tensor) -> Metrics:
        """As ``agent.update_critic``, on ``tensors`` in place of the agent's."""
        return self._made_of(tensors).update_critic(self._as_batch(rows), noise)

    def update_actor_and_temperature(self, tensors: dict[str, Any], rows: Tensor, noise: Tensor) -> Metrics:
        """As ``agent.update_actor_and_temperature``, likewise."""
        return self._made_of(tensors).update_actor_and_temperature(self._as_batch(rows), noise)

    def update_target(self, tensors: dict[str, Any]) -> None:
        """As ``agent.update_target``, likewise."""
        self._made_of(tensors).update_target()

    def _made_of(self, tensors: dict[str, Any]) -> SAC:
        agent = copy(self.agent)
        agent.compiled = None
        # Where this runs eagerly, the parameters are the agent's own, and must not be left with other gradients.
        own = {name: {**tensors[name], "parameters": tensors[name]["parameters"].detach()} for name in _OPTIMIZERS}
        tensors = tensors | own
        for name in _OPTIMIZERS:
            setattr(agent, f"{name}_optimizer", getattr(agent, f"{name}_optimizer").bound_to(tensors[name]))
        agent.actor = agent.actor.bound_to(tensors["actor"]["parameters"])
        agent.critic = agent.critic.bound_to(tensors["critic"]["parameters"])
        agent.log_temperature = tensors["temperature"]["parameters"]
        agent.policy = replace(agent.policy, softplus_threshold=tensors["threshold"])
        agent.discount = tensors["discount"]
        average = self.agent.target_average
        assert isinstance(average, (KahanEMA, PlainEMA))
        agent.target_average = average.bound_to(tensors["target"])
        agent.target = agent.critic.views(agent.target_average.average)
        return agent
