"""Formulas of ATen operations on lists of tensors: foreach operations and fused optimizers, with their signatures.

Foreach operations have a composite part for each tensor. (The others, such as _foreach_mul and _foreach_sqrt, are one
primitive operation for each tensor, and may as well run at once.) Fused optimizers go step by step, like PyTorch's
single-tensor optimizers: factors that depend only on settings and the number of the step (1 - beta^t and the like) are
Python numbers, exact; products and sums of tensors are operations, and composite ones (lerp, addcmul, addcdiv) are
decomposed further.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]

_aten = torch.ops.aten


def _column(operand: Any, count: int) -> Iterable[Any]:
    """Returns the operand for each of ``count`` tensors."""
    return operand if isinstance(operand, (list, tuple)) else [operand] * count


def _each(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def formula(tensors: Tensors, *operands: Any) -> Any:
        columns = [_column(operand, len(tensors)) for operand in operands]
        return [operation(*row) for row in zip(tensors, *columns, strict=True)]

    return formula


def _each_scaled(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def formula(tensors: Tensors, other: Any, alpha: float = 1) -> Any:
        if alpha == 1:
            return NotImplemented
        return [operation(x, y, alpha=alpha) for x, y in zip(tensors, _column(other, len(tensors)), strict=True)]

    return formula


def _each_product(operation: Callable[..., Tensor]) -> Callable[..., Any]:
    def formula(tensors: Tensors, first: Tensors, second: Tensors, value: Any = 1) -> Any:
        values = _column(value.tolist() if isinstance(value, torch.Tensor) else value, len(tensors))
        return [operation(x, a, b, value=v) for x, a, b, v in zip(tensors, first, second, values, strict=True)]

    return formula


def _in_place(formula: Callable[..., Any]) -> Callable[..., Any]:
    def written(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if formula(*args, **kwargs) is NotImplemented else None  # As the operations in place do.

    return written


def _foreach_norm(tensors: Tensors, order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(x, order, dtype=dtype) for x in tensors]


def _foreach_powsum(tensors: Tensors, order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    powers = [x * x if order == 2 and not x.is_complex() else x.abs().pow(order) for x in tensors]
    return [x.sum(dtype=dtype) for x in powers]


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
    _aten._foreach_add.List: _each_scaled(_aten.add.Tensor),
    _aten._foreach_add.Tensor: _each_scaled(_aten.add.Tensor),
    _aten._foreach_add_.List: _in_place(_each_scaled(_aten.add_.Tensor)),
    _aten._foreach_add_.Tensor: _in_place(_each_scaled(_aten.add_.Tensor)),
    _aten._foreach_sub.List: _each_scaled(_aten.sub.Tensor),
    _aten._foreach_sub_.List: _in_place(_each_scaled(_aten.sub_.Tensor)),
    _aten._foreach_addcmul: _each_product(_aten.addcmul.default),
    _aten._foreach_addcmul_: _in_place(_each_product(_aten.addcmul_.default)),
    _aten._foreach_addcdiv: _each_product(_aten.addcdiv.default),
    _aten._foreach_addcdiv_: _in_place(_each_product(_aten.addcdiv_.default)),
    _aten._foreach_lerp: _each(_aten.lerp),
    _aten._foreach_lerp_: _in_place(_each(_aten.lerp_)),
    _aten._foreach_norm: _foreach_norm,
    _aten._fused_adam_: _for_each(_adam, decoupled=False),
    _aten._fused_adamw_: _for_each(_adam, decoupled=True),
    _aten._fused_sgd_: _for_each(_sgd),
    _aten._fused_adagrad_: _for_each(_adagrad),
}
if hasattr(_aten, "_foreach_powsum"):  # PyTorch 2.8 has none
    FORMULAS[_aten._foreach_powsum] = _foreach_powsum
