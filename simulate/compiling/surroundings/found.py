"""What is found around a step: places that hold tensors and numbers, constants; and whether it is still there."""

from __future__ import annotations

from numbers import Number as PythonNumber
from types import CellType
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Slot(NamedTuple):
    """A place in which something can be put: a key of a dict or list, or a variable that a closure holds."""

    path: str
    holder: Any
    key: Any = None

    @property
    def value(self) -> Any:
        """What is there."""
        return self.holder.cell_contents if isinstance(self.holder, CellType) else self.holder[self.key]

    def put(self, value: object) -> None:
        """Puts something else there."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


class Findings(NamedTuple):
    """What one look has found, in an order that depends on the structure alone."""

    slots: list[Slot]
    """The places of tensors, or of tuples with tensors in them."""
    numbers: list[Slot]
    """The places of numbers that may be others in every call, or of tuples of them."""
    settings: dict[str, tuple[str, tuple[float, ...]]]
    """The other numbers of an optimizer's parameter groups: the key of each, and its values."""
    keyed: list[Slot]
    """The places of dicts whose keys are tensors."""
    states: list[str]
    """The places where optimizers have their state."""
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    parts: list[tuple[str, Any]]
    """Constants and structure, each with where it is."""
    watch: ContainerWatch


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors that the value of a slot is, or that are in its tuples."""
    if isinstance(value, tuple):
        return [x for item in value for x in tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def floats_of(value: Any) -> list[float]:
    """The floats that the value of a slot is, or that are in its tuples; numbers without values are among them."""
    if isinstance(value, tuple):
        return [x for item in value for x in floats_of(item)]
    return [value] if isinstance(value, (float, torch.SymFloat)) else []  # type: ignore[list-item]


def filled(value: Any, kind: Any, news: Iterator[Any]) -> Any:
    """The value of a slot with the next of ``news`` for each that is of a kind."""
    if isinstance(value, tuple):
        items = [filled(item, kind, news) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return next(news) if isinstance(value, kind) else value


class ByIdentity:
    """An object that is a constant: equal to itself alone."""

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
    """What two constants must have in common to be the same to a program: 0.0 and -0.0 or 1, 1.0 and True are not."""
    return type(constant), repr(constant) if isinstance(constant, PythonNumber) else constant


_MISSING = object()


class _Part(NamedTuple):
    """Some keys of a dict, and all that it has, if it may have no others."""

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


class _Whole(NamedTuple):
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
    """Remembers containers, and what is in them: by identity, which does not return as long as nothing is freed."""

    def __init__(self) -> None:
        self._empty: list[dict[Any, Any]] = []
        self._dicts: list[_Whole] = []
        self._lists: list[_Whole] = []
        self._parts: list[_Part] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._sets: list[tuple[Any, Any]] = []

    def dict(self, holder: dict[Any, Any]) -> None:
        """All of a dict."""
        if holder:
            values = tuple(holder.values())
            self._dicts.append(_Whole(holder, tuple(holder), tuple(map(id, values)), values))
        else:
            self._empty.append(holder)

    def part(self, holder: Any, keys: Iterable[str], *, growing: bool) -> None:
        """Some keys of a dict; that it has no others, if it may not be ``growing``."""
        known = tuple(keys)
        values = tuple([holder.get(key, _MISSING) for key in known])
        self._parts.append(_Part(holder, None if growing else frozenset(holder), known, tuple(map(id, values)), values))

    def list(self, holder: Any) -> None:
        """A list."""
        values = tuple(holder)
        self._lists.append(_Whole(holder, (), tuple(map(id, values)), values))

    def set(self, holder: Any) -> None:
        """A set, by what is in it."""
        self._sets.append((holder, holder.copy()))

    def cell(self, holder: CellType) -> None:
        """A variable that a closure holds."""
        self._cells.append((holder, holder.cell_contents))

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        return (
            not any(self._empty)
            and all(map(_Whole.is_same_dict, self._dicts))
            and all(map(_Whole.is_same_list, self._lists))
            and all(map(_Part.is_same, self._parts))
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
