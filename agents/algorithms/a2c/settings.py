"""The keys and logged values of A2C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from ...config.fields import Below1, NonNegativeFloat, Panel, Positive, PositiveFloat, key, with_default
from ...config.on_policy_keys import ROLLOUT_PANELS, OnPolicyKeys
from ...config.rules import KeyRule


class A2CConfig(OnPolicyKeys):
    """A2C; the defaults are from the papers for Atari.

    Source:
        Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", Section 5.1 (5 steps, alpha 0.99, entropy
        0.01); Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Appendix A.3 (learning rate 7e-4
        for 16 environments); the norm and eps are from OpenAI's Baselines.
    """

    panels: ClassVar[Mapping[str, Panel]] = {
        "entropy": Panel("entropy of the policy"),
        "critic_loss": Panel("squared error of the values", log=True),
        "actor_loss_scale": Panel("loss scale", log=True),
        "half_batch_cosine": Panel("cosine of the gradient and half of the batch's"),
        **ROLLOUT_PANELS,
    }

    rules: ClassVar[tuple[KeyRule, ...]] = (
        KeyRule(lambda c: c.batch_size != c.rollout, "batch_size",
             "a2c learns from a whole rollout at once: batch_size is horizon x environments = {c.rollout}, got"
             " {c.batch_size}; leave it out, or set algorithm: ppo"),
    )  # fmt: skip

    algorithm: str = key("a2c", "The algorithm. Each algorithm has its own keys.")
    environments: Positive = with_default(OnPolicyKeys, "environments", 16)
    horizon: Positive = with_default(OnPolicyKeys, "horizon", 5)
    batch_size: Positive = with_default(OnPolicyKeys, "batch_size", 80)
    optimizer: Literal["adam", "rmsprop"] = with_default(OnPolicyKeys, "optimizer", "rmsprop")
    lr: PositiveFloat = with_default(OnPolicyKeys, "lr", 7e-4)
    adam_beta2: Below1 = with_default(OnPolicyKeys, "adam_beta2", 0.99)
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = with_default(OnPolicyKeys, "gae_lambda", 1.0)
    entropy_weight: NonNegativeFloat = with_default(OnPolicyKeys, "entropy_weight", 0.01)
    normalize_advantages: bool = with_default(OnPolicyKeys, "normalize_advantages", False)

    def share(self) -> Self:
        """Returns the keys with the batch of a learner's own rollout."""
        share = super().share()
        return share.model_copy(update={"batch_size": share.rollout})

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given``, with the size of the rollout as the default of ``batch_size``."""
        given = super().completed(given)
        sizes = [given.get(name, cls.model_fields[name].default) for name in ("horizon", "environments")]
        return {"batch_size": sizes[0] * sizes[1], **given} if all(type(size) is int for size in sizes) else given


CONFIG = A2CConfig
