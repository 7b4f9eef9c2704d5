"""Sweeps and workers as forks of the test: the real programs, without the seconds that importing PyTorch costs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module

import torch._dynamo  # noqa: F401  as simulations do, so that no fork has to
from processes import PATIENCE

import roundoff.agents.training.together  # so that no fork has to
from roundoff.cli import main
from roundoff.sweeps import run_sweep
from roundoff.sweeps.workers import local
from roundoff.sweeps.workers import process as worker


class ForkedWorkers:
    """An ``Executor``; ``train`` replaces the function that a worker calls for a run.

    Workers in ``ready`` are there already, and taken first.
    """

    tries = 2
    is_local = True

    def __init__(self, limit, train=None, ready=()):
        self.limit = limit
        self.train = train
        self.ready = list(ready)

    def start(self, log, say):
        worker = self.ready.pop() if self.ready else ForkedWorker(self.train)
        worker.begin(log, say)
        return worker

    def close(self):
        pass


class ForkedWorker:
    """A worker, forked at once; it begins when it is told its log."""

    def __init__(self, train=None):
        orders, self.orders = os.pipe()
        self.events, events = os.pipe()
        logs, self.log = os.pipe()

        def serve():
            os.close(self.log)  # which ends with the sweep
            log = os.read(logs, 4096)
            if not log:
                return
            errors = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            for number, descriptor in enumerate((orders, events, errors)):
                os.dup2(descriptor, number)
            os.closerange(3, 1024)  # the pipes of other workers, which must close with the sweep
            os.setsid()
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            sys.stderr = os.fdopen(2, "w", buffering=1)
            if train:
                roundoff.agents.train_together = one_by_one(train)  # in the face, where workers look
            worker.main()

        self.pid = fork(serve)
        for descriptor in (orders, events, logs):
            os.close(descriptor)
        self.status = None

    def begin(self, log, say):
        os.write(self.log, os.fsencode(log))
        os.close(self.log)
        threading.Thread(target=self.listen, args=(say,), daemon=True).start()

    def listen(self, say):
        with os.fdopen(self.events) as lines, suppress(ValueError):
            for line in lines:
                say(json.loads(line))
        say(None)

    def send(self, order):
        with suppress(OSError):
            os.write(self.orders, json.dumps(order).encode() + b"\n")

    def stop(self):
        self.send({"stop": True})
        with suppress(OSError):
            os.close(self.orders)
        self.orders = -1

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while self.status is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            self.status = ended(self.pid)
            time.sleep(0.005)

    def death(self):
        self.wait(PATIENCE)
        return f"the worker ended with status {self.status}"


def one_by_one(train):
    """``train_together`` for which ``train`` does each run."""

    def train_all(jobs, stop, *, compiled):
        for number, job in enumerate(jobs):
            try:
                yield number, train(job.config, job.directory, job.on_progress, stop)
            except Exception as error:  # noqa: BLE001
                yield number, error

    return train_all


class Silent:
    """A ``Watcher``."""

    def begin(self, waiting, finished, workers):
        pass

    def event(self, event, status, score):
        pass


def fork(program):
    """Runs ``program`` in a fork, which ends with status 0, or 1 after an exception; returns its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            program()
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            try:  # whatever has become of its standard error, it must not go on as the test
                sys.stderr.flush()
            finally:
                os._exit(status)
    return pid


def ended(pid):
    """The exit status of a fork, negative for the signal that killed it; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def import_suite():
    """Imports the tasks of the control suite here, so that no fork has to: seconds for each."""
    with suppress(ImportError):
        import_module("dm_control.suite")


def fork_sweep(plan, directory, limit=2, train=None, watcher=None):
    """A sweep as a process of its own, which has workers of its own; returns its process id."""
    return fork(lambda: run_sweep(plan, directory, executor=ForkedWorkers(limit, train), watcher=watcher or Silent()))


def wait_for(pid, seconds=PATIENCE):
    """The exit status of a fork, once it has ended."""
    end = time.monotonic() + seconds
    while (status := ended(pid)) is None:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError
        time.sleep(0.005)
    return status


def begin_command(*arguments, printed, cwd=None, workers=None, ready=0):
    """The command ``roundoff`` in a fork, whose process id is returned; what it prints goes to files in ``printed``.

    ``workers`` is an ``Executor`` like :class:`ForkedWorkers`, for its sweeps. So many of them are ``ready``: forked
    before the command has imported anything of a user's.
    """

    def command():
        os.chdir(cwd or ".")
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))  # forked workers put others there
        sys.argv = ["roundoff", *map(str, arguments)]
        sys.excepthook = sys.__excepthook__
        warnings.resetwarnings()
        if workers:
            local.LocalProcesses = partial(workers, ready=[ForkedWorker() for _ in range(ready)]) if ready else workers
        os._exit(status_of(main))

    if workers:
        import_suite()
    return fork(command)


def fork_command(*arguments, cwd, printed=None, workers=None, ready=0):
    """What the command ``roundoff`` does in the folder ``cwd``, and ends with, as a ``CompletedProcess``.

    What it prints goes to files in the folder ``printed``, or else in ``cwd``.
    """
    folder = printed or cwd
    status = wait_for(begin_command(*arguments, printed=folder, cwd=cwd, workers=workers, ready=ready))
    texts = (folder / "stdout").read_text(), (folder / "stderr").read_text()
    return subprocess.CompletedProcess(arguments, status, *texts)


def status_of(program):
    """The exit status of ``program``, as the interpreter makes it of how it ends."""
    status = 0
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status
