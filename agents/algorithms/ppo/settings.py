"""The keys and logged values of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ...config.fields import KeyRole, NonNegativeFloat, Panel, Positive, PositiveFloat, key
from ...config.on_policy_keys import ROLLOUT_PANELS, OnPolicyKeys
from ...environments.task_check import check_task, has_discrete_actions


class PPOConfig(OnPolicyKeys):
    """PPO; the defaults are the paper's for continuous control.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Table 3; missing details (the norm that gradients
        are clipped to, eps, that advantages are standardized; where actions are numbers, that observations and rewards
        are normalized and values clipped) are as in OpenAI's Baselines.
    """

    panels: ClassVar[Mapping[str, Panel]] = {
        "entropy": Panel("entropy of the policy"),
        "critic_loss": Panel("squared error of the values", log=True),
        "clipped": Panel("part of the samples that is clipped"),
        "actor_loss_scale": Panel("loss scale", log=True),
        "half_batch_cosine": Panel("cosine of the gradient and half of the batch's"),
        **ROLLOUT_PANELS,
    }

    algorithm: str = key("ppo", "The algorithm; each has keys of its own.")
    epochs: Positive = key(10, "The number of passes over each rollout, in minibatches.", KeyRole.OUTSIDE_UPDATES)
    clip: Annotated[float, Field(gt=0, lt=1)] = key(
        0.2, "The largest distance of the ratio of probabilities from 1 that counts.", KeyRole.TIMELESS
    )

    value_clip: NonNegativeFloat | None = key(
        None,
        "How far a value counts from what it was when its rollout was judged; 0: as far as it goes; null: as OpenAI's"
        " Baselines do, 0.2 where actions are numbers, else 0.",
        KeyRole.LATER,
    )
    target_kl: PositiveFloat | None = key(
        None,
        "The rest of a rollout is not learned from once the policy's KL divergence from that of the rollout, estimated"
        " over the next minibatch, is above 1.5 times this; null: all of it is.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``, with the defaults of normalization and clipping for tasks with continuous actions."""
        given = super().completed(given)
        if not _takes_numbers(given.get("task", cls.model_fields["task"].default)):
            return given
        alone = given.get("learners", 1) == 1
        usual: dict[str, Any] = {"value_clip": 0.2, "normalize_observations": alone}
        usual["normalize_rewards"] = alone and not given.get("clip_rewards")
        return given | {name: value for name, value in usual.items() if given.get(name) is None}

    @property
    def passes(self) -> int:
        """The epochs."""
        return self.epochs


def _takes_numbers(task: object) -> bool:
    """Whether a task is known to take numbers as actions."""
    try:
        return isinstance(task, str) and has_discrete_actions(check_task(task)) is False
    except (ValueError, ImportError):
        return False  # the field says why


CONFIG = PPOConfig
