"""A process that is a learner of a run with another leader: ``python -m roundoff.agents.training.follower SOCKET``.

It receives its orders through the socket, and reports there, as a JSON object, an error or a crash. It learns in the
same way as the leader. It ends with the run, or when the leader ends, which closes the socket.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from roundoff.errors import RoundoffError
from roundoff.runs.folder import RunDirectory

from ..config.learning_keys import OptimizerKeys
from ..config.own_algorithms import import_as_told
from ..config.train_config import TrainConfig
from ..learners.single import LearnerLost
from ..run.device import open_device
from ..run.loop import Run
from ..run.parts import open_environments
from ..run.stopping import Stopped, StopRequest
from ..streams import become_learner
from .alone import train_alone
from .learners import meet, own_device


def main() -> None:
    """Learns until the run has ended."""
    connection = Connection(int(sys.argv[1]))
    order = json.loads(connection.recv_bytes())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The leader decides when to save and stop.
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    report: dict[str, Any] = {}
    try:
        import_as_told(order)
        config, rank = TrainConfig(**order["config"]), order["rank"]
        assert isinstance(config, OptimizerKeys)
        become_learner(rank)
        torch.set_num_threads(config.threads)
        device = open_device(own_device(config, rank), config.format if config.native else None)
        connection.send_bytes(json.dumps({"here": True}).encode())
        group = meet(config, order["meeting"], rank, device, order["memory"])
        files = RunDirectory(order["directory"])
        with open_environments(config.share(), lambda: None, order["allow_imports"], evaluation=False) as environments:
            run = Run(config, files, device, environments, None, StopRequest(), learners=group)
            result = train_alone(run, compiled=False, on_notice=None)
        report = {"crash": {"step": result.crash.step, "reason": result.crash.reason}} if result.crash else {}
    except (LearnerLost, Stopped):
        pass
    except RoundoffError as error:
        report = {"error": str(error)}
    except Exception as error:  # noqa: BLE001  the leader raises it
        report = {"error": f"{type(error).__name__}: {error}"}
    with suppress(OSError):
        connection.send_bytes(json.dumps(report).encode())


def _end_with(leader: Connection) -> None:
    """Ends this process when the leader ends, also while this process waits for the leader."""
    leader.poll(None)  # The leader sends nothing more: this returns when the socket closes.
    os._exit(1)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # Python would spend a long time on the destruction of PyTorch.
