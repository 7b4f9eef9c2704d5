"""The plain operations of one simulation, which run without Python: described to the C++ one by one, and counted."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from .library import Counts, library
from .loops import Loops
from .plain import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .library import Description
    from .plain import Notes
    from .seen_products import Counted


_ROLES = ("forward", "backward", "optimizer", "averages", "targets")
"""Roles of operations, by the numbers that the C++ has for them."""
_WORD = (1 << 64) - 1


class Marking(Protocol):
    """Knows something of pieces of memory."""

    def tell(self, told: Callable[[int, bool], None]) -> None:
        """Has ``told`` called with the address of each, and whether it is so, or no longer."""


class Counting(Protocol):
    """Counts stochastic roundings; see :class:`.presence.draws.Draws`."""

    number: int
    seed: int

    def tell(self, told: Callable[[int, int], None]) -> None:
        """Has ``told`` called in each thread that counts."""


@final
class Shortcut:
    """What the C++ knows of one simulation.

    Args:
        loaded: the library.
        mode: the simulation.
        follows: whether it depends on the place what is done with an operation; see
            :class:`.policy.places.PlaceFollower`, which this is.
        draws: counts its stochastic roundings.
        changed: numbers that rounding has changed visibly, by the addresses of their memory; None if none are noted.
        notes: what it takes notes of.
        marks: memory of which something is known, with the kind of mark; see :mod:`.plain`.
    """

    def __init__(
        self,
        loaded: Any,
        mode: object,
        notes: Notes,
        marks: Iterable[tuple[Marking, int]],
        draws: Counting,
        *,
        follows: bool,
        changed: Marking | None = None,
    ) -> None:
        self._loaded, self._notes, self._follows = loaded, notes, follows
        # Plans, with what the C++ knows and counts for them.
        self._plain: list[tuple[Any, int, Description, list[Counted]]] = []
        self._modules = {"": 0}
        self._lock = threading.Lock()
        self._loops = Loops()
        self._handle = loaded.simulation(follows, draws.number, draws.seed & _WORD)
        self._draws = draws
        weakref.finalize(self, loaded.free, self._handle).atexit = False
        for marking, kind in marks:
            marking.tell(partial(self._mark, kind))  # so that this lives as long as what it is told by
        if changed is not None:
            changed.tell(self._change)
        loaded.know(id(mode), self._handle)
        weakref.finalize(mode, loaded.forget, id(mode)).atexit = False

    @staticmethod
    def of(
        mode: object,
        notes: Notes,
        marks: Iterable[tuple[Marking, int]],
        draws: Counting,
        *,
        follows: bool,
        changed: Marking | None = None,
    ) -> Shortcut | None:
        """Makes the shortcut of a simulation; None where there is no library."""
        loaded = library()
        return None if loaded is None else Shortcut(loaded, mode, notes, marks, draws, follows=follows, changed=changed)

    def describe(self, plan: Any) -> None:
        """Has an operation run without Python from its next call on, if it is plain."""
        found = described(plan, self._notes, self._loops)
        if found is not None:
            description, counted = found
            role = _ROLES.index(plan.role) if self._follows else 0
            place = role, self._module(plan.module)
            plain = self._loaded.describe(self._handle, *place, plan.operation.name().encode(), description)
            if description.draws:
                self._draws.tell(self._loaded.tell_draws)
            if plain:
                self._plain.append((plan, plain, description, counted))

    def count(self) -> None:
        """Adds to the plans what has been counted since it was asked last."""
        counts = Counts()
        for plan, plain, _, counted in self._plain:
            self._loaded.take_counts(plain, counts)
            plan.outcome.calls += counts.calls
            plan.outcome.moved += counts.moved
            plan.outcome.rounded += counts.rounded
            plan.outcome.left_whole += counts.left_whole
            for place, which in counted:
                times = self._loaded.take_seen(plain, place)
                if times:
                    plan.outcome.seen[which] += times

    def module_begins(self, path: str, around: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.module(self._handle, self._module(path), around)

    def module_ends(self, around: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.module(self._handle, -1, around)

    def part_begins(self, path: str, around: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.part_begins(self._handle, self._module(path), around)

    def part(self, path: str, begun: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.part(self._handle, self._module(path), begun)

    def optimizers(self, count: int) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.optimizers(self._handle, count)

    def left(self) -> None:
        """See :class:`.policy.places.PlaceFollower`."""
        self._loaded.left(self._handle)

    def here(self) -> tuple[str, str] | None:
        """The role and the module of this thread, as the C++ finds them; None if it does not know."""
        found = self._loaded.here(self._handle)
        return None if found < 0 else (_ROLES[found & 15], list(self._modules)[found >> 4])

    def _module(self, path: str) -> int:
        """The number of a module."""
        number = self._modules.get(path)
        if number is None:
            with self._lock:
                number = self._modules.setdefault(path, len(self._modules))
        return number

    @contextmanager
    def held(self) -> Iterator[None]:
        """For the block, every operation of the simulation goes through Python."""
        self._loaded.hold_simulation(self._handle, True)
        try:
            yield
        finally:
            self._loaded.hold_simulation(self._handle, False)

    def remembers(self, what: int, memory: int) -> bool:
        """Whether C++ knows that memory was computed inside (0), multiplied (1; with a weight: 2), or is whole (3)."""
        return bool(self._loaded.remembers(self._handle, what, memory))

    def _change(self, number: int, on: bool) -> None:
        self._loaded.change(self._handle, number, on)

    def _mark(self, kind: int, memory: int, on: bool) -> None:
        self._loaded.mark(self._handle, kind, memory, on)
