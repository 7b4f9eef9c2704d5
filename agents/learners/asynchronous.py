"""Asynchronous learners: they share central parameters, to which each applies its own gradients at any time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, final

import torch
from torch import Tensor

from ...formats import unsimulated
from ..optimizers.network_optimizer import NetworkOptimizer
from .central import CentralStore

_MOMENTS = ("moment", "second", "compensation")


@final
class AsynchronousGroup:
    """This process among the learners of a run that share central parameters, on one machine; number 0 leads.

    A learner computes a gradient with its local parameters. Then, chunk by chunk, it locks the chunk, reads the central
    parameters and moments, applies its step to them, and writes them back (``every`` = 1; with any fix); or it takes
    several local steps, and then applies their sum (``every`` > 1; :class:`MultiStepAdam`). With loss scaling there is
    one chunk, since a step is skipped for all parameters; if the central scale has changed since a gradient was
    computed, the gradient is multiplied by the ratio of the scales.

    The result depends on the order of learners, so that runs cannot be repeated, except with ``lockstep``.

    Args:
        memory: see :class:`CentralStore`.
        rank: the number of this learner, from 0.
        count: the number of learners.
        every: steps between exchanges.
        chunks: the number of parts that a network's parameters are divided into.
        lockstep: whether learners wait for their turn; for tests.

    Attributes:
        why_lost: always returns None.
        notice: reports learners that have died; raises :class:`LearnerLost` if one has crashed.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 4.3 and Appendix B.
    """

    in_step = False

    def __init__(
        self, memory: int, rank: int, count: int, *, every: int = 1, chunks: int = 3, lockstep: bool = False
    ) -> None:
        self.rank, self.count = rank, count
        self.why_lost: Callable[[], Any] = lambda: None
        self.notice: Callable[[], None] = lambda: None
        self._memory, self._every, self._chunks, self._lockstep = memory, every, chunks, lockstep
        self._steppers: dict[int, _Stepper] = {}
        self._store: CentralStore | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the learner that evaluates, logs, and writes the results."""
        return self.rank == 0

    @property
    def store(self) -> CentralStore:
        """The central store."""
        assert self._store is not None, "a learner joins first"
        return self._store

    def first_step(self, step: int) -> int:
        """Returns -1 unless this learner leads: others have no checkpoint, and begin new episodes."""
        return step if self.leads else -1

    def meet(self) -> None:
        """Does nothing: learners do not wait."""

    def look_after(self) -> None:
        """Calls ``notice``, by which the process that has started the other learners checks them."""
        self.notice()

    def join(self, optimizers: Mapping[str, NetworkOptimizer], step: int) -> None:
        """Shares the parameters of these optimizers; all begin with the leader's, and count from ``step``."""
        chunks: list[list[Tensor]] = []
        for optimizer in optimizers.values():
            optimizer.group = self
            stepper = (
                _InChunks(optimizer, self._chunks) if self._every == 1 else _InSeveralSteps(optimizer, self._every)
            )
            stepper.first = len(chunks)
            chunks += stepper.chunks
            self._steppers[id(optimizer)] = stepper
        self._store = CentralStore(self._memory, chunks, leads=self.leads, steps=step)
        if not self.leads:  # All begin with the leader's parameters.
            self.pull()

    def mean_count(self, count: int) -> int:
        """Returns ``count``, the divisor of the weights of a mean: each learner has a separate mean."""
        return count

    def step(self, optimizer: NetworkOptimizer, largest_norm: float | None) -> None:
        """Moves the central parameters by this learner's gradients, clipped, and copies them to ``optimizer``."""
        if largest_norm is not None:  # Here: a part of a gradient has another norm.
            optimizer.clip_gradients(largest_norm)
        with self.store.turn(self.rank, self.count) if self._lockstep else nullcontext():
            self._steppers[id(optimizer)].step(self.store)

    def advance(self, _step: int, count: int) -> int:
        """Returns the number of steps of all learners, after ``count`` more steps of this one."""
        return self.store.count(count)

    def is_to_stop(self, requested: bool) -> bool:
        """Returns whether to stop now; the leader decides."""
        if self.leads and requested:
            self.store.ask_to_stop()
        return self.store.stop

    @unsimulated
    def pull(self) -> None:
        """Replaces the parameters of this learner by the central ones."""
        self.store.pull()
        for stepper in self._steppers.values():
            stepper.pulled()

    def leave(self) -> None:
        """Asks all learners to stop, if this one leads."""
        if self.leads and self._store is not None:
            self._store.ask_to_stop()


class _Stepper(Protocol):
    """The step of an optimizer on central parameters."""

    chunks: list[list[Tensor]]
    first: int  # the number of its first chunk

    def step(self, store: CentralStore) -> None:
        """Moves the central parameters by the gradient of the optimizer's parameters."""

    def pulled(self) -> None:
        """Updates the optimizer after the chunks have been read."""


