"""The keys and logged values of D4PG and DDPG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ...config.fields import Count, KeyRole, NonNegativeFloat, Panel, Positive, key, with_default
from ...config.rules import KeyRule
from ...config.value_keys import ValueKeys


def _single_environment_note(config: Any) -> tuple[str] | None:
    """Returns the end of the message about noise of several environments if there is one environment, else None."""
    if config.exploration_noise_min is None or config.environments > config.learners:
        return None
    return (" of each of the learners" if config.learners > 1 else "",)


class D4PGConfig(ValueKeys):
    """D4PG, or DDPG with ``atoms: 1``; the defaults are the paper's, the networks ActorQ's critic.

    Source:
        Barth-Maron et al., "Distributed Distributional Deterministic Policy Gradients", Algorithm 1, with the numbers
        of its authors' implementation in Acme (Hoffman et al., 2020); Krishnan et al., "Quantized Reinforcement
        Learning (QuaRL)", Section 3, for ActorQ's networks and noise.
    """

    default_support: ClassVar[tuple[float, float]] = (-150.0, 150.0)
    panels: ClassVar[Mapping[str, Panel]] = {
        "q": Panel("mean Q value"),
        "critic_loss_scale": Panel("loss scale of the critic", log=True),
        "actor_loss_scale": Panel("loss scale of the actor", log=True),
        "priority": Panel("mean priority", log=True),
    }

    rules: ClassVar[tuple[KeyRule, ...]] = (
        KeyRule(lambda c: c.exploration_noise_min is not None and c.exploration_noise_min > c.exploration_noise,
             "exploration_noise_min",
             "exploration_noise_min must be at most exploration_noise, got {c.exploration_noise_min:g} and"
             " {c.exploration_noise:g}"),
        KeyRule(_single_environment_note, "exploration_noise_min",
             "exploration_noise_min is for several environments{found[0]}, and there is one; leave it out, or set"
             " environments"),
        KeyRule(lambda c: c.keep_networks and ("a categorical head" if c.atoms > 1 else c.prioritized and "priorities"),
             "keep_networks",
             "keep_networks compares Q values of transitions drawn evenly, and this critic has {found}; leave it out,"
             " or set atoms: 1 and prioritized: false"),
    )  # fmt: skip

    algorithm: str = key("d4pg", "The algorithm. Each algorithm has its own keys.")
    hidden_units: Positive = with_default(ValueKeys, "hidden_units", 512)
    hidden_layers: Positive = with_default(ValueKeys, "hidden_layers", 3)
    actor_units: Positive | None = key(None, "Width of the hidden layers of the actor; `null`: `hidden_units`.")
    actor_layers: Positive | None = key(None, "Number of hidden layers of the actor; `null`: `hidden_layers`.")
    batch_size: Positive = with_default(ValueKeys, "batch_size", 256)
    seed_steps: Count = with_default(ValueKeys, "seed_steps", 1000)
    target_every: Positive = with_default(ValueKeys, "target_every", 100)
    atoms: Positive = with_default(ValueKeys, "atoms", 51)
    n_steps: Positive = with_default(ValueKeys, "n_steps", 5)
    initial_weights: Literal["orthogonal", "uniform"] = with_default(
        ValueKeys, "initial_weights", "uniform", KeyRole.NONE
    )
    exploration_noise: NonNegativeFloat = key(
        0.2, "Standard deviation of the noise on actions in training.", KeyRole.TIMELESS
    )
    exploration_noise_min: NonNegativeFloat | None = key(
        None,
        "Standard deviation of the noise in the first of several `environments`. It rises evenly to"
        " `exploration_noise` in the last one. `null`: `exploration_noise` in all.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS,
    )

    @property
    def actor_widths(self) -> list[int]:
        """The widths of the actor's hidden layers, from the first to the last."""
        return [self.actor_units or self.hidden_units] * (self.actor_layers or self.hidden_layers)

    @property
    def widths_of_all(self) -> list[int]:
        """The widths of the hidden layers of critic and actor."""
        return [*self.hidden_widths, *self.actor_widths]


CONFIG = D4PGConfig
