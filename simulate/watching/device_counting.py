"""What rounding did to tensors on a device, counted there: nothing is read before somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ...formats import where
from ...formats.arithmetic.carriers import INFINITY, INTEGER, STORED_BITS
from ..presence.user_code import Line, text_of

if TYPE_CHECKING:
    from .watcher import Place

_KINDS = ("overflow", "NaN", "infinity")


class DeviceCounts:
    """What a :class:`~roundoff.simulate.watching.counting.Counter` counts on one device.

    Args:
        dtype: the carrier, float32 or float64.
        smallest_normal: the pattern of the format's smallest normal number in it.
        bins: how many the histogram has.
        lowest_bin: that of the carrier's lowest exponent.
        device: where.
    """

    def __init__(
        self, dtype: torch.dtype, smallest_normal: int, bins: int, lowest_bin: int, device: torch.device
    ) -> None:
        self._integer, self._infinity, self._stored = INTEGER[dtype], INFINITY[dtype], STORED_BITS[dtype]
        self._smallest_normal, self._lowest_bin = smallest_normal, lowest_bin
        self._counts = torch.zeros(6, dtype=torch.int64, device=device)
        self._smallest = torch.full((1,), self._infinity, dtype=torch.int64, device=device)
        self._largest = torch.zeros(1, dtype=torch.int64, device=device)
        self._histogram = torch.zeros(bins, dtype=torch.int64, device=device)

    def add(self, exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        """Counts what became of the elements of ``exact``, of which there are some; returns the counts of this call."""
        infinity, mask = self._infinity, torch.iinfo(self._integer).max
        x, y = exact.view(self._integer) & mask, rounded.view(self._integer) & mask
        finite, infinite = y < infinity, y == infinity
        some = finite & (y != 0)
        seen = torch.stack((
            infinite & (x < infinity), (y == 0) & (x != 0), some & (y < self._smallest_normal), infinite, y > infinity,
            finite & (x != y),
        )).reshape(6, -1).sum(1)  # fmt: skip
        self._counts += seen
        self._smallest = torch.minimum(self._smallest, where(some, y, infinity).amin())
        self._largest = torch.maximum(self._largest, where(some, y, 0).amax())
        bins = (y >> self._stored).to(torch.int64) + self._lowest_bin
        self._histogram.scatter_add_(0, where(some, bins, 0).flatten(), some.to(torch.int64).flatten())
        return seen

    def read(self) -> list[int]:
        """Six counts, the patterns of the smallest and the largest magnitude, the histogram; waits for the device."""
        numbers: list[int] = torch.cat((self._counts, self._smallest, self._largest, self._histogram)).tolist()
        return numbers


class _Suspect(NamedTuple):
    """The place of a result that may be the first that is not finite."""

    place: Place
    line: Line | None


class DeviceBirths:
    """Finds the first result on a device that is not finite: known there at once, and here when asked for."""

    def __init__(self) -> None:
        self._suspects: dict[_Suspect, int] = {}
        self._first: dict[torch.device, torch.Tensor] = {}

    def note(self, seen: torch.Tensor, place: Place, line: Line | None) -> None:
        """Takes the counts of one call, from :meth:`DeviceCounts.add`."""
        number = self._suspects.setdefault(_Suspect(place, line), len(self._suspects))
        overflow, _, _, infinite, nan, _ = seen.unbind()
        kind = where(overflow > 0, 0, where(nan > 0, 1, 2))
        first = self._first.get(seen.device)
        if first is None:
            first = torch.full((), -1, dtype=torch.int64, device=seen.device)
        born = (first < 0) & (infinite + nan > 0)
        self._first[seen.device] = torch.where(born, kind + len(_KINDS) * number, first)

    def read(self) -> tuple[Place, str, str] | None:
        """Returns the first one's place, kind and line; None if all results were finite. Waits for the device."""
        for first in self._first.values():
            number = int(first)
            if number >= 0:
                place, line = list(self._suspects)[number // len(_KINDS)]
                return place, _KINDS[number % len(_KINDS)], text_of(line)
        return None
