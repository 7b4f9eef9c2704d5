"""The plain operations of one simulation, which run without Python: describes each to C++, and reads its counts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, final

from torch._ops import OpOverload

from .descriptions import At, Descriptions, OperationDescription, descriptions_of
from .library import Counts, library
from .plain import Notes

_ROLES = ("forward", "backward", "optimizer", "averages", "targets")
"""Roles of operations, by the numbers that the C++ has for them."""
_WORD = (1 << 64) - 1  # the bits of an unsigned integer in C++


class Counting(Protocol):
    """Counts stochastic roundings; see :class:`.presence.draws.Draws`."""

    number: int
    seed: int
    width: int

    def set_listener(self, listener: Callable[[int, int], None]) -> None:
        """Makes each thread that counts call ``listener``."""


@final
class Shortcut:
    """The C++ counterpart of one simulation, which receives its places (:class:`.policy.places.PlaceFollower`).

    Args:
        loaded: the library.
        mode: the simulation.
        follows: whether the plan of an operation depends on its place.
        descriptions: the plain operations, shared with simulations of equal arithmetic.
        draws: the counter of its stochastic roundings.
    """

    def __init__(
        self, loaded: Any, mode: object, descriptions: Descriptions, draws: Counting, *, follows: bool
    ) -> None:
        self._loaded, self._descriptions, self._follows = loaded, descriptions, follows
        # Plans, with the addresses of their C++ counters and their descriptions
        self._plain: dict[At, tuple[Any, int, OperationDescription]] = {}
        self._handle = loaded.simulation(descriptions.handle, follows, draws.number, draws.seed & _WORD, draws.width)
        self._draws = draws
        if descriptions.draws:
            draws.set_listener(loaded.tell_draws)
        weakref.finalize(self, loaded.free, self._handle).atexit = False
        loaded.know(id(mode), self._handle)  # by address, until the mode is freed
        weakref.finalize(mode, loaded.forget, id(mode)).atexit = False

    @staticmethod
    def of(mode: object, notes: Notes, arithmetic: Hashable, draws: Counting, *, follows: bool) -> Shortcut | None:
        """Makes the shortcut of a simulation; None without the library.

        Args:
            mode: as above.
            notes: the kinds of notes that it takes.
            arithmetic: everything else that its plans depend on.
            draws: as above.
            follows: as above.
        """
        loaded = library()
        if loaded is None:
            return None
        descriptions = descriptions_of(loaded, notes, (arithmetic, follows))
        return Shortcut(loaded, mode, descriptions, draws, follows=follows)

    def describe(self, plan: Any) -> None:
        """Makes an operation run without Python from its next call on, if it is plain."""
        at = At(plan.operation, plan.role, plan.module)
        described = self._descriptions.describe(plan, at)
        if described is not None:
            plain = self._loaded.describe(self._handle, *self._place(at), described.description)
            if described.description.draws:
                self._draws.set_listener(self._loaded.tell_draws)
            if plain:
                self._plain[at] = plan, plain, described

    def _place(self, at: At) -> tuple[int, int, bytes]:
        role = _ROLES.index(at.role) if self._follows else 0
        return role, self._descriptions.module(at.module), at.operation.name().encode()  # type: ignore[no-untyped-call]

    def count(self, resolve: Callable[[OpOverload, str, str], object]) -> None:
        """Adds to the plans the counts since the last call.

        Args:
            resolve: makes the plan of an operation at a place that Python has no plan for.
        """
        # Operations that C++ ran here although only an earlier simulation of the same arithmetic has described them
        for at, _ in self._descriptions.plain():
            if at not in self._plain and self._loaded.counted(self._handle, *self._place(at)):
                resolve(*at)
        counts = Counts()
        for plan, plain, described in list(self._plain.values()):
            self._loaded.take_counts(plain, counts)
            plan.outcome.calls += counts.calls
            plan.outcome.moved += counts.moved
            plan.outcome.rounded += counts.rounded
            plan.outcome.left_whole += counts.left_whole
            for place, operand in described.counted:
                if times := self._loaded.take_seen(plain, place):  # a zero would make an entry
                    plan.outcome.seen[operand] += times

    def module_begins(self, path: str, depth: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.module(self._handle, self._descriptions.module(path), depth)

    def module_ends(self, depth: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.module(self._handle, -1, depth)

    def part_begins(self, path: str, depth: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.part_begins(self._handle, self._descriptions.module(path), depth)

    def part_changes(self, path: str, backward_pass: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.part(self._handle, self._descriptions.module(path), backward_pass)

    def optimizers_change(self, count: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.optimizers(self._handle, count)

    def forget_threads(self) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.left(self._handle)

    def here(self) -> tuple[str, str] | None:
        """Returns the role and module of this thread in the C++ part; None if it does not know them."""
        place = self._loaded.here(self._handle)
        # The role is in the lowest four bits.
        return None if place < 0 else (_ROLES[place & 15], self._descriptions.path(place >> 4))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Runs every operation of the block through Python."""
        self._loaded.hold_simulation(self._handle, True)
        try:
            yield
        finally:
            self._loaded.hold_simulation(self._handle, False)

    def marks(self, address: int) -> int:
        """Returns the bits of a storage; see :class:`..marks.table.NativeTable`."""
        bits: int = self._loaded.marks(self._handle, address)
        return bits

    def set_marks(self, address: int, on: int, off: int) -> None:
        """Sets and clears bits of a storage; see :class:`..marks.table.NativeTable`."""
        self._loaded.set_marks(self._handle, address, on, off)
