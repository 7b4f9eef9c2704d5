"""References from a step to outside tensors, values and constants, and checks that they are unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number as PythonNumber
from types import CellType
from typing import Any, NamedTuple, final

import torch

from ....formats import FormatError
from ..slots import Slot, Slots


class Findings(NamedTuple):
    """The findings of one inspection, in an order that depends only on the structure."""

    tensors: Slots
    """The places of tensors."""
    numbers: Slots
    """The places of numbers that may differ in every call, also of numbers without values in a trace."""
    settings: dict[str, tuple[str, tuple[float, ...]]]
    """The other numbers of an optimizer's parameter groups: the key of each, and its values."""
    keyed: list[Slot]
    """The places of dicts with tensors as keys."""
    states: list[str]
    """The places where optimizers have their state."""
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    parts: list[tuple[str, Any]]
    """Constants and structure, each with its place."""
    watch: ContainerWatch


NUMBERS = (float, torch.SymFloat)


def check_hooks(tensors: Iterable[torch.Tensor], path: str = "a tensor around the step") -> None:
    """Refuses tensors with hooks."""
    for x in tensors:
        if x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None):  # noqa: SLF001  public nowhere
            raise FormatError(f"{path} has hooks, which a program would not call")


@final
class Attributes:
    """The attributes of a class, as a dict that can be written to."""

    def __init__(self, owner: type) -> None:
        self._owner = owner

    def get(self, key: str, default: object = None) -> Any:
        """Returns the attribute itself, such as a property."""
        return vars(self._owner).get(key, default)

    def __getitem__(self, key: str) -> Any:
        return vars(self._owner)[key]

    def __setitem__(self, key: str, value: object) -> None:
        setattr(self._owner, key, value)

    def pop(self, key: str, _: object = None) -> None:
        """Deletes the attribute."""
        delattr(self._owner, key)


class ByIdentity:
    """An object that is a constant: equal only to itself."""

    __slots__ = ("constant",)

    def __init__(self, constant: object) -> None:
        self.constant = constant  # held, so that no other object gets its id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.constant is self.constant

    def __hash__(self) -> int:
        return id(self.constant)

    def __repr__(self) -> str:
        return f"another {type(self.constant).__name__}"


def identity(constant: Any) -> Any:
    """Returns a key that equal constants of a program share: 0.0 and -0.0 or 1, 1.0 and True have different ones."""
    return type(constant), repr(constant) if isinstance(constant, PythonNumber) else constant


_MISSING = object()  # None may be a value


class _WatchedKeys(NamedTuple):
    """Some keys of a dict, and all of its keys, if others are not allowed."""

    holder: Any
    all_keys: frozenset[str] | None
    keys: tuple[str, ...]
    ids: tuple[int, ...]  # compared in one operation, faster than the values one by one
    values: tuple[Any, ...]  # held, so that no id is given to a new object

    def is_same(self) -> bool:
        """Whether the dict is unchanged."""
        if self.all_keys is not None and len(self.holder) != len(self.all_keys):
            return False
        return tuple([id(self.holder.get(key, _MISSING)) for key in self.keys]) == self.ids

    def restore(self) -> None:
        """Restores the previous keys and values."""
        for key in () if self.all_keys is None else set(self.holder) - self.all_keys:
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
        """Whether a dict is unchanged."""
        same = tuple(map(id, self.holder.values())) == self.ids
        return same and tuple(map(id, self.holder)) == tuple(map(id, self.keys))

    def is_same_list(self) -> bool:
        """Whether a list is unchanged."""
        return tuple(map(id, self.holder)) == self.ids


@final
class ContainerWatch:
    """Remembers containers and their elements by identity, which is not reused as long as nothing is freed."""

    def __init__(self) -> None:
        self._empty: list[dict[Any, Any]] = []  # such as the hooks of modules
        self._dicts: list[_WatchedContainer] = []
        self._lists: list[_WatchedContainer] = []
        self._parts: list[_WatchedKeys] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._sets: list[tuple[Any, Any]] = []

    def dict(self, holder: dict[Any, Any]) -> None:
        """Watches all of a dict."""
        if holder:
            values = tuple(holder.values())
            self._dicts.append(_WatchedContainer(holder, tuple(holder), tuple(map(id, values)), values))
        else:
            self._empty.append(holder)

    def part(self, holder: Any, keys: Iterable[str], *, growing: bool) -> None:
        """Watches some keys of a dict; other keys may appear only if it is ``growing``."""
        known = tuple(keys)
        values = tuple([holder.get(key, _MISSING) for key in known])
        self._parts.append(
            _WatchedKeys(holder, None if growing else frozenset(holder), known, tuple(map(id, values)), values)
        )

    def list(self, holder: Any) -> None:
        """Watches a list."""
        values = tuple(holder)
        self._lists.append(_WatchedContainer(holder, (), tuple(map(id, values)), values))

    def set(self, holder: Any) -> None:
        """Watches a set, by its elements."""
        self._sets.append((holder, holder.copy()))

    def cell(self, holder: CellType) -> None:
        """Watches a variable that a closure holds."""
        self._cells.append((holder, holder.cell_contents))

    def unchanged(self) -> bool:
        """Whether everything is unchanged."""
        return (
            not any(self._empty)
            and all(map(_WatchedContainer.is_same_dict, self._dicts))
            and all(map(_WatchedContainer.is_same_list, self._lists))
            and all(map(_WatchedKeys.is_same, self._parts))
            and all(cell.cell_contents is value for cell, value in self._cells)
            and all(watched == values for watched, values in self._sets)
        )

    def restore(self) -> None:
        """Restores the previous content everywhere."""
        for empty in self._empty:
            empty.clear()
        for entries in self._dicts:
            if not entries.is_same_dict():  # a dict is emptied first, so that its keys also get their order again
                entries.holder.clear()
                entries.holder.update(zip(entries.keys, entries.values, strict=True))
        for holder, _, _, values in self._lists:
            holder[:] = values  # the same list object, which others may hold
        for part in self._parts:
            part.restore()
        for watched, values in self._sets:
            watched.clear()
            watched.update(values)
        for cell, value in self._cells:
            cell.cell_contents = value
