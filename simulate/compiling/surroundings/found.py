"""References from a step to outside tensors, values and constants, and checks that they still hold."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number as PythonNumber
from types import CellType
from typing import Any, NamedTuple, final

import torch

from ..slots import Slot, Slots


class Findings(NamedTuple):
    """The findings of one look, in an order that depends on the structure only."""

    tensors: Slots
    """The places of tensors."""
    numbers: Slots
    """The places of numbers that may be others in every call; those without values are among them."""
    settings: dict[str, tuple[str, tuple[float, ...]]]
    """The other numbers of an optimizer's parameter groups: the key of each, and its values."""
    keyed: list[Slot]
    """The places of dicts with tensors as keys."""
    states: list[str]
    """The places where optimizers have their state."""
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    parts: list[tuple[str, Any]]
    """Constants and structure, each with where it is."""
    watch: ContainerWatch


NUMBERS = (float, torch.SymFloat)


class ByIdentity:
    """An object that is a constant: equal only to itself."""

    __slots__ = ("what",)

    def __init__(self, what: object) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.what is self.what

    def __hash__(self) -> int:
        return id(self.what)

    def __repr__(self) -> str:
        return f"another {type(self.what).__name__}"


def identity(constant: Any) -> Any:
    """Returns a key that equal constants of a program share: 0.0 and -0.0 or 1, 1.0 and True have different ones."""
    return type(constant), repr(constant) if isinstance(constant, PythonNumber) else constant


_MISSING = object()


class _WatchedKeys(NamedTuple):
    """Some keys of a dict, and all of its keys, if others are not allowed."""

    holder: Any
    all: frozenset[str] | None
    keys: tuple[str, ...]
    ids: tuple[int, ...]
    values: tuple[Any, ...]

    def is_same(self) -> bool:
        """Whether all is as it was."""
        if self.all is not None and len(self.holder) != len(self.all):
            return False
        return tuple([id(self.holder.get(key, _MISSING)) for key in self.keys]) == self.ids

    def restore(self) -> None:
        """Makes it as it was."""
        for key in () if self.all is None else set(self.holder) - self.all:
            del self.holder[key]
        for key, value in zip(self.keys, self.values, strict=True):
            if value is _MISSING:
                self.holder.pop(key, None)
            elif self.holder.get(key, _MISSING) is not value:
                self.holder[key] = value


class _WatchedContainer(NamedTuple):
    """A dict or a list; of a list, the keys are empty."""

    holder: Any
    keys: tuple[Any, ...]
    ids: tuple[int, ...]
    values: tuple[Any, ...]

    def is_same_dict(self) -> bool:
        """Whether all is as it was."""
        same = tuple(map(id, self.holder.values())) == self.ids
        return same and tuple(map(id, self.holder)) == tuple(map(id, self.keys))

    def is_same_list(self) -> bool:
        """Whether all of a list is as it was."""
        return tuple(map(id, self.holder)) == self.ids


@final
class ContainerWatch:
    """Remembers containers and their elements by identity, which is not reused as long as nothing is freed."""

    def __init__(self) -> None:
        self._empty: list[dict[Any, Any]] = []
        self._dicts: list[_WatchedContainer] = []
        self._lists: list[_WatchedContainer] = []
        self._parts: list[_WatchedKeys] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._sets: list[tuple[Any, Any]] = []

    def dict(self, holder: dict[Any, Any]) -> None:
        """All of a dict."""
        if holder:
            values = tuple(holder.values())
            self._dicts.append(_WatchedContainer(holder, tuple(holder), tuple(map(id, values)), values))
        else:
            self._empty.append(holder)

    def part(self, holder: Any, keys: Iterable[str], *, growing: bool) -> None:
        """Some keys of a dict; and that these are all, if it may not be ``growing``."""
        known = tuple(keys)
        values = tuple([holder.get(key, _MISSING) for key in known])
        self._parts.append(
            _WatchedKeys(holder, None if growing else frozenset(holder), known, tuple(map(id, values)), values)
        )

    def list(self, holder: Any) -> None:
        """A list."""
        values = tuple(holder)
        self._lists.append(_WatchedContainer(holder, (), tuple(map(id, values)), values))

    def set(self, holder: Any) -> None:
        """A set, by its elements."""
        self._sets.append((holder, holder.copy()))

    def cell(self, holder: CellType) -> None:
        """A variable that a closure holds."""
        self._cells.append((holder, holder.cell_contents))

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        return (
            not any(self._empty)
            and all(map(_WatchedContainer.is_same_dict, self._dicts))
            and all(map(_WatchedContainer.is_same_list, self._lists))
            and all(map(_WatchedKeys.is_same, self._parts))
            and all(cell.cell_contents is value for cell, value in self._cells)
            and all(of_set == values for of_set, values in self._sets)
        )

    def restore(self) -> None:
        """Makes all as it was."""
        for empty in self._empty:
            empty.clear()
        for whole in self._dicts:
            if not whole.is_same_dict():
                whole.holder.clear()
                whole.holder.update(zip(whole.keys, whole.values, strict=True))
        for holder, _, _, values in self._lists:
            holder[:] = values
        for some in self._parts:
            some.restore()
        for of_set, values in self._sets:
            of_set.clear()
            of_set.update(values)
        for cell, value in self._cells:
            cell.cell_contents = value
