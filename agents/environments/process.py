"""A process that steps environments for its parent: ``python -m roundoff.agents.environments.process SOCKET MEMORY``.

Messages come through a socket, observations and actions through shared memory; both are descriptors that the parent
hands down. A message of one byte is the index of a group with slots that are to take a step; it is sent back when they
have. Any other is a JSON object, ``{"call": <name>, ...}``, and answered by one. The process ends when the socket
closes, however its parent has ended. It passes a signal to stop on, and continues serving: the parent decides.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from roundoff.errors import RoundoffError

from .opening import open_environment
from .shared_memory import EnvironmentSlots, Exchange

STOP = 255  # Sent before a group's number, if a signal asked this process to stop.
MOST_GROUPS = 100  # Their numbers are below, so that none is STOP.


def main() -> None:
    """Serves until the socket closes."""
    connection = Connection(int(sys.argv[1]))

    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.append(number))
    # When the socket closes, the parent has ended, or does not need this process any more.
    with suppress(EOFError, ConnectionError):
        try:
            memory = int(sys.argv[2])
            order = json.loads(connection.recv_bytes())
            environments = {slot: open_environment(**order["opening"]) for group in order["groups"] for slot in group}
            any_environment = next(iter(environments.values()))
            # Not closed explicitly: the arrays use it until the end.
            buffer = mmap.mmap(memory, 0)
            os.close(memory)
            sizes = (any_environment.observation_size, any_environment.action_size, any_environment.observation_dtype)
            slots = EnvironmentSlots(environments, Exchange(buffer, order["slots"], *sizes))
            _send(connection, {})
            groups, begin_next = order["groups"], order["begin_next"]
            while True:
                message = connection.recv_bytes()
                if len(message) == 1:
                    group = message[0]
                    slots.step(groups[group], begin_next=begin_next[group])
                    if signals:
                        signals.clear()
                        connection.send_bytes(bytes([STOP]))
                    connection.send_bytes(message)
                else:
                    _send(connection, answer(slots, json.loads(message)))
        except (EOFError, ConnectionError):
            raise
        except RoundoffError as error:
            _send(connection, {"error": str(error)})
        except Exception as error:  # noqa: BLE001  the parent raises the faults of environments
            _send(connection, {"error": f"{type(error).__name__}: {error}"})


def answer(slots: EnvironmentSlots, call: dict[str, Any]) -> dict[str, Any]:
    """Carries out a message: ``seed``, ``reset``, ``random_states`` or ``set_random_states``."""
    if call["call"] == "seed":
        slots.seed({int(slot): numbers for slot, numbers in call["entropy"].items()})
    elif call["call"] == "reset":
        slots.reset(call["slots"])
    elif call["call"] == "random_states":
        return {"states": slots.random_states(call["slots"], stepped=call["stepped"])}
    else:
        slots.set_random_states({int(slot): state for slot, state in call["states"].items()})
    return {}


def _send(connection: Connection, value: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(value).encode())


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # Python would spend most of the time of this process on the destruction of PyTorch.
