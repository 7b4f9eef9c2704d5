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
    """A simulation."""

    policy: Policy

    def enter_block(self, frame: FrameType) -> None:
        """Starts rounding in this thread."""

    def leave_block(self, frame: FrameType) -> None:
        """Ends that."""


@final
class NamedBlocks:
    """Makes a simulation pause, or continue, in the functions that its policy names.

    Args:
        simulation: a simulation with a policy that names some.
        pausing: makes a simulation that rounds nothing.
        at_work: says which simulation the code of this thread runs in.
    """

    def __init__(
        self,
        simulation: BlockSimulation,
        pausing: Callable[[], BlockSimulation],
        at_work: Callable[[], BlockSimulation | None],
    ) -> None:
        policy = simulation.policy
        self._simulation, self._pausing, self._at_work = simulation, pausing, at_work
        self._waiting = pausing() if policy.only_in else None  # what the simulation waits in
        exact = dict.fromkeys(policy.exact_in, self._exact)
        self._functions = NamedFunctions(exact | dict.fromkeys(policy.only_in, self._going_on))

    @property
    def called(self) -> set[str]:
        """The functions that were called."""
        return self._functions.called

    def enter(self, frame: FrameType) -> None:
        """The simulation is entered, in the block that ``frame`` is at.

        Raises:
            FormatError: the function does not exist; or the simulation cannot be entered.
        """
        self._functions.enter()
        try:
            self._simulation.enter_block(frame)
        except BaseException:
            self._functions.leave()
            raise
        if self._waiting:
            self._waiting.enter_block(frame)

    def leave(self, frame: FrameType) -> None:
        """Notes that the block of ``frame`` is left."""
        if self._waiting:
            self._waiting.leave_block(frame)
        self._simulation.leave_block(frame)
        self._functions.leave()

    def _exact(self) -> AbstractContextManager[Any]:
        return _Block(self._pausing()) if self._at_work() is self._simulation else nullcontext()

    def _going_on(self) -> AbstractContextManager[Any]:
        waits = self._waiting is not None and self._at_work() is self._waiting
        return _Block(self._simulation) if waits else nullcontext()


@final
class _Block:
    """A block of a simulation, whatever functions it names."""

    def __init__(self, simulation: BlockSimulation) -> None:
        self._simulation = simulation

    def __enter__(self) -> None:
        self._simulation.enter_block(sys._getframe(1))  # noqa: SLF001  the only access there is

    def __exit__(self, *_: object) -> None:
        self._simulation.leave_block(sys._getframe(1))  # noqa: SLF001  the only access there is
