"""Describes plain operations to the C++ part, once for all simulations of equal arithmetic.

A function decorated with a simulation makes one in each call, and a program may make one in each step.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, final

from torch._ops import OpOverload

from roundoff.locks import new_lock

from .library import Description
from .loops import Loops, PlanOfOperation
from .plain import Notes, described
from .seen_products import Counted

_MOST = 1 << 14
"""The largest number of shared descriptions: a program that keeps naming new modules or parts starts over."""


class OperationDescription(NamedTuple):
    """The C++ description of a plain operation, and where it counts rounded operands."""

    description: Description
    counted: list[Counted]
    """The places where it counts rounded operands."""


class At(NamedTuple):
    """An operation at a place."""

    operation: OpOverload
    role: str
    module: str


@final
class Descriptions:
    """The plain operations of all simulations of equal arithmetic.

    Args:
        loaded: the library.
        notes: the kinds of notes that simulations take.

    Attributes:
        handle: its identifier in the C++.
        draws: whether any of them takes random bits.
    """

    def __init__(self, loaded: Any, notes: Notes) -> None:
        self._notes, self._loops = notes, Loops()
        self._described: dict[At, OperationDescription | None] = {}
        self._modules = {"": 0}
        self._lock = new_lock()
        self.draws = False
        self.handle = loaded.descriptions()
        weakref.finalize(self, loaded.free_descriptions, self.handle).atexit = False  # then the process frees all

    def describe(self, plan: PlanOfOperation, at: At) -> OperationDescription | None:
        """Returns the C++ description of an operation; None if it is not plain."""
        if at not in self._described:
            parts = described(plan, self._notes, self._loops)
            description = None if parts is None else OperationDescription(*parts)
            self.draws = self.draws or (description is not None and bool(description.description.draws))
            self._described.setdefault(at, description)
        return self._described[at]

    def plain(self) -> Iterator[tuple[At, OperationDescription]]:
        """Yields the plain operations, with their places."""
        return ((at, description) for at, description in list(self._described.items()) if description is not None)

    def is_full(self) -> bool:
        """Whether new simulations must not share it any more."""
        return len(self._described) >= _MOST

    def module(self, path: str) -> int:
        """Returns the number of a module, new at its first use."""
        number = self._modules.get(path)
        if number is None:
            with self._lock:
                number = self._modules.setdefault(path, len(self._modules))
        return number

    def path(self, number: int) -> str:
        """Returns the path of the module with a number."""
        return list(self._modules)[number]


def descriptions_of(loaded: Any, notes: Notes, arithmetic: Hashable) -> Descriptions:
    """Returns the descriptions of an arithmetic.

    Args:
        loaded: the library.
        notes: the kinds of notes that its simulations take.
        arithmetic: everything else that plans depend on.
    """
    try:
        hash(arithmetic)
    except TypeError:  # a format of the user has no hash
        return Descriptions(loaded, notes)
    if shared(loaded, notes, arithmetic).is_full():
        shared.cache_clear()
    return shared(loaded, notes, arithmetic)


@lru_cache(maxsize=32)
def shared(loaded: Any, notes: Notes, arithmetic: Hashable) -> Descriptions:  # noqa: ARG001  part of the cache key
    """Returns the descriptions that simulations of an arithmetic share at present."""
    return Descriptions(loaded, notes)
