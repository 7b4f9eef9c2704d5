"""Starts the learners of a run other than the leader, as processes on this machine, checks them and ends them."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import torch

from roundoff.files import make_directory
from roundoff.processes import GRACE, ChildProcess
from roundoff.runs.folder import RunDirectory
from roundoff.runs.result import Crash

from ..config.learning_keys import OptimizerKeys
from ..config.own_algorithms import for_others
from ..config.train_config import TrainConfig
from ..errors import RunError
from ..learners.asynchronous import AsynchronousGroup
from ..learners.group import LearnerGroup
from ..learners.single import LearnerLost, Learners, SingleLearner

_PAUSE = 0.05


@contextmanager
def others_learning(
    config: TrainConfig,
    files: RunDirectory,
    allow_imports: Collection[str],
    on_notice: Callable[[str], None] | None = None,
) -> Iterator[Learners]:
    """Starts the other learners of a run for the block, and yields the group of all learners, which this process leads.

    Raises:
        RunError: a learner has failed or died; all others are then ended, and the last checkpoint remains.
    """
    if not isinstance(config, OptimizerKeys) or config.learners == 1:
        yield SingleLearner()
        return
    make_directory(files.learners)
    central = os.memfd_create("roundoff-central") if config.asynchronous else None  # Freed with the last process.
    meeting = files.learners / f"meeting-{secrets.token_hex(4)}"
    order = {
        "config": config.as_json(), "directory": str(files.path.absolute()), "meeting": str(meeting.absolute()),
        "allow_imports": list(allow_imports), **for_others(config.algorithm),
    }  # fmt: skip
    followers: list[Follower] = []
    try:
        for rank in range(1, config.learners):
            followers.append(Follower(rank, order, central))  # noqa: PERF401  if one fails, the earlier ones are ended
        if central is None:
            # Joining has a short timeout: waits until all followers are ready.
            while not all(follower.is_ready for follower in followers):
                for follower in followers:
                    follower.read_report()
                time.sleep(_PAUSE)
        group = meet(config, str(meeting), 0, torch.device(own_device(config, 0)), central)
        group.why_lost = lambda: _why_lost(followers)
        if isinstance(group, AsynchronousGroup):
            group.notice = lambda: _notice(followers, on_notice)
        try:
            yield group
        finally:
            with suppress(Exception):  # The block's own error matters more.
                group.leave()
    except LearnerLost as lost:
        _why_lost(followers)
        raise RunError(f"the learners of this run have lost each other ({lost}); the same command continues") from lost
    finally:
        end_all(followers)
        if central is not None:
            os.close(central)
        with suppress(OSError):
            meeting.unlink(missing_ok=True)
            files.learners.rmdir()  # Fails if they have saved something.


def own_device(config: OptimizerKeys, rank: int) -> str:
    """Returns the device of a learner: each has a separate GPU."""
    return f"cuda:{rank}" if config.device == "cuda" else config.device


def meet(
    config: OptimizerKeys, meeting: str, rank: int, device: torch.device, memory: int | None
) -> LearnerGroup | AsynchronousGroup:
    """Joins this process to the learners; returns once all learners that sum gradients have joined."""
    if memory is not None:
        return AsynchronousGroup(memory, rank, config.learners, every=config.communicate_every)
    if device.type == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # The machine's name may resolve to another interface.
    return LearnerGroup(meeting, rank, config.learners, device, config.communicate)


def _why_lost(followers: list[Follower]) -> Crash | None:
    """Returns the crash of a lost learner's agent; None if no learner has reported one.

    Raises:
        RunError: a learner has failed or died.
    """
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        for follower in followers:
            crash = follower.read_report()
            if crash:
                return crash
        time.sleep(_PAUSE)
    return None


def _notice(followers: list[Follower], on_notice: Callable[[str], None] | None) -> None:
    """Checks whether other learners have ended; the run continues without killed ones.

    Raises:
        LearnerLost: the agent of a learner has crashed; ``why_lost`` returns the crash.
        RunError: a learner has failed.
    """
    for follower in followers:
        if follower.is_dead:
            continue
        try:
            follower.crash = follower.read_report()
        except Killed as killed:
            follower.is_dead = True
            if on_notice:
                on_notice(f"{killed}; the others continue")
        if follower.crash:
            raise LearnerLost


class Killed(RunError):  # noqa: N818  named after its cause
    """Raised when a learner was killed from outside."""


@final
class Follower:
    """The process of another learner, and the socket to it; the process ends when the socket is closed."""

    def __init__(self, rank: int, order: dict[str, Any], memory: int | None) -> None:
        self.is_ready = self.is_dead = False
        self.crash: Crash | None = None
        self.rank, self.count = rank, order["config"]["learners"]
        self.process, self.connection = ChildProcess.asked_through_socket(
            "roundoff.agents.training.follower", descriptors=() if memory is None else (memory,)
        )
        with suppress(OSError):  # It has already died: read_report will raise the error.
            self.connection.send_bytes(json.dumps({**order, "rank": rank, "memory": memory}).encode())

    def read_report(self) -> Crash | None:
        """Returns the crash that the learner has reported; None if it has not reported any.

        Raises:
            RunError: the learner has reported an error, or died.
        """
        if self.crash:
            return self.crash
        report: dict[str, Any] = {}
        with suppress(EOFError, OSError):
            while self.connection.poll(0):
                report |= json.loads(self.connection.recv_bytes())
        self.is_ready |= "here" in report  # The follower sends it before it joins.
        if "crash" in report:
            return Crash(**report["crash"])
        if "error" in report:
            raise RunError(report["error"])
        if not self.process.status():  # It lives, or has ended without an error.
            return None
        raise Killed(
            f"learner {self.rank + 1} of {self.count} (process {self.process.pid}) {self.process.death()}; if nobody"
            " killed it, memory may have run out; the same command continues from the last checkpoint"
        )


def end_all(followers: list[Follower]) -> None:
    """Closes the sockets, and kills processes that remain."""
    for follower in followers:
        follower.connection.close()
        follower.process.ask_to_end()
    for follower in followers:
        follower.process.end()
