"""Operations on lists of tensors with a composite part for each tensor, with the signatures of the ATen operations.

The others (_foreach_mul, _foreach_sqrt, ...) are one primitive operation for each tensor, and may as well run at once.
"""

# ruff: noqa: SLF001  many ATen operations have names that begin with an underscore

from __future__ import annotations

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
}
if hasattr(_aten, "_foreach_powsum"):  # PyTorch 2.8 has none
    FORMULAS[_aten._foreach_powsum] = _foreach_powsum
