"""The subject of a sweep, agents or a user's program: it defines the keys of runs and builds their configs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import TypeAdapter, ValidationError

from ..wording import complaint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo


class RunConfig(Protocol):
    """What a run is given, of whatever subject."""

    @property
    def task(self) -> str:
        """What is trained, in a word: a task of an agent's, the name of a function."""

    @property
    def format(self) -> str:
        """The number format, as it is written."""

    @property
    def seed(self) -> int:
        """The seed of all random streams."""

    @property
    def steps(self) -> int:
        """How long it is; 0 where that is not known before."""

    def as_json(self) -> dict[str, Any]:
        """What the run is, as JSON values; its name is made of it."""


class Subject(ABC):
    """What runs are of. Each value is checked by itself first, then all of a run together."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The keys that a run may set."""

    @abstractmethod
    def canonical(self, key: str, value: Any) -> Any:
        """``value`` as a config holds it: ``fp16`` becomes ``e5m10``, ``fixes: none`` an empty tuple.

        Args:
            key: one of :attr:`keys`.
            value: as read from YAML.

        Raises:
            ValidationError: it is no value of the key.
        """

    @abstractmethod
    def is_whole(self, key: str) -> bool:
        """Whether the values of ``key`` are whole numbers."""

    @abstractmethod
    def config(self, given: dict[str, Any]) -> RunConfig | list[str]:
        """The config of the run with these values, or what is wrong with them."""

    @abstractmethod
    def value(self, run: RunConfig, key: str) -> Any:
        """What a config says of a key, in canonical form; None for a key that it does not have."""

    @abstractmethod
    def default(self, key: str, given: Mapping[str, Any]) -> Any:
        """What ``key`` is where the values do not say it."""

    @abstractmethod
    def in_format(self, run: RunConfig, name: str, key: str = "format") -> RunConfig:
        """Returns the run with another format under ``key``; it has one there."""

    def mistakes(self, key: str, value: Any) -> list[str]:
        """What is wrong with ``value`` as a value of ``key``, regardless of other keys; usually nothing."""
        try:
            self.canonical(key, value)
        except ValidationError as error:
            return [f"{key}: {complaint(found)}" for found in error.errors()]
        return []


def adapter_of(field: FieldInfo) -> TypeAdapter[Any]:
    """Checks a value of a field by itself."""
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    # Infinity and NaN are refused by the model for all its numbers, and an adapter of a plain type can say so too.
    plain = {"allow_inf_nan": False, "strict": True}
    return TypeAdapter(annotation, config=plain)  # type: ignore[arg-type]
