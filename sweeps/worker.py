"""A worker process: takes runs from its standard input, one JSON object a line, and reports events as JSON lines.

``{"event": "ready"}`` goes out first. ``{"config": {...}, "directory": "...", "lease": {...}}`` comes in;
``{"event": "progress", "progress": {...}}`` goes out while it trains, then ``{"event": "ended"}``, or
``{"event": "failed", "reason": ...}``, or at once ``{"event": "elsewhere"}``, if another process was faster to take the
lease (``leases.py``). At ``{"stop": true}``, or SIGTERM, the run saves a checkpoint, and the process exits with status
143. When its input closes without that, the process that started it is gone: it exits at once, and its lease ends with
it; the run continues from its last checkpoint. It also exits at once when it has lost its lease: another process has
taken over the run.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from roundoff.agents.stopping import Stopped, StopRequest, stopping_on_sigterm
from roundoff.sweeps.leases import Lease

if TYPE_CHECKING:
    from roundoff.agents import Progress


def main() -> None:
    """Serves runs until standard input closes."""
    # Events have the pipe for themselves: whatever libraries print goes to standard error, which is a log file.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stop, serving = StopRequest(), threading.Event()
    threading.Thread(target=_read_orders, args=(orders, stop, serving), daemon=True).start()
    import roundoff.agents.training  # noqa: F401, PLC0415  seconds, and worth doing before the first order comes

    _send(events, event="ready")
    while True:
        order = orders.get()
        serving.set()
        with stopping_on_sigterm(stop):
            _serve(order, events, stop)
        serving.clear()
        if stop.made:
            _exit_stopped()


def _read_orders(orders: queue.SimpleQueue[dict[str, Any]], stop: StopRequest, serving: threading.Event) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "stop" not in order:
            orders.put(order)
            continue
        stop.make()
        if not serving.is_set():
            _exit_stopped()
        return
    os._exit(0)


def _exit_stopped() -> NoReturn:
    """Ends the process without waiting for the thread that reads."""
    sys.stderr.write("roundoff: stopped as asked\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def _leave_to_another() -> NoReturn:
    """Ends the process before it writes anything else."""
    sys.stderr.write("roundoff: was silent for so long that another process has taken over the run\n")
    sys.stderr.flush()
    os._exit(1)


def _serve(order: dict[str, Any], events: TextIO, stop: StopRequest) -> None:
    """Brings a run to its end while it holds the lease."""
    from roundoff.formats import RoundoffError  # noqa: PLC0415  after main has imported it

    wanted, outcome = order["lease"], None
    try:
        lease = Lease.take(Path(wanted["folder"]), wanted["run"], wanted["number"], _leave_to_another)
    except RoundoffError as error:
        _send(events, event="failed", reason=str(error))
        return
    if lease is None:
        _send(events, event="elsewhere")
        return
    try:
        outcome = _train(order, events, stop, lease)
    finally:
        lease.release(ended=outcome == {"event": "ended"})
    if outcome:
        _send(events, **outcome)


def _train(order: dict[str, Any], events: TextIO, stop: StopRequest, lease: Lease) -> dict[str, Any] | None:
    """The event with which the run has ended or failed; None if it was stopped."""
    from roundoff.agents import TrainConfig, train  # noqa: PLC0415  after main has imported them
    from roundoff.formats import RoundoffError  # noqa: PLC0415

    began: tuple[int, float] | None = None

    def report(progress: Progress) -> None:
        nonlocal began
        now = time.monotonic()
        began = began or (progress.step, now)
        told = {
            "step": progress.step,
            "return": progress.last_return,
            "rate": (progress.step - began[0]) / max(now - began[1], 1e-3),
            "loss_scale": progress.loss_scale,
        }
        lease.note(told)
        _send(events, event="progress", progress=told)

    def notice(text: str) -> None:
        sys.stderr.write(f"roundoff: {order['directory']}: {text}\n")

    try:
        train(
            TrainConfig(**order["config"]),
            order["directory"],
            report,
            stop,
            compiled=order.get("compiled"),
            on_notice=notice,
        )
    except Stopped as stopped:
        sys.stderr.write(f"roundoff: {order['directory']}: {stopped}, and saved\n")
    except KeyboardInterrupt:  # out of patience
        lease.release(ended=False)
        _exit_stopped()
    except RoundoffError as error:
        return {"event": "failed", "reason": str(error)}
    except Exception as error:  # noqa: BLE001  a bug in one run must not end the others
        traceback.print_exc()
        return {"event": "failed", "reason": f"{type(error).__name__}: {error}"}
    else:
        return {"event": "ended"}
    return None


def _send(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()
