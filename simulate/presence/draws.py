"""Counts stochastic roundings: the random bits of each depend on its number within the step.

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

_SIGN = 1 << 63  # of an int64
STEP_BITS = 32
"""A rounding's random bits come from step ``(step << STEP_BITS) + number within the step``."""


def bits_after(place: torch.Tensor, offset: int, bits: int = WORD_BITS) -> RandomBits:
    """Returns the random bits of the rounding ``offset`` after ``place``, in a compiled program.

    Args:
        place: the value of :attr:`Draws.place` at the call of the program.
        offset: number of the rounding in the program; with the steps that began in it in its upper bits.
        bits: the number of random bits of an element.
    """
    step, count, seed = place.tolist()
    if offset >> STEP_BITS:  # the program has begun another step, and counts from 0 there
        count = 0
    return RandomBits(seed, (step << STEP_BITS) + count + offset, bits)


_Counts = ctypes.c_int64 * 2
"""A step and the number of roundings in it, in memory where C++ also counts."""
_numbers = itertools.count(1)  # names for C++, which holds no reference to the draws


@final
class Draws:
    """The step of a program, and the number of stochastic roundings in it.

    Each thread that has entered the simulation has its own count; threads that work for them, such as autograd's on a
    GPU, continue the latest one.

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
        self._thread = threading.local()
        self._latest_counts = _Counts()  # of the thread that was the last to enter or begin a step
        self._listener: Callable[[int, int], None] | None = None

    def set_listener(self, listener: Callable[[int, int], None]) -> None:
        """Makes each thread that counts call ``listener`` with the number of these draws and the counts' address."""
        self._listener = listener

    def enter(self) -> None:
        """Makes this thread count for itself from now on, at first in the step that the latest one is at."""
        if not hasattr(self._thread, "counts"):
            self._thread.counts = _Counts(self._latest_counts[0], 0)
        self._latest_counts = self._thread.counts
        if self._listener is not None:
            self._listener(self.number, ctypes.addressof(self._latest_counts))

    @property
    def step(self) -> int:
        """The number of the step."""
        return self._counts()[0]

    @property
    def place(self) -> torch.Tensor:
        """The step, the number of roundings in it, and the seed: int64 (3,), the seed's 64 bits with a sign."""
        # A tensor, so that a compiled program has it as an input, and a population stacks its members' places.
        step, number = self._counts()
        return torch.tensor([step, number, (self.seed + _SIGN) % (2 * _SIGN) - _SIGN])

    def begin(self, step: int) -> None:
        """Begins a step in this thread.

        Raises:
            FormatError: its number is out of range.
        """
        if not isinstance(step, int) or not 0 <= step < 1 << STEP_BITS:
            raise FormatError(f"step of a simulation must be an integer from 0 to 2^32 - 1, got {step!r}")
        self.enter()
        self._latest_counts[:] = [step, 0]

    def made(self) -> int:
        """Returns the number of roundings so far in this thread's step."""
        return self._counts()[1]

    def skip(self, count: int) -> None:
        """Counts roundings of a compiled program."""
        self._counts()[1] += count

    def mark(self) -> tuple[int, int]:
        """Returns the position of this thread: the step, and the number of roundings in it."""
        step, number = self._counts()
        return step, number

    def go_to(self, mark: tuple[int, int]) -> None:
        """Sets the position of this thread to one that :meth:`mark` has returned."""
        self._counts()[:] = [*mark]

    def bits(self) -> RandomBits:
        """Returns the random bits of the next rounding, and counts it."""
        counts = self._counts()
        step, number = counts
        counts[1] = number + 1
        if self._listener is not None and counts is getattr(self._thread, "counts", None):
            self._listener(self.number, ctypes.addressof(counts))  # C++ may have dropped this thread's counts
        return RandomBits(self.seed, (step << STEP_BITS) + number, self.width)

    def _counts(self) -> ctypes.Array[ctypes.c_int64]:
        # A thread that never entered, such as autograd's on a GPU, continues the latest count.
        counts: ctypes.Array[ctypes.c_int64] = getattr(self._thread, "counts", self._latest_counts)
        return counts


@final
class RepeatedViews(threading.local):
    """Makes autograd repeat the views that a program writes to, where this thread's simulation rounds stochastically.

    After a write to ``x.view(...)``, autograd rebuilds the derivative of the view. In a traced step it repeats the
    operation; otherwise it calls ``as_strided``; its backward pass copies the gradient, with a rounding to count. All
    later roundings of the compiled step would then draw other bits than the eager one. Blocks without stochastic
    rounding have the program's own setting.
    """

    def __init__(self) -> None:
        self._earlier: list[bool] = []

    def enter(self, *, stochastic: bool) -> None:
        """Begins a block of a simulation."""
        self._earlier.append(_is_view_replay_enabled())
        _set_view_replay_enabled(stochastic or self._earlier[0])  # the first is the program's own setting

    def leave(self) -> None:
        """Ends the block."""
        _set_view_replay_enabled(self._earlier.pop())
