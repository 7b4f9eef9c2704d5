"""Whether containers still hold the very objects that they held: one look at each, without looking into these."""

from __future__ import annotations

from types import CellType
from typing import TYPE_CHECKING, Any, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MISSING = object()


class _Part(NamedTuple):
    """Some keys of a dict, and all that it has, if it may have no others."""

    holder: Any
    all: frozenset[str] | None
    keys: tuple[str, ...]
    ids: tuple[int, ...]
    values: tuple[Any, ...]


class _Whole(NamedTuple):
    """A dict or a list; of a list, the keys are empty."""

    holder: Any
    keys: tuple[Any, ...]
    ids: tuple[int, ...]
    values: tuple[Any, ...]


@final
class Watch:
    """Remembers containers, and what is in them: by identity, which does not return as long as nothing is freed."""

    def __init__(self) -> None:
        self._empty: list[dict[Any, Any]] = []
        self._dicts: list[_Whole] = []
        self._lists: list[_Whole] = []
        self._parts: list[_Part] = []
        self._cells: list[tuple[CellType, Any]] = []

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

    def cell(self, holder: CellType) -> None:
        """A variable that a closure holds."""
        self._cells.append((holder, holder.cell_contents))

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        if any(self._empty):
            return False
        for holder, keys, ids, _ in self._dicts:
            if tuple(map(id, holder.values())) != ids or tuple(map(id, holder)) != tuple(map(id, keys)):
                return False
        for holder, _, ids, _ in self._lists:
            if tuple(map(id, holder)) != ids:
                return False
        for holder, every, part, ids, _ in self._parts:
            if every is not None and len(holder) != len(every):
                return False
            if tuple([id(holder.get(key, _MISSING)) for key in part]) != ids:
                return False
        return all(cell.cell_contents is value for cell, value in self._cells)

    def restore(self) -> None:
        """Makes all as it was."""
        for empty in self._empty:
            empty.clear()
        for holder, keys, ids, values in self._dicts:
            if tuple(map(id, holder.values())) != ids or tuple(map(id, holder)) != tuple(map(id, keys)):
                holder.clear()
                holder.update(zip(keys, values, strict=True))
        for holder, _, _, values in self._lists:
            holder[:] = values
        for holder, every, part, _, values in self._parts:
            for key in () if every is None else set(holder) - every:
                del holder[key]
            for key, value in zip(part, values, strict=True):
                if value is _MISSING:
                    holder.pop(key, None)
                elif holder.get(key, _MISSING) is not value:
                    holder[key] = value
        for cell, value in self._cells:
            cell.cell_contents = value
