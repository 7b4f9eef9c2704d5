"""Synchronous learners: all have the same parameters, and step with the sum of the gradients of their samples."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ...formats import Format, unsimulated
from .parcels import Parcel
from .single import LearnerLost

try:
    from torch.distributed import set_timeout  # type: ignore[attr-defined,unused-ignore]
except ImportError:  # before PyTorch 2.14
    from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout
from collections.abc import Callable, Mapping

from torch import Tensor

from ..optimizers.network_optimizer import NetworkOptimizer

_TO_MEET = timedelta(minutes=2)  # For joining, after all learners have reported that they are ready.
# Long, since learners wait for the leader's evaluations. The end of a learner is detected at once by its connections.
_PATIENCE = timedelta(days=7)
_TURNS_BETWEEN_AGREEMENTS = 10  # On stopping: a second or less.


@final
class LearnerGroup:
    """This process among the learners of a run; number 0 leads: it evaluates, logs, and writes the results.

    Args:
        meeting: a new file, in a folder that all learners can access, through which they find each other.
        rank: the number of this learner, from 0.
        count: the number of learners.
        device: the device of gradients: gloo sends them from the processor's memory, nccl from GPU to GPU.
        communicate: the format that gradients are packed in for sending; None: they are not rounded.

    Attributes:
        rank, count: the arguments.
        why_lost: returns to the leader the crash that ended another learner, or raises the error that it failed with.

    Raises:
        LearnerLost: the other learners did not join in time.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 4.2.
    """

    def __init__(
        self, meeting: str, rank: int, count: int, device: torch.device, communicate: str | None = None
    ) -> None:
        self.rank, self.count = rank, count
        self._turns = 0
        self.why_lost: Callable[[], Any] = lambda: None
        self._device = device
        self._format = Format.parse(communicate) if communicate else None
        options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
        try:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=FileStore(meeting, count), rank=rank, world_size=count, timeout=_TO_MEET, **options,
            )  # fmt: skip
            set_timeout(_PATIENCE)
        except RuntimeError as error:
            raise LearnerLost(str(error)) from error

    in_step = True

    @property
    def leads(self) -> bool:
        """Whether this is the learner that evaluates, logs, and writes the results."""
        return self.rank == 0

    def first_step(self, step: int) -> int:
        """Returns the leader's ``step``."""
        return self.agree(step)

    def look_after(self) -> None:
        """Does nothing: no learner continues without the others."""

    def join(self, optimizers: Mapping[str, NetworkOptimizer], _step: int) -> None:
        """Makes these optimizers sum gradients over all learners from now on."""
        for optimizer in optimizers.values():
            optimizer.group = self

    def mean_count(self, count: int) -> int:
        """Returns the number of elements in a mean over all learners, given each learner's ``count``."""
        return count * self.count

    def step(self, optimizer: NetworkOptimizer, largest_norm: float | None) -> None:
        """Updates parameters by the sum of all gradients, clipped to a norm."""
        assert optimizer.flat.grad is not None
        self.sum_(optimizer.flat.grad)
        optimizer.step_alone(largest_norm)

    def advance(self, step: int, count: int) -> int:
        """Returns the number of steps of all learners, after ``count`` steps of each since ``step``."""
        return step + count * self.count

    def is_to_stop(self, requested: bool) -> bool:
        """Returns whether to stop now; the leader decides, every few calls, which each learner counts."""
        self._turns += 1
        return self._turns % _TURNS_BETWEEN_AGREEMENTS == 0 and bool(self.agree(requested))

    def sum_(self, gradient: Tensor) -> None:
        """Replaces a gradient by the sum of all learners' gradients, with the same result in each.

        Gradients are added in the order of the learners, in the surrounding simulation, so that each partial sum is a
        number of the format. NaN and infinities reach all learners (with ``communicate`` as a gradient of all NaN), so
        that all of them skip a step or none does.

        Args:
            gradient: 1-D, contiguous, of the same length and dtype in all learners.

        Raises:
            LearnerLost: another learner has ended.
        """
        first, *others = self._all_of(gradient)
        total = first
        for other in others:  # In the order of the learners, so that all have the same bits.
            total = total + other
        gradient.copy_(total)  # Numbers of the format: the copy rounds nothing.

    @unsimulated
    def agree(self, value: int) -> int:
        """Returns the leader's value."""
        values = torch.tensor([value], dtype=torch.int64, device=self._device)
        with _noticing_loss():
            dist.broadcast(values, 0)
        return int(values)

    @unsimulated
    def meet(self) -> None:
        """Waits until all learners have called it."""
        with _noticing_loss():
            dist.barrier()

    def leave(self) -> None:
        """Closes the connections, which the other learners notice."""
        dist.destroy_process_group()

    @unsimulated
    def _all_of(self, gradient: Tensor) -> list[Tensor]:
        parcel = Parcel.of(gradient, self._format)
        received = [torch.empty_like(parcel.content) for _ in range(self.count)]
        with _noticing_loss():
            dist.all_gather(received, parcel.content)
        return [parcel.opened(content) for content in received]


class _noticing_loss:  # noqa: N801  used as a function is
    """Distinguishes the end of another learner from errors in this one."""

    def __enter__(self) -> None:
        """Prepares nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, RuntimeError):  # From torch.distributed.
            raise LearnerLost(str(error)) from error
