"""Entering and leaving a simulation: the threads, generators and coroutines where it is active."""

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

_SUSPENDABLE = CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
_GENERATOR = CO_GENERATOR | CO_ASYNC_GENERATOR

# Functions that enter something for their caller, and modules that run a generator to have it do so.
_ENTERING = ("__enter__", "__aenter__", "__exit__", "__aexit__", "enter_context")
_MANAGERS = ("contextlib", "_pytest.", "pytest_asyncio.")


class SimulationWarning(UserWarning):
    """A program computes something otherwise than its author may expect."""


class ThisThread(threading.local):
    """The state of simulations in this thread."""

    rounding = False
    """Whether one is at work on an operation."""
    carrying = False
    """Whether that computes, in float32, with the program's float16 or bfloat16 values."""


this_thread = ThisThread()


@contextmanager
def simulations_off() -> Iterator[None]:
    """For the block, the simulations of this thread pass operations on as they are."""
    before, this_thread.rounding = this_thread.rounding, True
    native.hold_thread(1)
    try:
        yield
    finally:
        native.hold_thread(-1)
        this_thread.rounding = before


class _Block(NamedTuple):
    """A ``with`` block that has been entered and not left."""

    mode: TorchDispatchMode
    frame: FrameType | None
    """The function, generator or coroutine around it."""
    suspendable: bool
    """Whether that is a generator or coroutine."""
    pushed: bool
    """Whether the mode was put on PyTorch's stack."""


class _EnteredBlocks(threading.local):
    """The blocks of this thread, as they were entered."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []


_here = _EnteredBlocks()


@final
class Presence:
    """The blocks that enter one mode, and whether it is active in the code that runs now.

    PyTorch's stack of modes belongs to the thread. A generator or coroutine that is suspended in a ``with`` block
    leaves its mode there, for its caller and for all other tasks. So where such blocks are entered the mode asks
    :meth:`is_passed_over` at every operation.

    Args:
        mode: the mode.

    Attributes:
        warned_of_generators: whether a warning was given of a generator that is suspended in a block, or is not to be.
        warned_of_threads: whether a warning was given of a thread that it does not reach.
    """

    suspendable = 0
    """The number of blocks of all modes and threads in generators or coroutines."""
    _lock = new_lock()

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self._inside = 0
        self.warned_of_generators = False
        self.warned_of_threads = False

    def __str__(self) -> str:
        return repr(self._mode)

    def enter(self, frame: FrameType, *, push: bool) -> None:
        """Enters the block that ``frame`` is at; ``push``: puts the mode on PyTorch's stack."""
        owner = _owner(frame)
        suspendable = owner is not None and bool(owner.f_code.co_flags & _SUSPENDABLE)
        _here.blocks.append(_Block(self._mode, owner, suspendable, push))
        with self._lock:
            self._inside += 1
            Presence.suspendable += suspendable
            native.set_suspendable(Presence.suspendable)
        if push:
            _push_mode(self._mode)

    def leave(self, frame: FrameType) -> bool:
        """Leaves the block that ``frame`` is at.

        Returns:
            Whether the mode stood on PyTorch's stack.

        Raises:
            FormatError: this thread has entered none.
        """
        blocks, owner = _here.blocks, _owner(frame)
        own_blocks = [number for number, block in enumerate(blocks) if block.mode is self._mode]
        if not own_blocks:
            raise FormatError("a simulation must be left by the thread that entered it")
        # Tasks leave in any order.
        number = next((number for number in reversed(own_blocks) if blocks[number].frame is owner), own_blocks[-1])
        block = blocks.pop(number)
        with self._lock:
            self._inside -= 1
            Presence.suspendable -= block.suspendable
            native.set_suspendable(Presence.suspendable)
        if block.pushed:
            # Takes the mode off PyTorch's stack; not always from its top
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
        return self._inside > 0

    def is_shared(self) -> bool:
        """Whether other threads than this one have entered the mode."""
        return self._inside > sum(block.mode is self._mode for block in _here.blocks)

    def is_passed_over(self) -> bool:
        """Whether the code that runs now is in another block than the mode's, or in none.

        False in threads that have entered nothing and find the mode on their stack, as autograd's do on a GPU.
        """
        if not Presence.suspendable or not _here.blocks:
            return False
        passed_over = _innermost(_here.blocks) is not self._mode
        if passed_over and not self.warned_of_generators:
            self._tell()
        return passed_over

    def _tell(self) -> None:
        block = next((block for block in reversed(_here.blocks) if block.mode is self._mode), None)
        if block is None or block.frame is None or block.frame.f_back is not None:
            return
        code = block.frame.f_code
        if code.co_flags & _GENERATOR:
            self.warned_of_generators = True
            warnings.warn(
                f"the generator {code.co_name} ({code.co_filename}:{code.co_firstlineno}) is suspended inside"
                f" {self._mode!r}: until it goes on, its caller computes without this simulation. A generator that"
                " enters one for its caller is made with contextlib.contextmanager.",
                SimulationWarning,
                stacklevel=4,
            )


def innermost() -> TorchDispatchMode | None:
    """The mode of the innermost block that this code is in, also if it was not put on PyTorch's stack."""
    return _innermost(_here.blocks) if _here.blocks else None


def _innermost(blocks: list[_Block]) -> TorchDispatchMode | None:
    """The mode of the block that the code which runs now is in."""
    modes = {block.frame: block.mode for block in blocks}
    around: set[FrameType | None] = set()
    innermost = None
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  the only access there is
    while frame is not None:
        if frame in modes:
            innermost = innermost or modes[frame]
            around.add(frame)
        frame = frame.f_back
    # Functions that have returned entered for whoever called them; that is inside what was entered before.
    lasting = [block.frame for block in blocks if not block.suspendable and block.frame not in around]
    if lasting and (innermost is None or blocks[-1].frame is lasting[-1]):
        return modes[lasting[-1]]
    return innermost


def _owner(frame: FrameType | None) -> FrameType | None:
    """The function, generator or coroutine of the block that ``frame`` enters or leaves.

    Functions that enter something for others are passed over, and so are generators that serve as context managers.
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
