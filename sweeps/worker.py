"""A worker process: takes runs from its standard input, one JSON object a line, and reports events as JSON lines.

``{"config": {...}, "directory": "..."}`` comes in; ``{"event": "progress", "step": ..., "return": ...}`` goes out while
it trains, then ``{"event": "ended"}`` or ``{"event": "failed", "reason": ...}``. When its input closes, the process
that started it is gone or wants it to stop: it exits at once, and the run continues from its checkpoint next time.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from roundoff.agents import Progress


def main() -> None:
    """Serves runs until standard input closes."""
    # Events have the pipe for themselves: whatever libraries print goes to standard error, which is a log file.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    import roundoff.agents.training  # noqa: F401, PLC0415  seconds, and worth doing before the first order comes

    _send(events, event="ready")
    while True:
        _serve(json.loads(orders.get()), events)


def _read_orders(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)


def _serve(order: dict[str, Any], events: TextIO) -> None:
    from roundoff.agents import TrainConfig, train  # noqa: PLC0415  after main has imported them
    from roundoff.formats import RoundoffError  # noqa: PLC0415

    def report(progress: Progress) -> None:
        _send(events, event="progress", step=progress.step, last_return=progress.last_return)

    try:
        train(TrainConfig(**order["config"]), order["directory"], report)
    except RoundoffError as error:
        _send(events, event="failed", reason=str(error))
    except Exception as error:  # noqa: BLE001  a bug in one run must not end the others
        traceback.print_exc()
        _send(events, event="failed", reason=f"{type(error).__name__}: {error}")
    else:
        _send(events, event="ended")


def _send(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()
