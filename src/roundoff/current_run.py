"""Logs and checkpoints of a program: functions that it calls for its run.

Outside of a sweep nothing listens, and nothing happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["checkpoint", "log", "restore"]


class CurrentRun(Protocol):
    """The run that a program is part of."""

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """See :func:`log`."""

    def checkpoint(self, state: Any, every: float) -> None:
        """See :func:`checkpoint`."""

    def restore(self) -> Any:
        """See :func:`restore`."""


_current: CurrentRun | None = None
_process = 0  # whose run it is: a process that it forks is no part of it


def log(step: int, /, **values: Any) -> None:
    """Notes numbers, for curves: ``roundoff.log(step, loss=loss, accuracy=accuracy)``.

    Reading them is not simulated. NaN and infinity are noted as missing; a run with one of them as the last value
    of a name has crashed when it ends.

    Args:
        step: how far the program is, 0 or more; the horizontal axis.
        values: numbers, or tensors with one element, by name.

    Raises:
        TypeError: a value is not a number.
        ValueError: ``step`` is negative.
    """
    if run := _of_this_process():
        run.log(step, values)


def checkpoint(state: Any, *, every: float = 10.0) -> None:
    """Keeps the state that the program needs to continue from here, should it be stopped: ``restore()`` returns it.

    The states of the random generators of PyTorch, NumPy and Python are kept with it. A sweep that is to stop does
    so here, so call it often: it saves only if it has to stop, or if the last time is ``every`` seconds ago.

    Args:
        state: tensors, numbers, text, None, and lists, tuples and dicts of them, such as ``state_dict()`` gives.
        every: seconds between two savings.

    Raises:
        TypeError: the state holds something else.
    """
    if run := _of_this_process():
        run.checkpoint(state, every)


def restore() -> Any:
    """Returns the state last given to :func:`checkpoint`, if the run was stopped after that; else None.

    Call it when everything is made and before anything is trained: generators are set to where they were. What loading
    the state draws and counts is forgotten if ``checkpoint`` is called with it next; else load it in ``exact()``.
    """
    run = _of_this_process()
    return run.restore() if run else None


def _of_this_process() -> CurrentRun | None:
    return _current if _process == os.getpid() else None


@contextmanager
def part_of(run: CurrentRun | None) -> Iterator[None]:
    """Code in the block is part of ``run``, in all threads; of no run if it is None."""
    global _current, _process  # noqa: PLW0603  a process runs one program at a time
    before, _current, _process = _current, run, os.getpid()
    try:
        yield
    finally:
        _current = before
