"""Ray's workers as forks of one process that has imported what they need, without the seconds that takes each of them.

In a block of :func:`forked_workers`, Ray starts this file in place of its own program. It asks a process that is in
:func:`serve` for a fork, which becomes the worker, and ends. Modules of libraries are there already: so a test that is
about what a worker imports, or about variables that are read by an import, leaves this out.
"""

import gc
import inspect
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from select import select
from unittest.mock import patch

WHERE = "ROUNDOFF_TESTS_FORKED_RAY"  # the variable that names the socket


@contextmanager
def forked_workers():
    """Has a Ray that is started in this block fork its workers; the block is around all its life."""
    from ray._private import services

    start = services.start_raylet

    def start_raylet(*arguments, **keys):
        given = inspect.signature(start).bind(*arguments, **keys)
        given.arguments["worker_path"] = __file__
        return start(*given.args, **given.kwargs)

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        where = f"{folder}/forks"
        listening.bind(where)
        listening.listen()
        command = [sys.executable, __file__, str(listening.fileno())]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()]),  # ends with its input
            patch.dict(os.environ, {WHERE: where}),
            patch.object(services, "start_raylet", start_raylet),
        ):
            yield


def ask():
    """Asks for a fork with the arguments, variables, folder, niceness and streams of this process."""
    order = {"argv": sys.argv, "env": dict(os.environ), "folder": str(Path.cwd())}
    order["niceness"] = os.getpriority(os.PRIO_PROCESS, 0)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[WHERE])
        socket.send_fds(connection, [b" "], [0, 1, 2])
        connection.sendall(json.dumps(order).encode())


def serve(listening):
    """Forks whenever it is asked to, until nobody holds the other end of its standard input.

    It imports nothing until then: Ray reads variables when it is imported, among them some that only workers have.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they have ended
    while sys.stdin not in select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        with connection:
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            with connection.makefile("rb") as written:
                order = json.load(written)
        if "ray" not in sys.modules:
            be_like(order)
            import_all()
            gc.freeze()
        if os.fork() == 0:
            listening.close()
            become(order, streams)
            return
        for stream in streams:
            os.close(stream)


def import_all():
    """Imports what the workers of runs need."""
    import gymnasium.envs.classic_control.cartpole  # noqa: F401
    import ray._private.workers.default_worker  # noqa: F401

    import roundoff.agents.actors.actor
    import roundoff.agents.actors.weights  # noqa: F401


def be_like(order):
    """Takes over the variables, folder and niceness of who has asked."""
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    os.setpriority(os.PRIO_PROCESS, 0, order["niceness"])


def become(order, streams):
    """Is the worker that was asked for, to its end."""
    import ray._private.workers.default_worker as program

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    be_like(order)
    random.seed()
    sys.argv = [program.__file__, *order["argv"][1:]]
    runpy.run_path(program.__file__, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        ask()