class _InChunks:
    """Applies each step to the central parameters."""

    first = 0

    def __init__(self, optimizer: NetworkOptimizer, count: int) -> None:
        tensors = optimizer.tensors
        length = len(optimizer.flat)
        if optimizer.scaler:  # A step is skipped for all parameters.
            count = 1
        self._parts: list[NetworkOptimizer] = []
        self.chunks = []
        for i, positions in enumerate(torch.arange(length).tensor_split(min(count, length))):
            begin, end = int(positions[0]), int(positions[-1]) + 1
            chunk = {name: x[begin:end] if name in ("parameters", *_MOMENTS) else x for name, x in tensors.items()}
            if i:  # The first chunk has the optimizer's own count; each part counts its steps.
                chunk["step"] = tensors["step"].clone()
            chunk["parameters"].grad = optimizer.flat.grad[begin:end]  # type: ignore[index]
            self._parts.append(optimizer.bound_to(chunk))
            shared_names = ("parameters", *_MOMENTS, "step", "loss_scale", "scale", "finite_steps")
            self.chunks.append([chunk[name] for name in shared_names if name in chunk])

    def step(self, store: CentralStore) -> None:
        for i, part in enumerate(self._parts):
            scale = part.scale  # Of the gradient; ``held`` reads the central scale.
            with store.held(self.first + i):
                if part.scale != scale:
                    assert part.flat.grad is not None
                    part.flat.grad.mul_(part.scale / scale)
                part.step_alone()

    def pulled(self) -> None:
        """Sets the optimizer's parameters to the values read."""


class _InSeveralSteps:
    """Applies the sum of several local steps to the central parameters."""

    first = 0

    def __init__(self, optimizer: NetworkOptimizer, every: int) -> None:
        self._adam = MultiStepAdam(optimizer)
        self._every, self._local_steps = every, 0  # Since the last exchange.
        self.chunks = [self._adam.tensors]

    def step(self, store: CentralStore) -> None:
        self._adam.step()
        self._local_steps += 1
        if self._local_steps == self._every:
            self._local_steps = 0
            with store.held(self.first):
                self._adam.exchange()

    def pulled(self) -> None:
        self._adam.exchange()


@final
class MultiStepAdam:
    """Adam's steps on local parameters, and their total effect on central ones.

    Each local step is Adam's (or hAdam's), theta <- theta - s, and accumulates

        a_g <- b1 a_g + g,    a_h <- hypot(sqrt(b2) a_h, g),    a_s <- a_s + s.

    After n local steps, central parameters and moments become

        theta <- theta - a_s,    m <- b1^n m + (1 - b1) a_g,    v <- b2^n v + (1 - b2) a_h^2,

    and the local ones become these. a_h is the root of the paper's a_g2 <- b2 a_g2 + g^2: the same in exact arithmetic,
    without a square that could overflow or underflow. With one learner that exchanges after each step, the bits are
    the same as Adam's. Each learner has a separate count of steps for bias corrections, as in the paper.

    eps is added to the root of v, outside of the root, as in the authors' program; the text omits it. NaN and
    infinities reach the central parameters.

    Args:
        optimizer: the optimizer of the local parameters; without loss scaling, compensation, or master weights.

    Attributes:
        tensors: copies of the central parameters, m, and v (of hAdam its root), from the last exchange.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Appendix B.
    """

    def __init__(self, optimizer: NetworkOptimizer) -> None:
        tensors = optimizer.tensors
        self._flat = optimizer.parameters
        self._change = torch.zeros_like(self._flat)  # - a_s
        self._change.grad = self._flat.grad  # The gradients of the local parameters move the change.
        # Local steps change the difference since the last exchange, which is small, so that rounding affects it less.
        self._optimizer = optimizer.bound_to({**tensors, "parameters": self._change})
        self._adam = self._optimizer.optimizer
        self._moments = [tensors["moment"]]
        self._seconds = [tensors["second"]]
        self._gradients = torch.zeros_like(self._flat)
        self._root = torch.zeros_like(self._flat)
        self._steps = 0
        self.tensors = [self._flat.clone(), tensors["moment"].clone(), tensors["second"].clone()]

    @torch.no_grad()
    def step(self) -> None:
        """Takes a local step with the gradients of the local parameters."""
        gradient = self._flat.grad
        assert gradient is not None
        beta1, beta2 = self._adam.param_groups[0]["betas"]
        self._optimizer.step_alone()
        self._gradients.mul_(beta1).add_(gradient)
        torch.hypot(self._root.mul_(math.sqrt(beta2)), gradient, out=self._root)
        self._steps += 1
        torch.add(self.tensors[0], self._change, out=self._flat)  # The parameters for the next gradient.

    @torch.no_grad()
    def exchange(self) -> None:
        """Applies the steps since the last exchange to the central ``tensors``, and copies these to the local ones."""
        parameters, moment, second = self.tensors
        parameters.add_(self._change)
        self._adam.add_steps([moment], [second], [self._gradients], [self._root], self._steps)
        for local, central in zip((self._flat, *self._moments, *self._seconds), self.tensors, strict=True):
            local.copy_(central)
        for accumulated in (self._change, self._gradients, self._root):
            accumulated.zero_()
        self._steps = 0
