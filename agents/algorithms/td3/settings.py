"""The keys and logged values of TD3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ...config.actor_keys import WithActors
from ...config.fields import Count, KeyRole, NonNegativeFloat, Panel, Positive, PositiveFloat, key, with_default


class TD3Config(WithActors):
    """TD3; the defaults are the paper's.

    Source:
        Fujimoto, van Hoof & Meger, "Addressing Function Approximation Error in Actor-Critic Methods", Section 6.1.
    """

    panels: ClassVar[Mapping[str, Panel]] = {
        "q": Panel("mean Q value"),
        "critic_loss_scale": Panel("loss scale of the critics", log=True),
        "actor_loss_scale": Panel("loss scale of the actor", log=True),
    }

    algorithm: str = key("td3", "The algorithm. Each algorithm has its own keys.")
    hidden_units: Positive = with_default(WithActors, "hidden_units", 400)
    last_hidden_units: Positive = key(
        300, "Width of the last hidden layer; equal to `hidden_units` if only that key is given."
    )
    batch_size: Positive = with_default(WithActors, "batch_size", 100)
    lr: PositiveFloat = with_default(WithActors, "lr", 1e-3)
    seed_steps: Count = with_default(WithActors, "seed_steps", 1000)
    initial_weights: Literal["orthogonal", "uniform"] = with_default(
        WithActors, "initial_weights", "uniform", KeyRole.NONE
    )
    policy_delay: Positive = key(2, "Updates of the critics per update of the actor and of all target networks.")
    policy_noise: NonNegativeFloat = key(
        0.2, "Standard deviation of the noise on the target actor's actions.", KeyRole.TIMELESS
    )
    noise_clip: PositiveFloat = key(
        0.5, "Largest magnitude of the noise on the target actor's actions.", KeyRole.TIMELESS
    )
    exploration_noise: NonNegativeFloat = key(
        0.1, "Standard deviation of the noise on actions in training.", KeyRole.TIMELESS
    )

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``; a given width applies to all layers, unless the width of the last one is also given."""
        given = super().completed(given)
        return {"last_hidden_units": given["hidden_units"], **given} if "hidden_units" in given else given

    @property
    def hidden_widths(self) -> list[int]:
        """The widths of the hidden layers, from the first to the last."""
        return [*([self.hidden_units] * (self.hidden_layers - 1)), self.last_hidden_units]


CONFIG = TD3Config
