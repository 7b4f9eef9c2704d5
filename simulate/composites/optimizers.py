"""The fused optimizers, step by step as PyTorch's single-tensor optimizers do it.

Factors that depend on settings and the number of the step alone (1 - beta^t and the like) are Python numbers, exact.
Products and sums of tensors are operations, and those that are composite (lerp, addcmul, addcdiv) come apart further.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

    Tensors = Sequence[Tensor]

_aten = torch.ops.aten


def _gradients(grads: Tensors, grad_scale: Tensor | None, *, maximize: bool) -> Tensors:
    """The gradients, unscaled where they stand, as the kernels do; with the sign of the objective."""
    if grad_scale is not None:
        for gradient in grads:
            gradient.div_(grad_scale)
    return [-gradient for gradient in grads] if maximize else grads


def _skipped(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf.item())


def _fused_adam(decoupled: bool) -> Callable[..., None]:
    def formula(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        if _skipped(found_inf):
            return
        rate = float(lr)
        for i, gradient in enumerate(_gradients(grads, grad_scale, maximize=maximize)):
            param, mean, square = params[i], exp_avgs[i], exp_avg_sqs[i]
            if weight_decay and decoupled:
                param.mul_(1 - rate * weight_decay)
            elif weight_decay:
                gradient = gradient.add(param, alpha=weight_decay)  # noqa: PLW2901  the decayed gradient
            step = state_steps[i].item()
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            if amsgrad:
                torch.maximum(max_exp_avg_sqs[i], square, out=max_exp_avg_sqs[i])
                square = max_exp_avg_sqs[i]
            root = square.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
            param.addcdiv_(mean, root, value=-rate / (1 - beta1**step))

    return formula


def _fused_sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    for i, gradient in enumerate(_gradients(grads, grad_scale, maximize=maximize)):
        if weight_decay:
            gradient = gradient.add(params[i], alpha=weight_decay)  # noqa: PLW2901  the decayed gradient
        if momentum:
            buffer = momentum_buffers[i]
            if is_first_step:
                buffer.copy_(gradient)
            else:
                buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
            gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer  # noqa: PLW2901
        params[i].add_(gradient, alpha=-float(lr))


def _fused_adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    for i, gradient in enumerate(_gradients(grads, grad_scale, maximize=maximize)):
        if weight_decay:
            gradient = gradient.add(params[i], alpha=weight_decay)  # noqa: PLW2901  the decayed gradient
        rate = float(lr) / (1 + (state_steps[i].item() - 1) * lr_decay)
        state_sums[i].addcmul_(gradient, gradient, value=1)
        params[i].addcdiv_(gradient, state_sums[i].sqrt().add_(eps), value=-rate)


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten._fused_adam_: _fused_adam(decoupled=False),
    _aten._fused_adamw_: _fused_adam(decoupled=True),
    _aten._fused_sgd_: _fused_sgd,
    _aten._fused_adagrad_: _fused_adagrad,
}
