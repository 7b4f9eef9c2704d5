"""Requests to stop a run: it saves a checkpoint and ends at the next safe point, within a bounded time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from roundoff.processes import let_go, terminals

# Seconds from the request to the end; cluster managers and containers wait about 30 seconds before they kill.
PATIENCE = 20.0


class Stopped(Exception):  # noqa: N818  not an error: the run was requested to stop
    """Raised when a run has ended early, on request; it has saved a checkpoint if it supports checkpoints.

    Attributes:
        step: the number of environment steps taken.
        saved: whether the run can continue from there; else it starts over.
    """

    def __init__(self, step: int, *, saved: bool = True) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.saved = step, saved


@final
class StopRequest:
    """A request for a run to stop, which can be made at any time, from any thread."""

    def __init__(self) -> None:
        self.made = False

    def make(self) -> None:
        """Asks the run to save a checkpoint and stop, as soon as possible."""
        self.made = True


@contextmanager
def stopping_on_sigterm(stop: StopRequest, patience: float = PATIENCE) -> Iterator[None]:
    """Turns SIGTERM into a request within the block (main thread only), and SIGHUP, unless that is ignored.

    SIGHUP means that the terminal is closed; nothing more is written there. If the block has not ended ``patience``
    seconds later (a long evaluation, an environment that hangs), or at a second signal, the previous handler or
    KeyboardInterrupt interrupts it, and the work since the last checkpoint is lost.

    Args:
        stop: the request.
        patience: the seconds until the block is interrupted.

    Raises:
        KeyboardInterrupt: as described.
    """

    def request_stop(number: int, _frame: Any) -> None:
        stop.make()
        if number == signal.SIGHUP:
            let_go(terminal_streams)
        for stop_signal in stop_signals:
            signal.signal(stop_signal, interrupt)
        signal.setitimer(signal.ITIMER_REAL, patience)

    def interrupt(_number: int, frame: Any) -> None:
        if callable(previous_handlers[signal.SIGTERM]):
            previous_handlers[signal.SIGTERM](signal.SIGTERM, frame)
        raise KeyboardInterrupt

    terminal_streams = terminals()
    handles_sighup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    stop_signals = [signal.SIGTERM, signal.SIGHUP] if handles_sighup else [signal.SIGTERM]
    previous_handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (*stop_signals, signal.SIGALRM)}
    for stop_signal in stop_signals:
        signal.signal(stop_signal, request_stop)
    signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
