"""Sizes and types of observations and actions, for learners."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self, final

import numpy as np

_DTYPES = {np.dtype(kind).name: kind for kind in (np.float32, np.float64, np.uint8, np.bool_)}


class Sizes(Protocol):
    """The sizes and kinds of observations and actions; see ``TaskEnvironment``."""

    @property
    def observation_size(self) -> int: ...  # noqa: D102
    @property
    def observation_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def observation_dtype(self) -> type[np.generic]: ...  # noqa: D102
    @property
    def frames(self) -> int: ...  # noqa: D102
    @property
    def action_size(self) -> int: ...  # noqa: D102
    @property
    def discrete(self) -> bool: ...  # noqa: D102


@final
@dataclass(frozen=True)
class KnownSizes:
    """The sizes of environments, stored with a run, so that the environments are not needed; see ``Sizes``."""

    observation_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: type[np.generic]
    frames: int
    action_size: int
    discrete: bool

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        """Copies the sizes of environments."""
        return cls(**{name: getattr(sizes, name) for name in cls.__dataclass_fields__})

    def as_plain(self) -> dict[str, Any]:
        """Returns the sizes as numbers, texts and lists."""
        return asdict(self) | {
            "observation_shape": list(self.observation_shape),
            "observation_dtype": np.dtype(self.observation_dtype).name,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """Reads the result of :meth:`as_plain`; raises KeyError, TypeError or ValueError for anything else."""
        shape = tuple(value["observation_shape"])
        numbers = {name: value[name] for name in ("observation_size", "frames", "action_size")}
        if any(type(number) is not int or number < 1 for number in (*shape, *numbers.values())):
            raise ValueError(value)
        if type(value["discrete"]) is not bool:
            raise TypeError(value)
        dtype = _DTYPES[value["observation_dtype"]]
        return cls(observation_shape=shape, observation_dtype=dtype, discrete=value["discrete"], **numbers)
