"""Replaces the tensors that objects hold by others: for steps that are traced, and agents in programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any, NamedTuple, Self, final


class Slot(NamedTuple):
    """A place for a value: a key of a dict or list, or a variable that a closure holds."""

    path: str
    holder: Any
    key: Any = None

    @property
    def value(self) -> Any:
        """The value at this place."""
        return self.holder.cell_contents if isinstance(self.holder, CellType) else self.holder[self.key]

    def put(self, value: object) -> None:
        """Replaces the value at this place."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


@final
class Slots:
    """An ordered collection of places that hold items of a kind, such as tensors; all can be read and replaced.

    Args:
        kind: the type, or types, of the items. A place holds an item, or a tuple that contains some.
        slots: the places.
    """

    def __init__(self, kind: Any, slots: Iterable[Slot] = ()) -> None:
        self._kind = kind
        self._slots = list(slots)
        self._count = 0

    @classmethod
    def attributes(cls, owner: object, names: Iterable[str]) -> Self:
        """Makes the collection of an object's attributes, of any type."""
        return cls(object, [Slot(name, vars(owner), name) for name in names])

    def add(self, slot: Slot) -> None:
        """Adds a place after the others, unless it was the last to be added."""
        if not self._slots or self._slots[-1] is not slot:
            self._slots.append(slot)
            self._count += len(items_of(slot.value, self._kind))

    def is_complete(self) -> bool:
        """Whether the places that were added hold as many items as then."""
        return len(self.read()) == self._count

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yields each item with the path of its place."""
        for slot in self._slots:
            for item in items_of(slot.value, self._kind):
                yield slot.path, item

    def read(self) -> list[Any]:
        """Returns the items at all places."""
        return [item for _, item in self]

    def put(self, others: Iterable[Any]) -> None:
        """Puts other values there, the same number as :meth:`read` gives; a place with its own value is unchanged."""
        rest = iter(others)
        for slot in self._slots:
            value = slot.value
            before = items_of(value, self._kind)
            after = [next(rest) for _ in before]
            if any(x is not y for x, y in zip(before, after, strict=True)):  # a tuple stays the same object if possible
                slot.put(_fill_slots(value, self._kind, iter(after)))

    @contextmanager
    def holding(self, others: Iterable[Any]) -> Iterator[None]:
        """Puts other values in the places during a block, and restores the previous values after it."""
        before = [slot.value for slot in self._slots]
        try:
            self.put(others)
            yield
        finally:
            for slot, value in zip(self._slots, before, strict=True):
                slot.put(value)


def items_of(value: Any, kind: Any) -> list[Any]:
    """Returns the items of a kind in a value: the value itself, or the items in its tuples."""
    if isinstance(value, kind):
        return [value]
    return [x for item in value for x in items_of(item, kind)] if isinstance(value, tuple) else []


def _fill_slots(value: Any, kind: Any, others: Iterator[Any]) -> Any:
    if isinstance(value, kind):
        return next(others)
    if not isinstance(value, tuple):
        return value
    items = [_fill_slots(item, kind, others) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # a named tuple takes them one by one
