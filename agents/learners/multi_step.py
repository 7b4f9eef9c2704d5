"""Several steps of Adam between two exchanges with central parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from ..optimizers.network_optimizer import NetworkOptimizer


@final
class MultiStepAdam:
    """Adam's steps on local parameters, and what they come to for central ones.

    Each local step is Adam's (or hAdam's), theta <- theta - s, and accumulates

        a_g <- b1 a_g + g,    a_h <- hypot(sqrt(b2) a_h, g),    a_s <- a_s + s.

    After n of them, central parameters and moments become

        theta <- theta - a_s,    m <- b1^n m + (1 - b1) a_g,    v <- b2^n v + (1 - b2) a_h^2,

    and the local ones become these. a_h is the root of the paper's a_g2 <- b2 a_g2 + g^2: the same in exact arithmetic,
    without a square that could overflow or underflow. With one learner that exchanges after each step, this is Adam to
    the bit. Counts of steps, which correct the bias, stay each learner's own, as in the paper.

    eps is added to the root of v, outside of it, as the authors' program has it; the text omits it. NaN and infinities
    go through to the central parameters.

    Args:
        optimizer: of the local parameters; without loss scaling, compensation, or master weights.

    Attributes:
        tensors: the central ones as last seen: parameters, m, and v (or its root, of hAdam).

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Appendix B.
    """

    def __init__(self, optimizer: NetworkOptimizer) -> None:
        tensors = optimizer.tensors
        self._flat = optimizer.parameters
        self._change = torch.zeros_like(self._flat)  # - a_s
        self._change.grad = self._flat.grad
        # The local steps move the change since the last exchange: as small as it is, nothing of it is lost in a sum.
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
        """A local step with the gradients that the local parameters hold."""
        gradient = self._flat.grad
        assert gradient is not None
        beta1, beta2 = self._adam.param_groups[0]["betas"]
        self._optimizer.step_alone()
        self._gradients.mul_(beta1).add_(gradient)
        torch.hypot(self._root.mul_(math.sqrt(beta2)), gradient, out=self._root)
        self._steps += 1
        torch.add(self.tensors[0], self._change, out=self._flat)

    @torch.no_grad()
    def exchange(self) -> None:
        """Applies the steps since the last exchange to ``tensors``, the central ones; the local ones follow."""
        parameters, moment, second = self.tensors
        parameters.add_(self._change)
        self._adam.add_steps([moment], [second], [self._gradients], [self._root], self._steps)
        for local, central in zip((self._flat, *self._moments, *self._seconds), self.tensors, strict=True):
            local.copy_(central)
        for accumulated in (self._change, self._gradients, self._root):
            accumulated.zero_()
        self._steps = 0
