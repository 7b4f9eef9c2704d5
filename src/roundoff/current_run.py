"""Defines the functions that a program calls for logs and checkpoints of its run.

Outside of a sweep they do nothing.
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
_process = 0  # the process of the run; processes that it forks are not part of the run


def log(step: int, /, **values: Any) -> None:
    """Logs numbers, for curves: ``roundoff.log(step, loss=loss, accuracy=accuracy)``.

    Reading them is not simulated. NaN and infinity are logged as missing; a run with one of them as the last value
    of a name counts as crashed at its end.

    Args:
        step: the step of the program, 0 or more; the horizontal axis.
        values: numbers, or tensors with one element, by name.

    Raises:
        TypeError: a value is not a number.
        ValueError: ``step`` is negative.
    """
    if run := _run_of_process():
        run.log(step, values)


def checkpoint(state: Any, *, every: float = 10.0) -> None:
    """Saves the state that the program needs to continue from here if it is stopped: ``restore()`` returns it.

    The states of the random generators of PyTorch, NumPy and Python are saved with it. A sweep that has to stop does
    so here, so call it often: it saves only if it has to stop, or if it last saved ``every`` seconds ago.

    Args:
        state: tensors, numbers, text, None, and lists, tuples and dicts of them, such as a ``state_dict()``.
        every: seconds between two checkpoints.

    Raises:
        TypeError: the state holds something else.
    """
    if run := _run_of_process():
        run.checkpoint(state, every)


def restore() -> Any:
    """Returns the state last given to :func:`checkpoint`, if the run was stopped after that; else None.

    Call it after everything is made and before the training: it restores the random generators. The draws and counts
    of loading the state are undone if ``checkpoint`` is called with it next; else load it in ``exact()``.
    """
    run = _run_of_process()
    return run.restore() if run else None


def _run_of_process() -> CurrentRun | None:
    return _current if _process == os.getpid() else None


@contextmanager
def part_of(run: CurrentRun | None) -> Iterator[None]:
    """Makes code in the block part of ``run``, in all threads; of no run if it is None."""
    global _current, _process  # noqa: PLW0603  a process runs one program at a time
    outer, _current, _process = _current, run, os.getpid()
    try:
        yield
    finally:
        _current = outer
