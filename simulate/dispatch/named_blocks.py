"""Functions named by a policy: ``exact_in``, which run without rounding, and ``only_in``, the only ones with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Protocol, final

from ..policy.policy import Policy
from ..presence.functions import NamedFunctions


class BlockSimulation(Protocol):
    """A simulation with blocks that can be entered and left."""

    policy: Policy

    def enter_block(self, frame: FrameType) -> None:
        """Starts rounding in this thread."""

    def leave_block(self, frame: FrameType) -> None:
        """Undoes :meth:`enter_block`."""


@final
class NamedBlocks:
    """Makes a simulation pause, or continue, in the functions that its policy names.

    Args:
        simulation: a simulation with a policy that names some.
        make_pause: makes a simulation that rounds nothing.
        at_work: returns the simulation that the current code of this thread runs in.
    """

    def __init__(
        self,
        simulation: BlockSimulation,
        make_pause: Callable[[], BlockSimulation],
        at_work: Callable[[], BlockSimulation | None],
    ) -> None:
        policy = simulation.policy
        self._simulation, self._make_pause, self._at_work = simulation, make_pause, at_work
        self._waiting = make_pause() if policy.only_in else None  # pauses the simulation outside of these functions
        blocks = dict.fromkeys(policy.exact_in, self._pause)
        self._functions = NamedFunctions(blocks | dict.fromkeys(policy.only_in, self._resume))

    @property
    def called(self) -> set[str]:
        """The functions that were called."""
        return self._functions.called

    def enter(self, frame: FrameType) -> None:
        """Enters the simulation, in the block that ``frame`` begins.

        Raises:
            FormatError: the function does not exist; or the simulation cannot be entered.
        """
        self._functions.enter()
        try:
            self._simulation.enter_block(frame)
        except BaseException:  # nothing stays replaced if the simulation refuses
            self._functions.leave()
            raise
        if self._waiting:
            self._waiting.enter_block(frame)

    def leave(self, frame: FrameType) -> None:
        """Leaves the simulation, in the block that ``frame`` ends."""
        if self._waiting:
            self._waiting.leave_block(frame)
        self._simulation.leave_block(frame)
        self._functions.leave()

    def _pause(self) -> AbstractContextManager[Any]:
        return _Block(self._make_pause()) if self._at_work() is self._simulation else nullcontext()

    def _resume(self) -> AbstractContextManager[Any]:
        is_waiting = self._waiting is not None and self._at_work() is self._waiting
        return _Block(self._simulation) if is_waiting else nullcontext()


@final
class _Block:
    """A block of a simulation, without its named functions."""

    def __init__(self, simulation: BlockSimulation) -> None:
        self._simulation = simulation

    def __enter__(self) -> None:
        self._simulation.enter_block(sys._getframe(1))  # noqa: SLF001  the only access there is

    def __exit__(self, *_: object) -> None:
        self._simulation.leave_block(sys._getframe(1))  # noqa: SLF001  the only access there is
