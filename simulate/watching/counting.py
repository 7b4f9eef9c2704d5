"""Counts the effects of rounding on the elements of a tensor in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, types

from ...formats import where
from ...formats.arithmetic.patterns import INFINITY, INTEGER, STORED_BITS
from ...formats.cpu.arguments import Int, Integers, Pattern, Patterns, c_types
from ...formats.cpu.c_functions import c_function
from ...formats.cpu.widths import specialised, unsigned

# Histograms have a bin for each exponent k, counting magnitudes in [2^k, 2^(k+1)), of float64. The lowest bin that a
# carrier fills (2^-127 for float32, 2^-1023 for float64) holds the carrier's own subnormal numbers.
LOWEST_EXPONENT = -1023
EXPONENTS = 2048

_BLOCK = 1 << 16  # elements: their counters fit the carrier's width, and the cache holds them for the histogram


COUNTED = ("overflow", "underflow", "subnormal", "infinite", "nan", "inexact")
"""The counts of results: finite before rounding and infinite after; not zero before and zero after; not zero and below
the format's smallest normal number; infinite (overflows included); NaN; finite and changed."""


def _count_numbers(
    exact: Patterns, rounded: Patterns, n: Int, smallest_normal: Pattern, magnitude_mask: Pattern, infinity: Pattern,
    significand_bits: Pattern, lowest_bin: Int, counts: Integers, extremes: Patterns, histogram: Integers,
) -> None:  # fmt: skip
    bins = carray(histogram, (4, EXPONENTS))
    count = carray(counts, 6)
    extreme = carray(extremes, 2)
    zero, one = unsigned(0), unsigned(1)
    smallest, largest = extreme[0], extreme[1]
    for start in range(0, n, _BLOCK):
        stop = min(n, start + _BLOCK)
        zeros = overflow = underflow = subnormal = infinite = nan = inexact = zero
        for i in range(start, stop):
            # Bit patterns of magnitudes are ordered as the magnitudes: first finite ones, then infinity, then NaN.
            x = unsigned(exact[i] & magnitude_mask)
            y = unsigned(rounded[i] & magnitude_mask)
            finite = y < infinity
            nonzero = finite & (y != zero)
            zeros = unsigned(zeros + (one if y == zero else zero))
            nan = unsigned(nan + (one if y > infinity else zero))
            infinite = unsigned(infinite + (one if y == infinity else zero))
            overflow = unsigned(overflow + (one if (y == infinity) & (x < infinity) else zero))
            inexact = unsigned(inexact + (one if finite & (x != y) else zero))
            underflow = unsigned(underflow + (one if (y == zero) & (x != zero) else zero))
            subnormal = unsigned(subnormal + (one if nonzero & (y < smallest_normal) else zero))
            low = y if nonzero else infinity
            high = y if nonzero else zero
            smallest = min(low, smallest)
            largest = max(high, largest)
        # Four histograms in turn: neighbouring elements often fall in one bin, and would wait for each other.
        for i in range(start, stop):
            bins[i & 3, types.int64(unsigned(rounded[i] & magnitude_mask) >> significand_bits) + lowest_bin] += 1
        bins[0, lowest_bin] -= zeros
        bins[0, lowest_bin + types.int64(infinity >> significand_bits)] -= infinite + nan
        count[0] += overflow
        count[1] += underflow
        count[2] += subnormal
        count[3] += infinite
        count[4] += nan
        count[5] += inexact
    extreme[0], extreme[1] = smallest, largest


class _Carrier(NamedTuple):
    """A carrier's bit layout, and the loop compiled for it."""

    function: Callable[..., None]
    bits: type[np.unsignedinteger[Any]]
    floating: type[np.floating[Any]]
    magnitude_mask: int
    infinity: int
    significand_bits: int
    lowest_bin: int


@cache
def _carrier(dtype: torch.dtype) -> _Carrier:
    function = c_function(specialised(_count_numbers, dtype), c_types(_count_numbers, dtype))
    if dtype == torch.float32:
        return _Carrier(function, np.uint32, np.float32, 0x7FFFFFFF, 0x7F800000, 23, -127 - LOWEST_EXPONENT)
    return _Carrier(function, np.uint64, np.float64, (1 << 63) - 1, 0x7FF << 52, 52, 0)


