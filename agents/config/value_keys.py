"""Keys of algorithms that learn values of several steps, as numbers or as distributions, from a replay buffer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from .actor_keys import WithActors, has_importance_weights
from .fields import Positive, Role, key, with_default

_MOST_LEFT = 0.05  # of a reward at the end of the steps that are summed

Share = Annotated[float, Field(ge=0, le=1)]


class ValueKeys(WithActors):
    """The head of a critic, what its targets are made of, when their network is copied, and priorities.

    Source:
        Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", Section 5; Schaul et al.,
        "Prioritized Experience Replay"; Hessel et al., "Rainbow", Section 2.
    """

    default_support: ClassVar[tuple[float, float]] = (-10.0, 10.0)
    """The values between which a categorical head has its atoms, where none are given."""

    tau: Annotated[float, Field(gt=0, le=1)] = with_default(WithActors, "tau", 1.0)
    target_every: Positive = key(500, "Updates between those of the target networks; with `tau` 1 they copy.")
    atoms: Positive = key(
        1,
        "1: the network gives Q values. More: probabilities of so many values between `v_min` and `v_max`; Bellemare et"
        " al. have 51. `adam_eps` of dqn is then 0.01 / `batch_size`, where it is not given.",
    )
    v_min: float | None = key(None, "The least value of a categorical head; `null`: -10, of d4pg -150.")
    v_max: float | None = key(None, "The largest one; `null`: 10, of d4pg 150.")
    n_steps: Positive = key(1, "Rewards that are summed before the target network values what follows.")
    prioritized: bool = key(False, "Draw transitions by priority: the TD error; of a categorical head, the divergence.")
    priority_exponent: Share = key(0.5, "Of a transition's error in its priority; 0 draws uniformly.")
    importance_exponent: Share = key(
        0.4,
        "How much the loss makes up for priorities, at the beginning; it rises linearly to 1.",
        Role.OUTSIDE_UPDATES | Role.TIMELESS,
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

    @model_validator(mode="after")
    def _check_support(self) -> Self:
        if self.atoms == 1:
            given = [name for name in ("v_min", "v_max") if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"{given[0]} is of a categorical head, and atoms is 1; leave {given[0]} out, or set atoms: 51"
                )
            return self
        least, largest = self.support
        if least >= largest:
            raise ValueError(f"v_min must be less than v_max, got v_min {least:g} and v_max {largest:g}")
        from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

        fmt = Format.parse(self.format)
        assert fmt.max is not None
        scale = self.scale_of_rewards
        most = max(-least * scale, largest * scale, self.atoms - 1)
        if most > fmt.max:
            raise ValueError(
                f"atoms {self.atoms} between v_min {least:g} and v_max {largest:g} need numbers up to {most:g}, but the"
                f" largest of format {self.format} is {fmt.max:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_replay(self) -> Self:
        if self.replay_capacity < self.batch_size:
            raise ValueError(
                f"replay_capacity must be at least batch_size, got {self.replay_capacity} and {self.batch_size}"
            )
        if self.discount ** (self.n_steps - 1) < _MOST_LEFT:
            raise ValueError(
                f"n_steps is {self.n_steps}, of which the last reward would count"
                f" {self.discount:g}^{self.n_steps - 1} of the first one; at least {_MOST_LEFT:g} is allowed"
            )
        return self
