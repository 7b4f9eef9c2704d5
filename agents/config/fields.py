"""Declare a key of a config: its default, its meaning, and the keys that depend on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Annotated, Any, final

from pydantic import BaseModel, Field, ValidationError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Positive = Annotated[int, Field(ge=1, lt=2**31)]  # Larger than any possible size of a tensor or number of threads.
Count = Annotated[int, Field(ge=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Below1 = Annotated[float, Field(ge=0, lt=1)]


@final
@dataclass(frozen=True)
class Panel:
    """The vertical axis of a logged value.

    Attributes:
        label: the label of the vertical axis.
        log: whether the axis is logarithmic.
    """

    label: str
    log: bool = False


class KeyRole(Flag):
    """The roles of a key for code that treats several keys alike."""

    NONE = 0
    EXECUTION = auto()
    """Keys that do not change the training; runs that differ only in them have one condition."""
    ARITHMETIC = auto()
    """Keys of the arithmetic; a run and its reference in fp32 differ in them."""
    OUTSIDE_UPDATES = auto()
    """No update depends on it, so that agents that differ in it share compiled programs."""
    DATA = auto()
    """A number that compiled programs take as data."""
    TIMELESS = auto()
    """The time that a step takes does not depend on it."""
    AMOUNT = auto()
    """Keys of the amount of work, without the duration of a part of it."""
    LATER = auto()
    """A key that is newer than runs of its algorithm: at its default it is not part of their identity, so that they
    keep their names and can be continued."""


def key(default: Any, description: str, role: KeyRole = KeyRole.NONE) -> Any:
    """Declares a key of a config.

    Args:
        default: the default value.
        description: the meaning, with the unit; one or more sentences.
        role: further properties of the key.
    """
    return Field(default=default, description=description, json_schema_extra={"role": role.value})


def with_default(owner: type[BaseModel], name: str, default: Any, role: KeyRole | None = None) -> Any:
    """Declares the key of another class with a different default or role; its annotation repeats the allowed values."""
    field = owner.model_fields[name]
    extra: Any = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else None
    if role is not None:
        extra = {"role": role.value}
    return Field(default=default, description=field.description, json_schema_extra=extra)


def later_keys(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the keys of ``KeyRole.LATER`` with their defaults, which are left out of the identity of a run."""
    return {name: field.default for name, field in model.model_fields.items() if KeyRole.LATER in role_of(field)}


def role_of(field: FieldInfo) -> KeyRole:
    """Returns the role of a key that :func:`key` declared."""
    extra: Any = field.json_schema_extra
    return KeyRole(extra.get("role", 0) if isinstance(extra, dict) else 0)


def read_keys_under(name: str, model: type[BaseModel], value: Any) -> Any:
    """Reads a mapping as the keys below a key; anything else is left to pydantic.

    Raises:
        ValueError: the mapping has mistakes; the message has all of them.
    """
    if not isinstance(value, dict):
        return value
    try:
        return model(**value)
    except ValidationError as error:
        raise ValueError("; ".join(_error_message(name, model, item) for item in error.errors())) from None
    except TypeError:
        raise ValueError(f"the keys of {name} are names, got {value!r}") from None


def plain_data(name: str, value: Any, *, allow_nan: bool = False) -> Any:
    """Returns a value as JSON data, equal for equal values in any order; raises ValueError for anything else."""
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=allow_nan))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} takes finite numbers, text, truth values, null, lists and mappings: {error}"
        ) from None


def _error_message(name: str, model: type[BaseModel], error: Any) -> str:
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return f"{name}.{error['loc'][0]}: {message}" if error["loc"] else message
    if error["type"] == "extra_forbidden":
        return f"{name} has no key {error['loc'][0]}; allowed are {', '.join(model.model_fields)}"
    if error["type"] == "missing":
        return f"{name}.{error['loc'][0]} is missing, got {error['input']!r}"
    message = error["msg"].replace("Input should", "must")
    return f"{name}.{error['loc'][0]} {message}, got {error['input']!r}"
