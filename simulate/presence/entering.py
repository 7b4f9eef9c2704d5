"""Enters and leaves simulations, and knows the threads, generators and coroutines where each is active."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import FrameType
from typing import NamedTuple, final

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from roundoff.locks import new_lock

from ...formats import FormatError
from ..native import library as native

# Flags of code objects
_SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
_GENERATOR = CO_GENERATOR | CO_ASYNC_GENERATOR

# Functions that enter contexts for their caller, and modules that run generators as contexts.
_ENTERING = ("__enter__", "__aenter__", "__exit__", "__aexit__", "enter_context")
_MANAGERS = ("contextlib", "_pytest.", "pytest_asyncio.")


class SimulationWarning(UserWarning):
    """A program may compute something in another way than its author expects."""


class ThisThread(threading.local):
    """The state of simulations in this thread."""

    rounding = False
    """Whether a simulation is running an operation now."""
    carrying = False
    """Whether that operation has float32 copies of float16 or bfloat16 tensors."""


this_thread = ThisThread()


@contextmanager
def simulations_off() -> Iterator[None]:
    """Makes the simulations of this thread leave the operations of the block unrounded."""
    was_rounding, this_thread.rounding = this_thread.rounding, True
    native.hold_thread(1)
    try:
        yield
    finally:
        native.hold_thread(-1)
        this_thread.rounding = was_rounding


class _Block(NamedTuple):
    """A ``with`` block that has been entered and not left."""

    mode: TorchDispatchMode
    frame: FrameType | None
    """The function, generator or coroutine that contains it."""
    suspendable: bool
    """Whether ``frame`` is a generator or coroutine."""
    pushed: bool
    """Whether the mode was put on PyTorch's stack."""


class _EnteredBlocks(threading.local):
    """The blocks of this thread, in the order of entering."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []


_entered = _EnteredBlocks()


@final
class Presence:
    """The entered blocks of one mode, and whether the mode is active in the current code.

    PyTorch's stack of modes belongs to the thread. A generator or coroutine that is suspended in a ``with`` block
    leaves its mode on the stack, where its caller and all other tasks meet it. While such blocks are entered, the mode
    calls :meth:`is_passed_over` at every operation, and ignores those that are not its own.

    Args:
        mode: the mode.

    Attributes:
        warned_of_generators: whether it has warned of a generator suspended in a block, or is not to warn.
        warned_of_threads: whether it has warned of a thread that the mode does not reach.
    """

    suspendable = 0
    """The number of entered blocks in generators and coroutines, of all modes and threads."""
    _lock = new_lock()

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self._entry_count = 0
        self.warned_of_generators = False
        self.warned_of_threads = False

    def __str__(self) -> str:
        return repr(self._mode)

    def enter(self, frame: FrameType, *, push: bool) -> None:
        """Enters the block that ``frame`` begins; ``push`` puts the mode on PyTorch's stack."""
        owner = _owner(frame)
        suspendable = owner is not None and bool(owner.f_code.co_flags & _SUSPENDABLE)
        _entered.blocks.append(_Block(self._mode, owner, suspendable, push))
        with self._lock:
            self._entry_count += 1
            Presence.suspendable += suspendable
            native.set_suspendable(Presence.suspendable)
        if push:
            _push_mode(self._mode)

    def leave(self, frame: FrameType) -> bool:
        """Leaves the block that ``frame`` ends.

        Returns:
            Whether the mode was on PyTorch's stack.

        Raises:
            FormatError: this thread has entered none.
        """
        blocks, owner = _entered.blocks, _owner(frame)
        indices = [index for index, block in enumerate(blocks) if block.mode is self._mode]
        if not indices:
            raise FormatError("a simulation must be left by the thread that entered it")
        # The last block of this function, since tasks leave in any order; else the last block of the mode.
        index = next((index for index in reversed(indices) if blocks[index].frame is owner), indices[-1])
        block = blocks.pop(index)
        with self._lock:
            self._entry_count -= 1
            Presence.suspendable -= block.suspendable
            native.set_suspendable(Presence.suspendable)
        if block.pushed:
            # Removes the mode from PyTorch's stack, also from below others
            above = []
            while (mode := _get_current_dispatch_mode()) is not self._mode and mode is not None:
                above.append(mode)
                _pop_mode()
            if mode is not None:
                _pop_mode()
            for mode in reversed(above):
                _push_mode(mode)
        return block.pushed

    def is_inside(self) -> bool:
        """Whether any thread has entered the mode."""
        return self._entry_count > 0

    def is_shared(self) -> bool:
        """Whether a thread other than this one has entered the mode."""
        return self._entry_count > sum(block.mode is self._mode for block in _entered.blocks)

    def is_passed_over(self) -> bool:
        """Whether the current code is outside of the mode's blocks, or in an inner block of another mode.

        False in threads that have entered no block but have the mode on their stack, such as autograd's on a GPU.
        """
        if not Presence.suspendable or not _entered.blocks:  # then PyTorch's stack of modes is right
            return False
        passed_over = _innermost(_entered.blocks) is not self._mode
        if passed_over and not self.warned_of_generators:
            self._warn_of_suspension()
        return passed_over

    def _warn_of_suspension(self) -> None:
        """Warns if the last block of the mode is in a generator that is suspended."""
        block = next((block for block in reversed(_entered.blocks) if block.mode is self._mode), None)
        if block is None or block.frame is None or block.frame.f_back is not None:  # a running frame has a caller
            return
        code = block.frame.f_code
        if code.co_flags & _GENERATOR:  # a suspended coroutine is usual: its task waits while others run
            self.warned_of_generators = True
            warnings.warn(
                f"the generator {code.co_name} ({code.co_filename}:{code.co_firstlineno}) is suspended inside"
                f" {self._mode!r}: until it continues, its caller computes without this simulation. A generator that"
                " enters one for its caller is made with contextlib.contextmanager.",
                SimulationWarning,
                stacklevel=4,
            )


def innermost() -> TorchDispatchMode | None:
    """Returns the mode of the innermost block that the current code is in, also if it is not on PyTorch's stack."""
    return _innermost(_entered.blocks) if _entered.blocks else None


def _innermost(blocks: list[_Block]) -> TorchDispatchMode | None:
    """Returns the mode of the innermost block that the current code is in."""
    modes = {block.frame: block.mode for block in blocks}  # of several blocks of a function, the last
    running: set[FrameType | None] = set()
    innermost = None
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  the only access there is
    while frame is not None:  # from this function to its outermost caller
        if frame in modes:
            innermost = innermost or modes[frame]
            running.add(frame)
        frame = frame.f_back
    # A function that entered a block and has returned did so for its caller: its block holds until it is left.
    returned = [block.frame for block in blocks if not block.suspendable and block.frame not in running]
    if returned and (innermost is None or blocks[-1].frame is returned[-1]):
        return modes[returned[-1]]
    return innermost


def _owner(frame: FrameType | None) -> FrameType | None:
    """Returns the function, generator or coroutine of the block that ``frame`` enters or leaves.

    It skips functions that enter contexts for their caller, and generators that serve as context managers.
    """
    while frame is not None:
        if not (_is_managing(frame) or frame.f_code.co_name in _ENTERING):
            suspendable = frame.f_code.co_flags & _SUSPENDABLE
            if not suspendable or frame.f_back is None or not _is_managing(frame.f_back):
                return frame
        frame = frame.f_back
    return None


def _is_managing(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(_MANAGERS)
