"""The keys of DQN, and what it logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ...config.fields import Count, Panel, Positive, PositiveFloat, Role, key, with_default
from ...config.learning_keys import OffPolicyKeys
from ...environments.task_check import check_task

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPS_OVER_BATCH = 0.01
_MOST_LEFT = 0.05  # of a reward at the end of the steps that are summed
_OUTSIDE = Role.OUTSIDE_UPDATES | Role.TIMELESS

Share = Annotated[float, Field(ge=0, le=1)]


class DQNConfig(OffPolicyKeys):
    """DQN; the defaults are those of the paper's Atari agent, with Adam for RMSProp.

    Source:
        Mnih et al., "Human-level control through deep reinforcement learning", Extended Data Table 1; for the
        categorical head Bellemare et al., "A Distributional Perspective on Reinforcement Learning", Section 5; for
        prioritized replay Hessel et al., "Rainbow", Table 1.
    """

    acts: ClassVar[tuple[str, ...]] = ("discrete",)
    panels: ClassVar[Mapping[str, Panel]] = {
        "q": Panel("mean Q value"),
        "critic_loss_scale": Panel("loss scale of the Q network", log=True),
        "priority": Panel("mean priority", log=True),
    }

    algorithm: str = key("dqn", "What learns; each has keys of its own.")
    task: Annotated[str, AfterValidator(check_task)] = with_default(OffPolicyKeys, "task", "gym:CartPole-v1")
    hidden_units: Positive = with_default(OffPolicyKeys, "hidden_units", 512)
    hidden_layers: Positive = with_default(OffPolicyKeys, "hidden_layers", 1)
    batch_size: Positive = with_default(OffPolicyKeys, "batch_size", 32)
    lr: PositiveFloat = with_default(OffPolicyKeys, "lr", 2.5e-4)
    tau: Annotated[float, Field(gt=0, le=1)] = with_default(OffPolicyKeys, "tau", 1.0)
    seed_steps: Count = with_default(OffPolicyKeys, "seed_steps", 50_000)
    training_intensity: PositiveFloat | None = with_default(OffPolicyKeys, "training_intensity", 8.0)
    initial_weights: Literal["orthogonal", "uniform"] = key(
        "uniform",
        "`uniform`: weights and biases within 1 / sqrt(inputs), as PyTorch's layers and those of Mnih et al. begin; or"
        " `orthogonal`, with biases of 0.",
        since="0.2",
    )
    target_every: Positive = key(10_000, "Updates between those of the target network; with `tau` 1 they copy it.")
    loss: Literal["huber", "squared"] = key(
        "huber", "Of the scalar head: `huber` clips the derivative to [-1, 1] (Mnih et al., 2015), `squared` does not."
    )
    atoms: Positive = key(
        1,
        "1: the network gives Q values. More: probabilities of so many values between `v_min` and `v_max`; Bellemare et"
        " al. have 51. `adam_eps` is then 0.01 / `batch_size`, where it is not given.",
    )
    v_min: float | None = key(None, "The least value of a categorical head; `null`: -10.")
    v_max: float | None = key(None, "The largest one; `null`: 10.")
    double: bool = key(False, "The target network values the action that the network itself takes for the best.")
    dueling: bool = key(
        False, "The last hidden layer is two, one for the value of a state and one for the advantages of its actions."
    )
    n_steps: Positive = key(1, "Rewards that are summed before the target network values what follows.")
    prioritized: bool = key(False, "Draw transitions by priority: the TD error; of a categorical head, the divergence.")
    priority_exponent: Share = key(0.5, "Of a transition's error in its priority; 0 draws uniformly.")
    importance_exponent: Share = key(
        0.4, "How much the loss makes up for priorities, at the beginning; it rises linearly to 1.", _OUTSIDE
    )
    exploration_start: Share = key(1.0, "Share of random actions after those of `seed_steps`, at first.", _OUTSIDE)
    exploration_end: Share = key(0.1, "The same, at last.", _OUTSIDE)
    exploration_steps: Count = key(1_000_000, "Agent steps in which it falls linearly from one to the other.", _OUTSIDE)

    @property
    def support(self) -> tuple[float, float]:
        """The least and the largest value of a categorical head."""
        return -10.0 if self.v_min is None else self.v_min, 10.0 if self.v_max is None else self.v_max

    def share(self) -> Self:
        """With a share of the steps in which exploration falls, too."""
        return super().share().with_shares_of("exploration_steps")

    @model_validator(mode="before")
    @classmethod
    def _eps_of_the_categorical_paper(cls, data: Any) -> Any:
        if isinstance(data, dict) and "adam_eps" not in data:
            atoms, batch_size = data.get("atoms", 1), data.get("batch_size", cls.model_fields["batch_size"].default)
            if isinstance(atoms, int) and isinstance(batch_size, int) and atoms > 1 and batch_size > 0:
                return {**data, "adam_eps": _EPS_OVER_BATCH / batch_size}
        return data

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
        from ....formats import FloatFormat, Format  # noqa: PLC0415  imports torch, which costs seconds

        fmt = Format.parse(self.format)
        assert isinstance(fmt, FloatFormat)
        most = max(-least, largest, self.atoms - 1)
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
        if self.keep_networks:
            raise ValueError("keep_networks is for actors and critics of continuous actions; leave it out")
        return self


CONFIG = DQNConfig
