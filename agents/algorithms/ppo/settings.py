"""The keys and logged values of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ...config.fields import KeyRole, NonNegativeFloat, Panel, Positive, PositiveFloat, key
from ...config.on_policy_keys import ROLLOUT_PANELS, OnPolicyKeys
from ...environments.opening import check_task, has_discrete_actions


class PPOConfig(OnPolicyKeys):
    """PPO; the defaults are the paper's for continuous control.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Table 3. The paper lacks details, which are from
        OpenAI's Baselines: the norm that gradients are clipped to, eps, and standardized advantages; for continuous
        actions also normalized observations and rewards, and clipped values.
    """

    panels: ClassVar[Mapping[str, Panel]] = {
        "entropy": Panel("entropy of the policy"),
        "critic_loss": Panel("squared error of the values", log=True),
        "clipped": Panel("part of the samples that is clipped"),
        "actor_loss_scale": Panel("loss scale", log=True),
        "half_batch_cosine": Panel("cosine of the gradient and half of the batch's"),
        **ROLLOUT_PANELS,
    }

    algorithm: str = key("ppo", "The algorithm. Each algorithm has its own keys.")
    epochs: Positive = key(10, "Number of passes over each rollout, in minibatches.", KeyRole.OUTSIDE_UPDATES)
    clip: Annotated[float, Field(gt=0, lt=1)] = key(
        0.2, "Clipping range of the probability ratio around 1.", KeyRole.TIMELESS
    )

    value_clip: NonNegativeFloat | None = key(
        None,
        "Clipping range of the value loss, around the value from the rollout. 0: no clipping. null: 0.2 for"
        " continuous actions, else 0 (as in OpenAI Baselines).",
        KeyRole.LATER,
    )
    target_kl: PositiveFloat | None = key(
        None,
        "End the updates of a rollout early if the policy's KL divergence from the rollout's policy, estimated over"
        " the next minibatch, exceeds 1.5 times this; null: never.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``, with the defaults of normalization and clipping for tasks with continuous actions."""
        given = super().completed(given)
        if not _has_continuous_actions(given.get("task", cls.model_fields["task"].default)):
            return given
        single = given.get("learners", 1) == 1  # Running moments belong to one learner.
        defaults: dict[str, Any] = {"value_clip": 0.2, "normalize_observations": single}
        defaults["normalize_rewards"] = single and not given.get("clip_rewards")
        return given | {name: value for name, value in defaults.items() if given.get(name) is None}

    @property
    def passes(self) -> int:
        """The number of passes over a rollout: the epochs."""
        return self.epochs


def _has_continuous_actions(task: object) -> bool:
    """Whether a task is known to have continuous actions."""
    try:
        return isinstance(task, str) and has_discrete_actions(check_task(task)) is False
    except (ValueError, ImportError):
        return False  # The validation of the key raises the error.


CONFIG = PPOConfig
