"""Sums that rounding has stopped: additions in place that change next to nothing, call after call, in the same memory.

A moving average, a moment or a weight goes a small part of the way at every step. Rounded to the nearest it stops where
a step is below half an ulp. One absorbed addition does not matter; the same one at every step does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..presence.user_code import Line, here, text_of
from .watcher import Place

_SHARE = 0.9  # of the numbers that something was added to
_CALLS = 50  # one after the other
_PURGE_EVERY = 1 << 12


class StoppedAtLine(NamedTuple):
    """Sums that rounding has stopped, of one operation on one line."""

    role: str
    operation: str
    tensors: int
    numbers: int
    """The number of elements of the tensors."""
    calls: int
    """The longest row of calls that each left nine tenths of the elements that they added to unchanged."""
    line: str
    """The caller's own stack line."""

    def __str__(self) -> str:
        many = f"{self.tensors} tensors of together" if self.tensors > 1 else "a tensor of"
        return (
            f"stopped by rounding: {many} {self.numbers} numbers, to which {self.operation} ({self.role}) added"
            f" {self.calls} times in a row and changed less than a tenth\n  at {self.line}"
        )


@dataclass
class _Row:
    """The additions absorbed by one tensor's memory since one last took effect."""

    memory: StorageWeakRef
    place: Place
    numbers: int
    line: Line | None
    calls: int = 0
    longest: int = 0


class StoppedSums:
    """Follows additions in place."""

    def __init__(self) -> None:
        self._rows: dict[Any, _Row] = {}
        self._purge_at = _PURGE_EVERY

    def note(self, place: Place, tensors: Sequence[torch.Tensor], counts: Sequence[tuple[Any, Any]]) -> None:
        """Takes over to how many numbers of each tensor an operation in place has added, and how many stayed.

        Counts that still lie on a device are passed over: to look at them is to wait.
        """
        for x, (added, absorbed) in zip(tensors, counts, strict=True):
            if not isinstance(added, int) or not added:
                continue
            # What StorageWeakRef goes by, which keeps it from being another memory's.
            key = x.untyped_storage()._cdata, x.storage_offset(), place.operation  # noqa: SLF001
            row = self._rows.get(key)
            if absorbed < _SHARE * added:
                if row is not None:
                    row.calls = 0
                continue
            if row is None:
                self._purge()
                memory = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
                row = self._rows[key] = _Row(memory, place, x.numel(), here())
            row.calls += 1
            row.longest = max(row.longest, row.calls)

    def _purge(self) -> None:
        """Forgets memory that is gone, unless it must be reported."""
        if len(self._rows) > self._purge_at:
            self._rows = {
                key: row
                for key, row in self._rows.items()
                if row.longest >= _CALLS or not row.memory.expired()  # type: ignore[no-untyped-call]
            }
            self._purge_at = 2 * len(self._rows) + _PURGE_EVERY

    def found(self) -> tuple[StoppedAtLine, ...]:
        """All that have stopped, line by line, the ones with most elements first."""
        lines: dict[Any, list[_Row]] = {}
        for row in self._rows.values():
            if row.longest >= _CALLS:
                lines.setdefault((row.place.role, row.place.operation, row.line), []).append(row)
        stopped = [
            StoppedAtLine(
                role,
                operation,
                len(rows),
                sum(row.numbers for row in rows),
                max(row.longest for row in rows),
                text_of(line),
            )
            for (role, operation, line), rows in lines.items()
        ]
        return tuple(sorted(stopped, key=lambda one: -one.numbers))
