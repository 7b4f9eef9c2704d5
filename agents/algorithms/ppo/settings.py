"""The keys of PPO, and what it logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from ...config.fields import KeyRole, Panel, Positive, key
from ...config.learning_keys import OnPolicyKeys

if TYPE_CHECKING:
    from collections.abc import Mapping


class PPOConfig(OnPolicyKeys):
    """PPO; the defaults are the paper's for continuous control.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Table 3; what it does not say (the norm to which
        gradients are clipped, eps, that advantages are standardized) is as in OpenAI's Baselines.
    """

    panels: ClassVar[Mapping[str, Panel]] = {
        "entropy": Panel("entropy of the policy"),
        "critic_loss": Panel("squared error of the values", log=True),
        "clipped": Panel("part of the samples that is clipped"),
        "actor_loss_scale": Panel("loss scale", log=True),
    }

    algorithm: str = key("ppo", "What learns; each has keys of its own.")
    epochs: Positive = key(10, "How often each rollout is learned from, in minibatches.", KeyRole.OUTSIDE_UPDATES)
    clip: Annotated[float, Field(gt=0, lt=1)] = key(
        0.2, "How far the ratio of probabilities counts, beside 1.", KeyRole.TIMELESS
    )

    @property
    def passes(self) -> int:
        """The epochs."""
        return self.epochs


CONFIG = PPOConfig
