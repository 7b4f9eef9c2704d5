"""The last layer of a network that gives values of scaled rewards, and gradients without that scale."""

from __future__ import annotations

from typing import Any, final

import torch

from ...formats import unsimulated


@final
class _Head(torch.autograd.Function):
    """Computes scale (x W + b), with the derivative of x W + b."""

    @staticmethod
    def forward(
        ctx: Any, bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float, exact: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return (_exact_layer if exact else _layer)(bias, x, weight, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        # The values are of the format already; only their type is that of unrounded outputs.
        gradient = _to(gradients[0], x.dtype)
        needs_bias, needs_x, needs_weight, *_ = ctx.needs_input_grad
        batch = gradient.ndim - 2
        return (
            gradient.sum(batch, keepdim=gradient.ndim > 2) if needs_bias else None,
            torch.matmul(gradient, weight.mT) if needs_x else None,
            torch.matmul(x.mT, gradient) if needs_weight else None,
            None,
            None,
        )


def _layer(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
    return (torch.addmm if x.ndim == 2 else torch.baddbmm)(bias, x, weight, beta=scale, alpha=scale)


_exact_layer = unsimulated(lambda bias, x, weight, scale: _layer(bias.double(), x.double(), weight.double(), scale))
_to = unsimulated(torch.Tensor.to)


def head(
    bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0, *, exact: bool = False
) -> torch.Tensor:
    """Computes scale (x W + b), a layer without an activation function, with gradients that ignore the scale.

    The layer is one operation and rounds scale (x W + b) once. Its operands are as large as without a scale, and its
    results are not larger than necessary. Autograd expects the derivative by x W + b for the result, so all
    gradients have the magnitude that they have without a scale.

    Args:
        bias: (out,) or (members, 1, out).
        x: (n, in) or (members, n, in).
        weight: (in, out) or (members, in, out).
        scale: A power of two. With 1 this is ``torch.addmm`` or ``torch.baddbmm``.
        exact: Leaves the results unrounded, in float64, whatever is simulated. Sums of products of values with at most
            11 significant bits are then exact in any order. Gradients are in the simulated arithmetic either way.

    Returns:
        (n, out) or (members, n, out). NaN and infinities propagate as in ``torch.addmm``.
    """
    if scale == 1 and not exact:
        return (torch.addmm if x.ndim == 2 else torch.baddbmm)(bias, x, weight)
    result: torch.Tensor = _Head.apply(bias, x, weight, scale, exact)  # type: ignore[no-untyped-call]
    return result
