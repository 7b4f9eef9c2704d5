"""Stopping a run from outside: asked once, it saves and ends at the next safe point; within a bounded time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from roundoff.processes import let_go, terminals

# Seconds from the request to the end; cluster managers and containers grant about 30 before they kill.
PATIENCE = 20.0


class Stopped(Exception):  # noqa: N818  no error: it was asked to
    """A run has ended early, on request, and has saved a checkpoint if it supports checkpoints.

    Attributes:
        step: environment steps that it had taken.
        saved: whether it continues from there; else it starts over.
    """

    def __init__(self, step: int, *, saved: bool = True) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.saved = step, saved


@final
class StopRequest:
    """A request for a run to stop, which anyone may make, at any time, from any thread."""

    def __init__(self) -> None:
        self.made = False

    def make(self) -> None:
        """Asks the run to save a checkpoint and stop, as soon as it can."""
        self.made = True


@contextmanager
def stopping_on_sigterm(stop: StopRequest, patience: float = PATIENCE) -> Iterator[None]:
    """Turns SIGTERM into a request within the block (main thread only), and SIGHUP, unless that is ignored.

    SIGHUP comes when a terminal is closed; nothing is written there any more. If the block has not ended ``patience``
    seconds later (a long evaluation, an environment that hangs), or at a second signal, it is interrupted by the
    previous handler, or as by Ctrl-C, and the work since the last checkpoint is lost.

    Args:
        stop: the request.
        patience: seconds.

    Raises:
        KeyboardInterrupt: as described.
    """

    def first(number: int, _frame: Any) -> None:
        stop.make()
        if number == signal.SIGHUP:
            let_go(shown)
        for one in asking:
            signal.signal(one, now)
        signal.setitimer(signal.ITIMER_REAL, patience)

    def now(_number: int, frame: Any) -> None:
        if callable(before[signal.SIGTERM]):
            before[signal.SIGTERM](signal.SIGTERM, frame)
        raise KeyboardInterrupt

    shown = terminals()
    hears = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    asking = [signal.SIGTERM, signal.SIGHUP] if hears else [signal.SIGTERM]
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (*asking, signal.SIGALRM)}
    for one in asking:
        signal.signal(one, first)
    signal.signal(signal.SIGALRM, now)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
