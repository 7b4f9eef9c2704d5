"""What rounding did to tensors on a device, counted there: nothing is read before somebody asks."""

from __future__ import annotations

import torch

from ...formats import where
from ...formats.arithmetic.carriers import INFINITY, INTEGER, STORED_BITS


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
        """Counts what became of the elements of ``exact``, of which there are some.

        Returns:
            The counts of this call, and at their end how many elements were finite and are not, NaN included.
        """
        infinity, mask = self._infinity, torch.iinfo(self._integer).max
        x, y = exact.view(self._integer) & mask, rounded.view(self._integer) & mask
        finite, infinite = y < infinity, y == infinity
        some = finite & (y != 0)
        seen = torch.stack((
            infinite & (x < infinity), (y == 0) & (x != 0), some & (y < self._smallest_normal), infinite, y > infinity,
            finite & (x != y), ~finite & (x < infinity),
        )).reshape(7, -1).sum(1)  # fmt: skip
        self._counts += seen[:6]
        self._smallest = torch.minimum(self._smallest, where(some, y, infinity).amin())
        self._largest = torch.maximum(self._largest, where(some, y, 0).amax())
        bins = (y >> self._stored).to(torch.int64) + self._lowest_bin
        self._histogram.scatter_add_(0, where(some, bins, 0).flatten(), some.to(torch.int64).flatten())
        return seen

    def read(self) -> list[int]:
        """Six counts, the patterns of the smallest and the largest magnitude, the histogram; waits for the device."""
        numbers: list[int] = torch.cat((self._counts, self._smallest, self._largest, self._histogram)).tolist()
        return numbers
