"""Keys of on-policy learning, and of rollouts in a different arithmetic."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from .fields import KeyRole, NonNegativeFloat, Panel, Positive, PositiveFloat, key, read_keys_under, with_default
from .fixes import FIXES, parse_fixes
from .learning_keys import OptimizerKeys
from .train_config import parse_quantizations

NORMALIZED_LIMIT = 10.0
"""Normalized observations and rewards are clipped to this magnitude."""
ROLLOUT_PANELS = {
    "rollout_k3_kl": Panel("KL of rollouts and trainer for a step (k3)", log=True),
    "rollout_outside": Panel("steps whose ratio is not within 0.1 of 1"),
    "rollout_ess": Panel("effective sample size of a rollout's steps"),
}
"""The logged values of rollouts in a separate arithmetic that are plotted."""
_FREE = KeyRole.TIMELESS
_OF_EXPERIENCE = KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS | KeyRole.LATER


@final
class Rollouts(BaseModel):
    """Rollouts by a copy of the policy in another arithmetic, and weights that correct for the difference.

    Source:
        Qi et al., "Defeating the Training-Inference Mismatch via FP16", Section 3; see
        :func:`roundoff.importance_weights`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Annotated[str | dict[str, Any], BeforeValidator(lambda value: parse_quantizations([value])[0])] = Field(
        description="The arithmetic of the copy: any value of `evaluate_in`."
    )
    correction: Literal[
        "none", "token", "token-truncate", "token-mask", "sequence", "sequence-truncate", "sequence-mask"
    ] = Field(
        default="none",
        description="The weights of the surrogate's terms, by the names of `roundoff.importance_weights`: a token is a"
        " step, and a sequence the part of an episode that is in a rollout.",
    )
    threshold: PositiveFloat = Field(default=2.0, description="The largest weight; for truncation and masks.")
    least: NonNegativeFloat = Field(default=0.0, description="The smallest weight that a mask leaves.")


def read_rollouts(value: Any) -> Any:
    """Reads a mapping as keys of rollouts; raises ValueError with all mistakes."""
    return read_keys_under("rollouts", Rollouts, value)


class OnPolicyKeys(OptimizerKeys):
    """On-policy learning; the defaults are PPO's for continuous control.

    Source:
        Schulman et al., "Proximal Policy Optimization Algorithms", Table 3.
    """

    leading: ClassVar[str] = "actor"
    acts: ClassVar[tuple[str, ...]] = ("continuous", "discrete")

    fixes: Annotated[tuple[str, ...], BeforeValidator(parse_fixes)] = with_default(
        OptimizerKeys, "fixes", (*FIXES, "scaled_norms")
    )
    hidden_units: Positive = with_default(OptimizerKeys, "hidden_units", 64)
    batch_size: Positive = with_default(OptimizerKeys, "batch_size", 64)
    lr: PositiveFloat = with_default(OptimizerKeys, "lr", 3e-4)
    adam_eps: PositiveFloat = with_default(OptimizerKeys, "adam_eps", 1e-5)
    horizon: Positive = key(
        2048,
        "Agent steps of every environment in a rollout; updates follow each rollout. `batch_size` divides horizon x"
        " environments.",
        KeyRole.OUTSIDE_UPDATES,
    )
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = key(
        0.95, "Lambda of generalized advantage estimation; 1: returns minus values.", KeyRole.OUTSIDE_UPDATES | _FREE
    )
    value_weight: PositiveFloat = key(0.5, "Weight of the values' squared error.", _FREE)
    entropy_weight: NonNegativeFloat = key(0.0, "Weight of the policy's entropy, which the policy maximizes.")
    max_grad_norm: PositiveFloat | None = key(
        0.5,
        "Largest norm of the gradients over all parameters; larger gradients are scaled down to it. null: unlimited.",
    )
    normalize_advantages: bool = key(
        True, "Subtract the mean of a minibatch's advantages, and divide by their standard deviation."
    )
    normalize_observations: bool | None = key(
        None,
        "Subtract the running mean of observations, divide by their running standard deviation and clip to [-10, 10],"
        " before rounding. null: true for ppo if the task is known to have continuous actions, as in OpenAI Baselines.",
        _OF_EXPERIENCE,
    )
    normalize_rewards: bool | None = key(
        None,
        "Divide rewards by the running standard deviation of discounted returns and clip to [-10, 10], before"
        " rounding; logged rewards are not normalized. null: true for ppo if the task is known to have continuous"
        " actions.",
        _OF_EXPERIENCE,
    )
    lr_schedule: Literal["constant", "linear"] = key(
        "constant", "`constant`, or `linear`: the learning rate falls to 0 over the updates of the run.", _FREE
    )

    rollouts: Annotated[Rollouts | None, BeforeValidator(read_rollouts)] = key(
        None,
        "Rollouts by a copy of the policy in another arithmetic: a mapping with its `format` (any value of"
        " `evaluate_in`), the `correction` (`none`) that weighs the surrogate's terms, its `threshold` (2) and"
        " `least` (0); null: the learner acts in its own arithmetic. See docs/rollouts.md.",
        KeyRole.ARITHMETIC | KeyRole.LATER,
    )

    @property
    def largest_reward(self) -> float:
        """The largest expected reward of an agent step, after normalization."""
        return NORMALIZED_LIMIT if self.normalize_rewards else super().largest_reward

    @property
    def passes(self) -> int:
        """The number of passes over a rollout."""
        return 1

    @property
    def weighed(self) -> bool:
        """Whether the terms of the surrogate have weights."""
        return self.rollouts is not None and self.rollouts.correction != "none"

    @property
    def rollout(self) -> int:
        """Transitions of a rollout."""
        return self.horizon * self.environments

    @property
    def anneal_over(self) -> int | None:
        """All updates of the run if the learning rate falls, else None."""
        return self.updates_in(self.transitions) if self.lr_schedule == "linear" else None

    def updates_in(self, transitions: int) -> int:
        """Returns the number of updates for this number of transitions."""
        return transitions // self.rollout * self.passes * (self.rollout // self.batch_size)

    def soon_learning(self) -> dict[str, Any]:
        """Returns the keys of the shortest rollout with the same number of updates for each transition."""
        return {"horizon": self.batch_size // math.gcd(self.batch_size, self.environments)}
