"""Agents of any algorithm as the subject of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ...agents import TrainConfig
from ...agents.config import config_class, fields_of, keys
from ..wording import complaint
from .subject import RunConfig, Subject, adapter_of


@final
class Agents(Subject):
    """The agents of :mod:`roundoff.agents`, of any algorithm."""

    def __init__(self) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return keys()

    def canonical(self, key: str, value: Any) -> Any:  # noqa: D102
        if key not in self._adapters:
            self._adapters[key] = adapter_of(_field(key))
        return self._adapters[key].validate_python(value, strict=True)

    def is_whole(self, key: str) -> bool:  # noqa: D102
        return _field(key).annotation is int

    def config(self, values: dict[str, Any]) -> RunConfig | list[str]:  # noqa: D102
        try:
            return TrainConfig(**values)
        except ValidationError as error:
            return [complaint(mistake) for mistake in error.errors()]

    def value(self, run: RunConfig, key: str) -> Any:  # noqa: D102
        return getattr(run, key, None)  # None for keys of other algorithms

    def default(self, key: str, values: Mapping[str, Any]) -> Any:  # noqa: D102
        field = config_class(values).model_fields.get(key)
        return field.default if field else None

    def in_format(self, run: RunConfig, name: str, key: str = "format") -> RunConfig:  # noqa: D102
        values = run.as_json()
        if key == "format":
            return TrainConfig(**{**values, "format": name, "native": False})
        holder, _, inner = key.partition(".")
        return TrainConfig(**{**values, holder: {**values[holder], inner: name}})


AGENTS = Agents()


def _field(key: str) -> FieldInfo:
    """Returns the field of a key in any algorithm: all allow the same values, if not with the same default."""
    return next(iter(fields_of(key).values()))
