"""The subject of a sweep, agents or a user's program: it defines the keys of runs and builds their configs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ..wording import complaint


class RunConfig(Protocol):
    """The config of a run, of any subject."""

    @property
    def task(self) -> str:
        """The subject of training: the task of an agent, or the name of a function."""

    @property
    def format(self) -> str:
        """The number format, as it is written."""

    @property
    def seed(self) -> int:
        """The seed of all random streams."""

    @property
    def steps(self) -> int:
        """The length of the run; 0 where it is not known in advance."""

    def as_json(self) -> dict[str, Any]:
        """Returns the identity of the run, as JSON values; its name is made from them."""


class Subject(Protocol):
    """The kind of the runs of a sweep. Each value is checked by itself first, then all of a run together."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a run may set."""

    def canonical(self, key: str, value: Any) -> Any:
        """Converts a value to the form of a config: ``fp16`` becomes ``e5m10``, ``fixes: none`` an empty tuple.

        Args:
            key: one of :attr:`keys`.
            value: as read from YAML.

        Raises:
            ValidationError: it is not a value of the key.
        """

    def is_whole(self, key: str) -> bool:
        """Whether the values of ``key`` are integers."""

    def config(self, values: dict[str, Any]) -> RunConfig | list[str]:
        """Returns the config of the run with these values, or the mistakes in them."""

    def value(self, run: RunConfig, key: str) -> Any:
        """Returns a config's value of a key, in canonical form; None for a key that it does not have."""

    def default(self, key: str, values: Mapping[str, Any]) -> Any:
        """Returns the value of ``key`` in a run without it; ``values`` are the others."""

    def in_format(self, run: RunConfig, name: str, key: str = "format") -> RunConfig:
        """Returns the run with another format under ``key``, where it has a format."""

    def mistakes(self, key: str, value: Any) -> list[str]:
        """Describes the mistakes in ``value`` as a value of ``key``, regardless of other keys; usually none."""
        try:
            self.canonical(key, value)
        except ValidationError as error:
            return [f"{key}: {complaint(mistake)}" for mistake in error.errors()]
        return []


def adapter_of(field: FieldInfo) -> TypeAdapter[Any]:
    """Makes the adapter that checks a value of a field by itself."""
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    # The model refuses infinity and NaN for all its numbers; the adapter of a plain type needs its own setting for it.
    plain = {"allow_inf_nan": False, "strict": True}
    return TypeAdapter(annotation, config=plain)  # type: ignore[arg-type]


class Run(NamedTuple):
    """One planned run."""

    id: str
    """Name of its directory: task, format, seed, and a hash of the whole config."""
    config: RunConfig
    case: str = ""
    """Name of the case it belongs to, if the sweep has any."""


def run_id(config: RunConfig) -> str:
    """The name of a run's directory; equal configs have equal names, whatever sweep they are part of."""
    canonical = json.dumps(config.as_json(), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
    # gym:Pendulum-v1 would be no good name of a folder, nor module:format.
    task, fmt = (re.sub(r"[^\w.-]", "_", name) for name in (config.task, config.format))
    return f"{task}-{fmt}-s{config.seed}-{digest}"