class Counter:
    """Counts what rounding does to the results of one operation at one place, in one carrier.

    Args:
        dtype: the carrier, float32 or float64.
        smallest_normal: smallest normal number of the format.

    Attributes:
        results: the number of results.
        counts: int64, as ``COUNTED`` says.
        extremes: the smallest and the largest magnitude, zero and non-finite ones left out; infinity and 0 at first.
        histogram: (4, ``EXPONENTS``) int64; its sum over the first axis counts, see ``LOWEST_EXPONENT``; without zeros
            and non-finite numbers.
    """

    def __init__(self, dtype: torch.dtype, smallest_normal: float) -> None:
        carrier = _carrier(dtype)
        self.results = 0
        self.counts = np.zeros(len(COUNTED), dtype=np.int64)
        self.extremes = np.array([np.inf, 0.0], carrier.floating)
        self.histogram = np.zeros((4, EXPONENTS), dtype=np.int64)
        self._function = carrier.function
        self._bits = carrier.bits
        self._device_counts: dict[torch.device, DeviceCounts] = {}
        # Calls are many and small: the constant arguments are computed once.
        self._constants = (
            int(carrier.floating(smallest_normal).view(carrier.bits)), carrier.magnitude_mask, carrier.infinity,
            carrier.significand_bits, carrier.lowest_bin, self.counts.ctypes.data, self.extremes.ctypes.data,
            self.histogram.ctypes.data,
        )  # fmt: skip

    def count(self, exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """Counts the outcomes for the elements of ``exact``.

        Args:
            exact: before rounding, of the carrier's dtype, dense.
            rounded: after rounding; same shape, dtype and strides.
        """
        n = exact.numel()
        self.results += n
        self._function(exact.data_ptr(), rounded.data_ptr(), n, *self._constants)

    def count_on_device(self, exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor | None:
        """Counts as :meth:`count` does, on another device, without waiting; returns the counts, if any."""
        if not exact.numel():
            return None
        self.results += exact.numel()
        device_counts = self._device_counts.get(exact.device)
        if device_counts is None:
            smallest_normal, *_, lowest_bin = self._constants[:5]
            device_counts = DeviceCounts(exact.dtype, smallest_normal, EXPONENTS, lowest_bin, exact.device)
            self._device_counts[exact.device] = device_counts
        return device_counts.add(exact, rounded)

    def fetch(self) -> None:
        """Adds the counts of other devices to ``counts``, ``extremes`` and ``histogram``; waits for them."""
        for counts in self._device_counts.values():
            numbers = np.array(counts.read())
            extremes = numbers[6:8].astype(self._bits).view(self.extremes.dtype)  # from bit patterns
            self.counts += numbers[:6]
            self.extremes[:] = min(self.extremes[0], extremes[0]), max(self.extremes[1], extremes[1])
            self.histogram[0] += numbers[8:]
        self._device_counts.clear()

    def saw_nonfinite(self) -> bool:
        """Whether a result in the CPU's memory was infinite or NaN."""
        return bool(self.counts[3] or self.counts[4])


class DeviceCounts:
    """The counts of a :class:`Counter` on one device.

    Args:
        dtype: the carrier, float32 or float64.
        smallest_normal: the pattern of the format's smallest normal number in it.
        bins: the number of bins of the histogram.
        lowest_bin: the bin of the carrier's lowest exponent.
        device: the device of the counts.
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
        """Counts the outcomes for the elements of ``exact``, which is not empty.

        Returns:
            The counts of this call; the last is the number of elements that were finite before, and are not after.
        """
        infinity, mask = self._infinity, torch.iinfo(self._integer).max
        x, y = exact.view(self._integer) & mask, rounded.view(self._integer) & mask
        finite, infinite = y < infinity, y == infinity
        nonzero = finite & (y != 0)  # results that are finite and not zero
        counts = torch.stack((
            infinite & (x < infinity), (y == 0) & (x != 0), nonzero & (y < self._smallest_normal), infinite,
            y > infinity, finite & (x != y), ~finite & (x < infinity),
        )).reshape(7, -1).sum(1)  # fmt: skip
        self._counts += counts[:6]
        self._smallest = torch.minimum(self._smallest, where(nonzero, y, infinity).amin())
        self._largest = torch.maximum(self._largest, where(nonzero, y, 0).amax())
        bins = (y >> self._stored).to(torch.int64) + self._lowest_bin
        self._histogram.scatter_add_(0, where(nonzero, bins, 0).flatten(), nonzero.to(torch.int64).flatten())
        return counts

    def read(self) -> list[int]:
        """Returns six counts, bit patterns of the smallest and largest magnitude, and the histogram; waits."""
        numbers: list[int] = torch.cat((self._counts, self._smallest, self._largest, self._histogram)).tolist()
        return numbers
