"""In-place and ``out=`` variants of decomposed operations: compute, then copy into the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..aten.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch._ops import OpOverload

_aten = torch.ops.aten


def functional_variant(operation: OpOverload) -> OpOverload | None:
    """The operation that computes what an in-place or ``out=`` operation writes, and returns it."""
    schema = schema_of(operation)
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]
    packet = getattr(_aten, schema.name.removeprefix("aten::").removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        candidate: OpOverload = getattr(packet, overload)
        arguments = schema_of(candidate).arguments
        if candidate is not operation and [(argument.name, str(argument.type)) for argument in arguments] == wanted:
            return candidate
    return None


def in_place(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Computes by ``formula`` and copies into the first argument."""

    def written(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = formula(target, *args, **kwargs)
        if result is NotImplemented or result.dtype != target.dtype:
            return NotImplemented  # the operation itself words the error, or converts
        return target.copy_(result)

    return written


def into_out(formula: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Computes by ``formula`` and copies into the keyword arguments ``names``."""

    def written(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        result = formula(*args, **kwargs)
        if result is NotImplemented:
            return result
        if isinstance(targets[0], (list, tuple)):
            for target, value in zip(targets[0], result, strict=True):
                _fill(target, value)
            return None
        for target, value in zip(targets, result if isinstance(result, tuple) else (result,), strict=True):
            if value is not None:
                _fill(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return written


def _fill(target: Tensor, value: Tensor) -> None:
    if target.shape != value.shape:
        target.resize_(value.shape)
    target.copy_(value)
