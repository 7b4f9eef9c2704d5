"""The plain operations of one simulation, which run without Python: described to the C++ one by one, and counted."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from .library import Counts, library
from .plain import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .plain import Notes


class Marking(Protocol):
    """Knows something of pieces of memory."""

    def tell(self, told: Callable[[int, bool], None]) -> None:
        """Has ``told`` called with the address of each, and whether it is so, or no longer."""


@final
class Shortcut:
    """What the C++ knows of one simulation.

    Args:
        loaded: the library.
        mode: the simulation.
        notes: what it takes notes of.
        marks: memory of which something is known, with the kind of mark; see :mod:`.plain`.
    """

    def __init__(self, loaded: Any, mode: object, notes: Notes, marks: Iterable[tuple[Marking, int]]) -> None:
        self._loaded, self._notes = loaded, notes
        self._plain: list[tuple[Any, int]] = []  # plans, with what the C++ counts for them
        self._handle = loaded.simulation()
        weakref.finalize(self, loaded.free, self._handle).atexit = False
        for marking, kind in marks:
            marking.tell(partial(self._mark, kind))  # so that this lives as long as what it is told by
        loaded.know(id(mode), self._handle)
        weakref.finalize(mode, loaded.forget, id(mode)).atexit = False

    @staticmethod
    def of(mode: object, notes: Notes, marks: Iterable[tuple[Marking, int]]) -> Shortcut | None:
        """Makes the shortcut of a simulation; None where there is no library."""
        loaded = library()
        return None if loaded is None else Shortcut(loaded, mode, notes, marks)

    def describe(self, plan: Any) -> None:
        """Has an operation run without Python from its next call on, if it is plain."""
        description = described(plan, self._notes)
        if description is not None:
            plain = self._loaded.describe(self._handle, plan.operation.name().encode(), description)
            if plain:
                self._plain.append((plan, plain))

    def count(self) -> None:
        """Adds to the plans what has been counted since it was asked last."""
        counts = Counts()
        for plan, plain in self._plain:
            self._loaded.take_counts(plain, counts)
            plan.calls += counts.calls
            plan.moved += counts.moved
            plan.rounded += counts.rounded
            plan.left_whole += counts.left_whole

    @contextmanager
    def held(self) -> Iterator[None]:
        """For the block, every operation of the simulation goes through Python."""
        self._loaded.hold_simulation(self._handle, True)
        try:
            yield
        finally:
            self._loaded.hold_simulation(self._handle, False)

    def _mark(self, kind: int, memory: int, on: bool) -> None:
        self._loaded.mark(self._handle, kind, memory, on)
