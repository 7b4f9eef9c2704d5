"""The key for the values that a run keeps in memory in separate formats: weights, activations, gradients, moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_serializer


def canonical_format(name: str) -> str:
    """Returns the canonical name of a format."""
    from ...formats import Format  # noqa: PLC0415  imports torch, which costs seconds

    return str(Format.parse(name))


def _rounding(name: str) -> str:
    from ...formats import Rounding  # noqa: PLC0415  imports torch, which costs seconds

    return str(Rounding.parse(name))


STOCHASTIC = "stochastic"


@final
class Stored(BaseModel):
    """A storage format, and the rounding to it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Annotated[str, AfterValidator(canonical_format)]
    rounding: Annotated[str, AfterValidator(_rounding)] = "nearest-even"


def _read_stored(value: Any) -> Any:
    if isinstance(value, str):
        value = {"format": value}
    if value is None or isinstance(value, Stored):
        return value
    if not isinstance(value, Mapping) or "format" not in value or not set(value) <= set(Stored.model_fields):
        raise ValueError(
            f"must be a format, or a mapping such as {{format: mxint8, rounding: stochastic}}, got {value!r}"
        )
    return dict(value)


_SCHEMA_OF_STORED = {
    "type": ["string", "object", "null"],
    "properties": {name: {"type": "string"} for name in Stored.model_fields},
    "required": ["format"],
    "additionalProperties": False,
}
StoredKey = Annotated[Stored | None, BeforeValidator(_read_stored), WithJsonSchema(_SCHEMA_OF_STORED)]


@final
class Storage(BaseModel):
    """Storage formats by kind of value, while ``format`` is the format of computation.

    A value is rounded when it is written to memory, and used as it is read back. Kinds that are left out are kept in
    ``format``. In block formats, activations and their gradients share scales along the last axis, and all other kinds
    along the parameters of a network in a row, across its layers.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    weights: StoredKey = Field(default=None, description="Weights and biases of networks, after each step.")
    activations: StoredKey = Field(
        default=None, description="Inputs of networks and results of hidden layers: all that is multiplied by weights."
    )
    gradients: StoredKey = Field(
        default=None,
        description="Gradients by the results of layers, in the backward pass. A format that saturates hides overflow"
        " from `compound_loss_scaling`.",
    )
    weight_gradients: StoredKey = Field(default=None, description="Gradients by weights and biases.")
    first_moments: StoredKey = Field(default=None, description="First moments of the optimizer.")
    second_moments: StoredKey = Field(
        default=None, description="Second moments of the optimizer; with hAdam, their roots."
    )
    compensations: StoredKey = Field(
        default=None,
        description="Compensations of `kahan_gradients`: the amounts that weights have lost so far. With this key, all"
        " networks are compensated.",
    )
    targets: StoredKey = Field(
        default=None,
        description="Weights of target networks. They are moved by one operation, rounded once, which takes the place"
        " of `kahan_momentum`.",
    )
    target_compensations: StoredKey = Field(
        default=None, description="The amounts that `targets` have lost so far; none: no compensation."
    )

    @property
    def formats(self) -> dict[str, Stored]:
        """The formats of the values that are stored in separate formats, by name."""
        return {name: stored for name in type(self).model_fields if (stored := getattr(self, name)) is not None}

    @property
    def is_random(self) -> bool:
        """Whether something is rounded stochastically."""
        return any(stored.rounding == STOCHASTIC for stored in self.formats.values())

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        """Returns storage as written in a file: only the given keys, or only the format if nothing else is given."""
        plain = Stored.model_fields["rounding"].default
        return {
            name: stored.format if stored.rounding == plain else stored.model_dump()
            for name, stored in self.formats.items()
        }


LAYERS = ("activations", "gradients")
"""The keys about results of a network's layers."""


def check_fit(storage: Storage, format: str) -> None:
    """Raises ValueError if an agent that computes in ``format`` cannot use one of the storage formats."""
    import torch  # noqa: PLC0415  costs seconds

    from ...formats import Format, FormatError, RandomBits, round  # noqa: PLC0415  costs seconds

    numbers = torch.zeros(1, dtype=Format.parse(format).carrier)
    for name, stored in storage.formats.items():
        random = RandomBits(0) if stored.rounding == STOCHASTIC else None
        try:
            round(numbers, stored.format, rounding=stored.rounding, random=random)
        except FormatError as error:
            raise ValueError(f"storage.{name}: {stored.format} is not for an agent in {format}: {error}") from None


def read_storage(value: Any) -> Any:
    """Returns a value of the key; raises a descriptive ValueError for anything else."""
    if value is None or isinstance(value, Storage):
        return value
    names = list(Storage.model_fields)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be a mapping such as {{weights: mxint8, gradients: e5m2}}, got {value!r}")
    for name in value:
        if name not in names:
            raise ValueError(f"has no key {name!r}; allowed are {', '.join(names)}")
    return {name: stored for name, stored in value.items() if stored is not None} or None  # All null: no storage.
