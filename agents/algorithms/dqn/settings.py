"""The keys and logged values of DQN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator

from ...config.fields import Count, KeyRole, Panel, Positive, PositiveFloat, key, with_default
from ...config.rules import KeyRule
from ...config.value_keys import Share, ValueKeys
from ...environments.opening import check_task

_EPS_OVER_BATCH = 0.01
_OUTSIDE = KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS


class DQNConfig(ValueKeys):
    """DQN; the defaults are from the paper's Atari agent with Adam for RMSProp, at the pace of a small task.

    The paper's agent takes 50 million steps: it explores for a million, copies its target network every 10,000 updates,
    and begins to learn after 50,000 steps. Here these are 10,000, 500 and 1000, which suffice to learn CartPole.

    Source:
        Mnih et al., "Human-level control through deep reinforcement learning", Extended Data Table 1; for the
        categorical head Bellemare et al., "A Distributional Perspective on Reinforcement Learning", Section 5; for
        prioritized replay Hessel et al., "Rainbow", Table 1.
    """

    acts: ClassVar[tuple[str, ...]] = ("discrete",)
    panels: ClassVar[Mapping[str, Panel]] = {
        "q": Panel("mean Q value"),
        "critic_loss_scale": Panel("loss scale of the Q network", log=True),
        "priority": Panel("mean priority", log=True),
    }

    rules: ClassVar[tuple[KeyRule, ...]] = (
        KeyRule(lambda c: c.keep_networks, "keep_networks",
             "keep_networks is for actors and critics of continuous actions; leave it out"),
    )  # fmt: skip

    algorithm: str = key("dqn", "The algorithm. Each algorithm has its own keys.")
    task: Annotated[str, AfterValidator(check_task)] = with_default(ValueKeys, "task", "gym:CartPole-v1")
    hidden_units: Positive = with_default(ValueKeys, "hidden_units", 512)
    hidden_layers: Positive = with_default(ValueKeys, "hidden_layers", 1)
    batch_size: Positive = with_default(ValueKeys, "batch_size", 32)
    lr: PositiveFloat = with_default(ValueKeys, "lr", 2.5e-4)
    seed_steps: Count = with_default(ValueKeys, "seed_steps", 1000)
    training_intensity: PositiveFloat | None = with_default(ValueKeys, "training_intensity", 8.0)
    loss: Literal["huber", "squared"] = key(
        "huber",
        "Loss of the scalar head: `huber` clips the derivative to [-1, 1] (Mnih et al., 2015), `squared` does not.",
    )
    double: bool = key(False, "The network chooses the next action, and the target network evaluates it.")
    dueling: bool = key(
        False, "Use two last hidden layers: one for the value of a state and one for the advantages of its actions."
    )
    exploration_start: Share = key(1.0, "Initial fraction of random actions, after `seed_steps`.", _OUTSIDE)
    exploration_end: Share = key(0.1, "Final fraction of random actions.", _OUTSIDE)
    exploration_steps: Count = key(
        10_000, "Agent steps over which the fraction of random actions falls linearly from start to end.", _OUTSIDE
    )

    def share(self) -> Self:
        """Returns the keys, also with a share of the steps of decreasing exploration."""
        return super().share().with_shares_of("exploration_steps")

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``, with the eps of the categorical paper for a categorical head."""
        given = super().completed(given)
        atoms, batch_size = given.get("atoms", 1), given.get("batch_size", cls.model_fields["batch_size"].default)
        if isinstance(atoms, int) and isinstance(batch_size, int) and atoms > 1 and batch_size > 0:
            return {"adam_eps": _EPS_OVER_BATCH / batch_size, **given}
        return given


CONFIG = DQNConfig
