"""Counting stochastic roundings: the random bits of each depend on its number within the step.

A compiled step counts the same number as the step does in eager mode.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import final

import torch
from torch._C import _is_view_replay_enabled, _set_view_replay_enabled

from ...formats import FormatError, RandomBits
from ...formats.base.modes import WORD_BITS

_SIGN = 1 << 63
STEP_BITS = 32
"""A rounding's random bits come from step ``(step << STEP_BITS) + number within the step``."""


def bits_after(place: torch.Tensor, offset: int, bits: int = WORD_BITS) -> RandomBits:
    """The random bits of the rounding ``offset`` after ``place``, in a compiled program.

    Args:
        place: what :attr:`Draws.place` was when the program was called.
        offset: number of the rounding in the program; with the steps that began in it in its upper bits.
        bits: the number of random bits of an element.
    """
    step, before, seed = place.tolist()
    if offset >> STEP_BITS:  # the program has begun another step, in which there were none before
        before = 0
    return RandomBits(seed, (step << STEP_BITS) + before + offset, bits)


_Counts = ctypes.c_int64 * 2
"""A step, and how many roundings were made in it: a place where C++ also counts."""
_numbers = itertools.count(1)


@final
class Draws:
    """The step a program is at, and how many stochastic roundings were made in it.

    The threads that entered the simulation count each for itself; threads that work for them, like autograd's on a GPU,
    continue their counts.

    Args:
        seed: seed of the simulation.
        width: the number of random bits of an element.

    Attributes:
        number: a unique number.
        seed: seed of the simulation.
        width: the number of random bits of an element.

    Raises:
        FormatError: the seed is not an integer.
    """

    def __init__(self, seed: int, width: int = WORD_BITS) -> None:
        self.number, self.width = next(_numbers), width
        self.seed = RandomBits(seed).seed
        self._here = threading.local()
        self._latest = _Counts()
        self._told: Callable[[int, int], None] | None = None

    def tell(self, listener: Callable[[int, int], None]) -> None:
        """Makes each thread that counts call ``listener`` with the number of these draws and the counts' address."""
        self._told = listener

    def enter(self) -> None:
        """Makes this thread count for itself from now on, at first in the step that the latest one is at."""
        if not hasattr(self._here, "counts"):
            self._here.counts = _Counts(self._latest[0], 0)
        self._latest = self._here.counts
        if self._told is not None:
            self._told(self.number, ctypes.addressof(self._latest))

    @property
    def step(self) -> int:
        """The number of the step."""
        return self._mine()[0]

    @property
    def place(self) -> torch.Tensor:
        """The step, how many roundings were made in it, and the seed; int64 (3,), the seed's 64 bits with a sign."""
        step, number = self._mine()
        return torch.tensor([step, number, (self.seed + _SIGN) % (2 * _SIGN) - _SIGN])

    def begin(self, step: int) -> None:
        """A step begins in this thread.

        Raises:
            FormatError: its number is out of range.
        """
        if not isinstance(step, int) or not 0 <= step < 1 << STEP_BITS:
            raise FormatError(f"step of a simulation must be an integer from 0 to 2^32 - 1, got {step!r}")
        self.enter()
        self._latest[:] = [step, 0]

    def made(self) -> int:
        """Returns the number of roundings so far in this thread's step."""
        return self._mine()[1]

    def skip(self, count: int) -> None:
        """Counts roundings that were made elsewhere."""
        self._mine()[1] += count

    def mark(self) -> tuple[int, int]:
        """Returns where this thread is: the step, and how many roundings were made in it."""
        step, number = self._mine()
        return step, number

    def go_to(self, mark: tuple[int, int]) -> None:
        """Goes to a place of before, or comes back from it."""
        self._mine()[:] = [*mark]

    def bits(self) -> RandomBits:
        """The random bits of the next rounding, which is counted."""
        counts = self._mine()
        step, number = counts
        counts[1] = number + 1
        if self._told is not None and counts is getattr(self._here, "counts", None):
            self._told(self.number, ctypes.addressof(counts))  # they may have been forgotten there
        return RandomBits(self.seed, (step << STEP_BITS) + number, self.width)

    def _mine(self) -> ctypes.Array[ctypes.c_int64]:
        counts: ctypes.Array[ctypes.c_int64] = getattr(self._here, "counts", self._latest)
        return counts


@final
class RepeatedViews(threading.local):
    """Makes autograd repeat the views that a program writes to, where this thread's simulation rounds stochastically.

    After a write to ``x.view(...)``, autograd rebuilds the derivative of the view. In a traced step it repeats the
    operation; otherwise it calls ``as_strided``; its backward pass copies the gradient, with a rounding to count. All
    later roundings of the compiled step would then draw other bits than the eager one. Blocks that round
    otherwise, or not at all, keep the way of the plain program.
    """

    def __init__(self) -> None:
        self._found: list[bool] = []

    def enter(self, *, stochastic: bool) -> None:
        """A block of a simulation begins."""
        self._found.append(_is_view_replay_enabled())
        _set_view_replay_enabled(stochastic or self._found[0])

    def leave(self) -> None:
        """The block ends."""
        _set_view_replay_enabled(self._found.pop())
