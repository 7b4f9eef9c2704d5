"""Keys of algorithms that learn values of several steps, as numbers or as distributions, from a replay buffer."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from .actor_keys import WithActors, has_importance_weights
from .fields import KeyRole, Positive, key, with_default

Share = Annotated[float, Field(ge=0, le=1)]


class ValueKeys(WithActors):
    """The head of a critic, its targets, the copies of their network, and priorities.

    Source:
        Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", Section 5; Schaul et al.,
        "Prioritized Experience Replay"; Hessel et al., "Rainbow", Section 2.
    """

    default_support: ClassVar[tuple[float, float]] = (-10.0, 10.0)
    """The default of the smallest and largest value of a categorical head."""

    tau: Annotated[float, Field(gt=0, le=1)] = with_default(WithActors, "tau", 1.0)
    target_every: Positive = key(
        500, "Updates from one update of the target networks to the next; with `tau` 1 they copy."
    )
    atoms: Positive = key(
        1,
        "1: the network returns Q values. More: probabilities of this number of values between `v_min` and `v_max`;"
        " Bellemare et al. use 51. The default of dqn's `adam_eps` is then 0.01 / `batch_size`.",
    )
    v_min: float | None = key(None, "Smallest value of a categorical head; `null`: -10, for d4pg -150.")
    v_max: float | None = key(None, "Largest value of a categorical head; `null`: 10, for d4pg 150.")
    n_steps: Positive = key(
        1, "Number of rewards that are summed before the target network's value of the next state is added."
    )
    prioritized: bool = key(
        False, "Draw transitions by priority: the TD error, or the divergence for a categorical head."
    )
    priority_exponent: Share = key(0.5, "Exponent of a transition's error in its priority; 0 draws uniformly.")
    importance_exponent: Share = key(
        0.4,
        "Initial exponent of the weights that correct for priorities; it rises linearly to 1.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.TIMELESS,
    )

    @property
    def support(self) -> tuple[float, float]:
        """The least and the largest value of a categorical head."""
        least, largest = self.default_support
        return least if self.v_min is None else self.v_min, largest if self.v_max is None else self.v_max

    @property
    def weighs(self) -> bool:
        """Whether transitions have weights in the loss."""
        return self.prioritized or has_importance_weights(self)
