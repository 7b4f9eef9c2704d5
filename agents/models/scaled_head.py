"""The last layer of a network whose outputs are values of scaled rewards, and whose gradients are not scaled."""

from __future__ import annotations

from typing import Any, final

import torch

from ...formats import apart


@final
class _ScaledHead(torch.autograd.Function):
    """scale (x W + b), whose derivative is that of x W + b."""

    @staticmethod
    def forward(ctx: Any, bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        multiply = torch.addmm if x.ndim == 2 else torch.baddbmm
        return multiply(bias, x, weight, beta=scale, alpha=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_bias, of_x, of_weight, _ = ctx.needs_input_grad
        batch = gradient.ndim - 2
        return (
            gradient.sum(batch, keepdim=gradient.ndim > 2) if of_bias else None,
            torch.matmul(gradient, weight.mT) if of_x else None,
            torch.matmul(x.mT, gradient) if of_weight else None,
            None,
        )


@apart
def exact_head(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """What :func:`head` rounds, unrounded: in float64, whatever is simulated.

    Of numbers with at most 11 significant bits it is exact, and so the same whichever way the products are summed.
    """
    multiply = torch.addmm if x.ndim == 2 else torch.baddbmm
    return multiply(bias.double(), x.double(), weight.double(), beta=scale, alpha=scale)


def head(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """A layer without an activation function, times a scale that its gradient knows nothing of.

    The layer is one operation, which rounds scale (x W + b) once: nothing that goes into it is smaller than without a
    scale, and nothing that comes out is larger than it has to be. The derivative is by x W + b, so that gradients have
    the numbers that they have without a scale, too. What is handed to autograd for the result has to be the derivative
    by x W + b.

    Args:
        bias: (out,) or (members, 1, out).
        x: (n, in) or (members, n, in).
        weight: (in, out) or (members, in, out).
        scale: a power of two; with 1 this is ``torch.addmm`` or ``torch.baddbmm``.

    Returns:
        (n, out) or (members, n, out).
    """
    if scale == 1:
        return (torch.addmm if x.ndim == 2 else torch.baddbmm)(bias, x, weight)
    scaled: torch.Tensor = _ScaledHead.apply(bias, x, weight, scale)  # type: ignore[no-untyped-call]
    return scaled
