"""Finds sums that rounding has stopped: additions in place that hardly change the same memory, call after call.

A moving average, a moment or a weight changes by a small amount at every step. Rounded to nearest, it stops when the
amount is below half an ulp. One absorbed addition does not matter; absorbed additions at every step do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..presence.user_code import Line, here, text_of
from .watcher import Place

_MIN_ABSORBED_SHARE = 0.9  # of the elements that something was added to
_MIN_CALLS = 50  # consecutive calls that were absorbed
_PURGE_EVERY = 1 << 12


class StoppedAtLine(NamedTuple):
    """The tensors with sums that rounding has stopped, for an operation on a line."""

    role: str
    operation: str
    tensors: int
    numbers: int
    """The number of elements of the tensors."""
    calls: int
    """The most consecutive calls that each left nine tenths of the elements unchanged."""
    line: str
    """The caller's own stack line."""

    def __str__(self) -> str:
        sums = f"{self.tensors} tensors of together" if self.tensors > 1 else "a tensor of"
        return (
            f"stopped by rounding: {sums} {self.numbers} numbers, to which {self.operation} ({self.role}) added"
            f" {self.calls} times in a row and changed less than a tenth\n  at {self.line}"
        )


@dataclass
class _AbsorbedRow:
    """The additions absorbed by one tensor's memory since one last took effect."""

    memory: StorageWeakRef
    place: Place
    numbers: int
    line: Line | None
    calls: int = 0
    longest: int = 0


class StoppedSums:
    """Counts, for each tensor, consecutive additions in place that rounding absorbed."""

    def __init__(self) -> None:
        self._rows: dict[Any, _AbsorbedRow] = {}
        self._purge_at = _PURGE_EVERY

    def note(self, place: Place, tensors: Sequence[torch.Tensor], counts: Sequence[tuple[Any, Any]]) -> None:
        """Takes the counts of an operation in place: for each tensor, elements added to, and unchanged elements.

        Counts on another device are ignored, since reading them would wait for it.
        """
        for x, (added, absorbed) in zip(tensors, counts, strict=True):
            if not isinstance(added, int) or not added:
                continue
            # The identity that StorageWeakRef uses; no other memory gets it while the reference lives.
            key = x.untyped_storage()._cdata, x.storage_offset(), place.operation  # noqa: SLF001
            row = self._rows.get(key)
            if absorbed < _MIN_ABSORBED_SHARE * added:
                if row is not None:
                    row.calls = 0
                continue
            if row is None:
                self._purge()
                memory = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
                row = self._rows[key] = _AbsorbedRow(memory, place, x.numel(), here())
            row.calls += 1
            row.longest = max(row.longest, row.calls)

    def _purge(self) -> None:
        """Forgets freed memory, unless it must be reported."""
        if len(self._rows) > self._purge_at:
            self._rows = {
                key: row
                for key, row in self._rows.items()
                if row.longest >= _MIN_CALLS or not row.memory.expired()  # type: ignore[no-untyped-call]
            }
            self._purge_at = 2 * len(self._rows) + _PURGE_EVERY

    def lines(self) -> tuple[StoppedAtLine, ...]:
        """Returns the lines with stopped sums, most elements first."""
        rows_by_line: dict[Any, list[_AbsorbedRow]] = {}
        for row in self._rows.values():
            if row.longest >= _MIN_CALLS:
                rows_by_line.setdefault((row.place.role, row.place.operation, row.line), []).append(row)
        stopped = []
        for (role, operation, line), rows in rows_by_line.items():
            elements, calls = sum(row.numbers for row in rows), max(row.longest for row in rows)
            stopped.append(StoppedAtLine(role, operation, len(rows), elements, calls, text_of(line)))
        return tuple(sorted(stopped, key=lambda line_sums: -line_sums.numbers))
