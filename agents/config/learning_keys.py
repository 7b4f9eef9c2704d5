"""Keys that several algorithms have: how parameters are moved, and learning from a replay buffer."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .baselines import check_baseline
from .fields import Below1, Count, Positive, PositiveFloat, Role, key
from .fixes import FIXES, parse_fixes
from .train_config import TrainConfig

_FREE = Role.TIMELESS
_DATA = Role.TIMELESS | Role.DATA


class OptimizerKeys(TrainConfig):
    """Sizes of networks, their optimizers, the discount, and the fixes or the baseline; Low-precision SAC's defaults."""

    reason_not_compiled: ClassVar[str | None] = None

    fixes: Annotated[tuple[str, ...], BeforeValidator(parse_fixes)] = key(
        FIXES, '`"all"`, `"none"` or names; stored as a tuple in the order of Table 1.'
    )
    baseline: Annotated[str, AfterValidator(check_baseline)] = key(
        "none",
        "One of the paper's baselines in place of the fixes: `naive`, `coercion`, `loss_scaling`, `mixed_precision`,"
        " `amp` or `eps`; `fixes` is then none. `none`: the agent with its fixes. See docs/baselines.md.",
    )
    hidden_units: Positive = key(1024, "Width of the hidden layers of actor and critics.")
    hidden_layers: Positive = key(2, "How many there are.")
    batch_size: Positive = key(1024, "Transitions per update.")
    lr: PositiveFloat = key(1e-4, "Learning rate of all that is learned.", _DATA)
    discount: Annotated[float, Field(ge=0, le=1)] = key(0.99, "Factor per agent step.", _DATA)
    adam_beta1: Below1 = key(0.9, "Decay of the first moment.", _FREE)
    adam_beta2: Below1 = key(0.999, "Decay of the second moment.", _FREE)
    adam_eps: PositiveFloat = key(1e-8, "Added to the denominator of Adam.", _FREE)
    initial_loss_scale: PositiveFloat = key(
        1e4, "For `compound_loss_scaling`, and for baselines with loss scaling (`amp` has its own).", _FREE
    )
    loss_scale_growth_interval: Positive = key(
        10_000, "Consecutive finite steps after which the loss scale doubles; for the same fixes and baselines.", _FREE
    )
    kahan_momentum_scale: PositiveFloat = key(1e4, "C of `kahan_momentum`.", _FREE)

    @property
    def hidden_widths(self) -> list[int]:
        """Of the hidden layers, from the first to the last."""
        return [self.hidden_units] * self.hidden_layers

    @model_validator(mode="before")
    @classmethod
    def _baselines_have_no_fixes(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("baseline", "none") != "none":
            return {"fixes": "none", **data}
        return data

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline != "none" and self.fixes:
            raise ValueError(
                f"baseline: {self.baseline} takes the place of the fixes, got fixes: {', '.join(self.fixes)};"
                " leave fixes out, or set baseline: none"
            )
        return self


class OffPolicyKeys(OptimizerKeys):
    """Learning from a replay buffer, with slow copies of networks as targets."""

    tau: Annotated[float, Field(gt=0, le=1)] = key(
        0.005, "Part of the way that target networks move at each of their updates.", _DATA
    )
    seed_steps: Count = key(
        5000,
        "Agent steps with uniform random actions, before updates begin.",
        Role.OUTSIDE_UPDATES | Role.AMOUNT,
    )
    replay_capacity: Positive = key(
        1_000_000,
        "Transitions kept (images, if observations are pixels); older ones are overwritten.",
        Role.OUTSIDE_UPDATES | Role.TIMELESS,
    )
    training_intensity: PositiveFloat | None = key(
        None,
        "How often a transition is learned from, on average: updates x `batch_size` / transitions, after those of"
        " `seed_steps`. `null`: one update per transition.",
        Role.OUTSIDE_UPDATES,
        since="0.2",
    )

    @property
    def updates_per_transition(self) -> Fraction | int:
        """How many updates there are for each transition after those of ``seed_steps``, on average; exactly."""
        if self.training_intensity is None:
            return 1
        return Fraction(repr(self.training_intensity)) / self.batch_size

    @property
    def steps_before_learning(self) -> int:
        """Agent steps before the first update."""
        return self.seed_steps

    def soon_learning(self) -> dict[str, Any]:
        """Keys to change for a run in which a step takes as long, but learning begins at once; to measure that."""
        return {"seed_steps": 1, "replay_capacity": min(self.replay_capacity, 10_000)}
