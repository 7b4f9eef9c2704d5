"""Softplus, log(1 + exp(x)), by the paper's formula, and in a form that cannot overflow (softplus-fix)."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.autograd.function import FunctionCtx


def softplus_naive(x: torch.Tensor) -> torch.Tensor:
    """Computes softplus operation by operation: log(1 + exp(x)).

    exp(x) overflows for x > log(largest number) (11.1 in e5m10): the value is then infinity, and the gradient NaN
    (0 from the logarithm times infinity from the exponential). For very negative x, 1 + exp(x) is 1 and the value 0.

    Args:
        x: any shape, any floating-point type.

    Returns:
        The same shape and dtype. NaN gives NaN, infinity gives infinity, -infinity gives 0.

    Source:
        Low-precision SAC, Section 3, the expression before equation (2).
    """
    return torch.log(1 + torch.exp(x))


def softplus(x: torch.Tensor, threshold: float = 10.0) -> torch.Tensor:
    """Computes softplus with value and gradient that are finite for every finite x (softplus-fix).

    It is x if x > K, else log(1 + exp(x)). The exponential of min(x, K) keeps the unused branch finite: with only
    ``where``, autograd would multiply its infinity by 0. The gradient is 1 above K and exp(x) / (1 + exp(x)) below.

    Args:
        x: any shape, any floating-point type.
        threshold: K > 0; exp(K) must be finite in the format (K < 11.1 in e5m10). The jump at K is exp(-K) high.

    Returns:
        The same shape and dtype. NaN gives NaN, infinity gives infinity (with gradient 1), -infinity gives 0.
        The result can be differentiated once.

    Source:
        Low-precision SAC, Section 3, equation (2), with x = -2 u. The paper's "if u < K" means -2 u > K.
    """
    result: torch.Tensor = _Softplus.apply(x, threshold)  # type: ignore[no-untyped-call]
    return result


@final
class _Softplus(torch.autograd.Function):
    """Softplus with an explicit gradient without infinite factors."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, threshold: float) -> torch.Tensor:
        linear = x > threshold
        exponential = torch.exp(x.clamp(max=threshold))
        ctx.save_for_backward(linear, exponential)
        return torch.where(linear, x, torch.log1p(exponential))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        linear, exponential = ctx.saved_tensors
        slope = exponential / (exponential + 1)
        return gradient * slope.masked_fill_(linear, 1), None
