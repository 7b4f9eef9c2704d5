"""The learners of a run except the leader: processes on this machine, from their start to their end."""

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
    """Starts the other learners of a run, for the block, and gives the group of this process, which leads them.

    Raises:
        RunError: a learner has failed or died; the others are ended then, and the last checkpoint remains.
    """
    if not isinstance(config, OptimizerKeys) or config.learners == 1:
        yield SingleLearner()
        return
    make_directory(files.learners)
    memory = os.memfd_create("roundoff-central") if config.asynchronous else None  # without a name: nothing to clean up
    meeting = files.learners / f"meeting-{secrets.token_hex(4)}"
    order = {
        "config": config.as_json(), "directory": str(files.path.absolute()), "meeting": str(meeting.absolute()),
        "allow_imports": list(allow_imports), **for_others(config.algorithm),
    }  # fmt: skip
    followers: list[Follower] = []
    try:
        for rank in range(1, config.learners):
            followers.append(Follower(rank, order, memory))  # noqa: PERF401  those that have begun are ended if one cannot
        if memory is None:
            # Waits until all are about to meet
            while not all(follower.here for follower in followers):
                for follower in followers:
                    follower.last_words()
                time.sleep(_PAUSE)
        group = meet(config, str(meeting), 0, torch.device(own_device(config, 0)), memory)
        group.why_lost = lambda: _why_lost(followers)
        if isinstance(group, AsynchronousGroup):
            group.notice = lambda: _notice(followers, on_notice)
        try:
            yield group
        finally:
            with suppress(Exception):
                group.leave()
    except LearnerLost as lost:
        _why_lost(followers)
        raise RunError(f"the learners of this run have lost each other ({lost}); the same command goes on") from lost
    finally:
        end_all(followers)
        if memory is not None:
            os.close(memory)
        with suppress(OSError):
            meeting.unlink(missing_ok=True)
            files.learners.rmdir()  # unless they have saved something


def own_device(config: OptimizerKeys, rank: int) -> str:
    """The device of a learner: of GPUs each has one."""
    return f"cuda:{rank}" if config.device == "cuda" else config.device


def meet(
    config: OptimizerKeys, meeting: str, rank: int, device: torch.device, memory: int | None
) -> LearnerGroup | AsynchronousGroup:
    """Joins this process to the learners; returns once all learners that sum gradients have joined."""
    if memory is not None:
        return AsynchronousGroup(memory, rank, config.learners, every=config.communicate_every)
    if device.type == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # which every machine has, whatever its name leads to
    return LearnerGroup(meeting, rank, config.learners, device, config.communicate)


def _why_lost(followers: list[Follower]) -> Crash | None:
    """Returns the crash of a lost learner's agent; None if no learner has reported one.

    Raises:
        RunError: it has failed, or died.
    """
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        for follower in followers:
            crash = follower.last_words()
            if crash:
                return crash
        time.sleep(_PAUSE)
    return None


def _notice(followers: list[Follower], on_notice: Callable[[str], None] | None) -> None:
    """Checks whether others have ended; the run continues without killed learners.

    Raises:
        LearnerLost: the agent of one has crashed; ``why_lost`` says how.
        RunError: one has failed.
    """
    for follower in followers:
        if follower.gone:
            continue
        try:
            follower.crash = follower.last_words()
        except Killed as died:
            follower.gone = True
            if on_notice:
                on_notice(f"{died}; the others go on")
        if follower.crash:
            raise LearnerLost


class Killed(RunError):  # noqa: N818  as signals say
    """A learner was ended by something outside of it."""


@final
class Follower:
    """A process that learns, and the socket to it: it ends when that closes."""

    def __init__(self, rank: int, order: dict[str, Any], memory: int | None) -> None:
        self.here = self.gone = False
        self.crash: Crash | None = None
        self.rank, self.count = rank, order["config"]["learners"]
        self.process, self.connection = ChildProcess.asked_through_socket(
            "roundoff.agents.training.follower", descriptors=() if memory is None else (memory,)
        )
        with suppress(OSError):  # it has died already, which is noticed later
            self.connection.send_bytes(json.dumps({**order, "rank": rank, "memory": memory}).encode())

    def last_words(self) -> Crash | None:
        """The crash that it has reported; None if it has not reported anything.

        Raises:
            RunError: it has reported an error, or died.
        """
        if self.crash:
            return self.crash
        report: dict[str, Any] = {}
        with suppress(EOFError, OSError):
            while self.connection.poll(0):
                report |= json.loads(self.connection.recv_bytes())
        self.here |= "here" in report
        if "crash" in report:
            return Crash(**report["crash"])
        if "error" in report:
            raise RunError(report["error"])
        if not self.process.status():  # it lives, or has ended well
            return None
        raise Killed(
            f"learner {self.rank + 1} of {self.count} (process {self.process.pid}) {self.process.death()}; if nobody"
            " killed it, memory may have run out; the same command goes on from the last checkpoint"
        )


def end_all(followers: list[Follower]) -> None:
    """Closes the sockets, and kills processes that remain."""
    for follower in followers:
        follower.connection.close()
        follower.process.ask_to_end()
    for follower in followers:
        follower.process.end()
