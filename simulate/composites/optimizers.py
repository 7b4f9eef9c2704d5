"""The fused optimizers, step by step as PyTorch's single-tensor optimizers do it.

Factors that depend only on settings and the number of the step (1 - beta^t and the like) are Python numbers, exact.
Products and sums of tensors are operations, and composite ones (lerp, addcmul, addcdiv) are decomposed further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]

_aten = torch.ops.aten


def _for_each(step: Callable[..., None], **fixed: Any) -> Callable[..., None]:
    """A fused optimizer, from the ``step`` of one parameter: it takes an entry of every list, and the settings.

    As in the kernels, nothing happens if an infinity was found, and gradients are unscaled in place.
    """

    def formula(
        params: Tensors, grads: Tensors, *state: Tensors, lr: float | Tensor, maximize: bool,
        grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        if found_inf is not None and found_inf.item():
            return
        if grad_scale is not None:
            for gradient in grads:
                gradient.div_(grad_scale)
        if maximize:  # A negation is exact.
            grads = [-gradient for gradient in grads]
        for i, (param, gradient) in enumerate(zip(params, grads, strict=True)):
            tensors = [entries[i] if entries else None for entries in state]
            step(param, gradient, *tensors, rate=float(lr), **fixed, **settings)

    return formula


def _decayed(gradient: Tensor, param: Tensor, weight_decay: float) -> Tensor:
    return gradient.add(param, alpha=weight_decay) if weight_decay else gradient


def _adam(
    param: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, largest: Tensor, steps: Tensor, *, rate: float,
    beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, decoupled: bool,
) -> None:  # fmt: skip
    if not decoupled:  # Adam adds the decay to the gradient, AdamW shrinks the parameter.
        gradient = _decayed(gradient, param, weight_decay)
    elif weight_decay:
        param.mul_(1 - rate * weight_decay)
    step = steps.item()
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if amsgrad:
        square = torch.maximum(largest, square, out=largest)  # A move, without rounding.
    root = square.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
    param.addcdiv_(mean, root, value=-rate / (1 - beta1**step))


def _sgd(
    param: Tensor, gradient: Tensor, buffer: Tensor, *, rate: float, weight_decay: float, momentum: float,
    dampening: float, nesterov: bool, is_first_step: bool,
) -> None:  # fmt: skip
    gradient = _decayed(gradient, param, weight_decay)
    if momentum:
        if is_first_step:
            buffer.copy_(gradient)
        else:
            buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
        gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
    param.add_(gradient, alpha=-rate)


def _adagrad(
    param: Tensor, gradient: Tensor, total: Tensor, steps: Tensor, *, rate: float, lr_decay: float, weight_decay: float,
    eps: float,
) -> None:  # fmt: skip
    gradient = _decayed(gradient, param, weight_decay)
    rate = rate / (1 + (steps.item() - 1) * lr_decay)  # A Python number.
    total.addcmul_(gradient, gradient, value=1)
    param.addcdiv_(gradient, total.sqrt().add_(eps), value=-rate)


FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten._fused_adam_: _for_each(_adam, decoupled=False),
    _aten._fused_adamw_: _for_each(_adam, decoupled=True),
    _aten._fused_sgd_: _for_each(_sgd),
    _aten._fused_adagrad_: _for_each(_adagrad),
}
