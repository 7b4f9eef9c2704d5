"""Actors that act with a quantized copy of the policy, away from the learner: number, format, pull interval."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from .fields import KeyRole, Positive, PositiveFloat, key, later_keys, read_keys_under
from .learning_keys import OffPolicyKeys, format_with_codes
from .rules import check
from .train_config import TrainConfig


@final
class ActorKeys(BaseModel):
    """The keys under ``actors``; the defaults are ActorQ's."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    count: Positive = key(4, "Processes that act, each in its share of `environments`.")
    format: Annotated[str, AfterValidator(format_with_codes)] = key(
        "int8", "The format of the actors' arithmetic, and of the weights sent to them; any format with codes."
    )
    communicate: Annotated[str, AfterValidator(format_with_codes)] | None = key(
        None,
        "The format of the sent weights, if it differs from `format`: actors decode them, and round them to `format`.",
        KeyRole.LATER,
    )
    engine: Literal["simulated", "onnxruntime"] = key(
        "simulated",
        "The engine of actors: `simulated`, any format to its bits; `onnxruntime`, int8, int8_ax0 or fp32, fast.",
    )
    pull_every: Positive = key(1000, "Steps of an actor after which it takes the newest weights.")
    samples_per_insert: PositiveFloat | None = key(
        None, "The average number of times that a transition is learned from; sets `training_intensity`."
    )
    lockstep: bool = key(
        False,
        "One actor after the other takes one step, and the learner learns from it before the next: such runs repeat,"
        " and cannot be fast.",
    )
    importance_weights: bool = key(
        False,
        "Weigh transitions of several steps by how likely the learner's policy takes the actions after the first one.",
    )
    noise_of: Annotated[str, AfterValidator(format_with_codes)] | None = key(
        None,
        "A control: actors compute in fp32, and the outputs of the network get noise as large as the error of this"
        " format.",
    )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check(self)
        return self

    @model_serializer(mode="wrap")
    def _without_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Returns the keys without later ones at their defaults, in the same way as ``TrainConfig.as_json``."""
        later, values = later_keys(type(self)), dump(self)
        return {
            name: value for name, value in values.items() if name not in later or getattr(self, name) != later[name]
        }


def parse_actors(value: Any) -> Any:
    """Reads a mapping as keys of actors; raises ValueError with all mistakes."""
    return read_keys_under("actors", ActorKeys, value)


class WithActors(OffPolicyKeys):
    """Keys of actors, which collect experience for algorithms with a single policy network."""

    actors: Annotated[ActorKeys | None, BeforeValidator(parse_actors)] = key(
        None,
        "Processes that act with a quantized copy of the policy while the run's process learns: a mapping with"
        " `count` (4), `format` (int8), `communicate`, `engine` (`simulated` or `onnxruntime`), `pull_every` (1000),"
        " `samples_per_insert`, `lockstep`, `importance_weights` and `noise_of`; `environments` is then `count` by"
        " default. Such runs repeat only in lockstep; see docs/learners.md.",
        KeyRole.OUTSIDE_UPDATES | KeyRole.LATER,
    )
    initial_weights: Literal["orthogonal", "uniform"] = key(
        "uniform",
        "`uniform`: weights and biases within 1 / sqrt(inputs), as in PyTorch's layers and the papers by Mnih et"
        " al., Lillicrap et al. and Fujimoto et al.; or `orthogonal`, with biases of 0.",
        KeyRole.LATER,
    )

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns ``given`` with an environment for each actor, and the training intensity that follows from them."""
        given = super().completed(given)
        try:
            actors = parse_actors(given.get("actors"))
        except ValueError:
            return given  # The field's validation raises the error again, with its place.
        if not isinstance(actors, ActorKeys):
            return given
        following: dict[str, Any] = {"environments": actors.count}
        if actors.samples_per_insert is not None:
            following["training_intensity"] = actors.samples_per_insert
        return following | given


def has_importance_weights(config: OffPolicyKeys) -> bool:
    """Whether transitions are weighed by the learner's probability of its actors' actions."""
    return isinstance(config, WithActors) and config.actors is not None and config.actors.importance_weights


def has_actors(config: TrainConfig) -> bool:
    """Whether actors choose the actions of training."""
    return isinstance(config, WithActors) and config.actors is not None
