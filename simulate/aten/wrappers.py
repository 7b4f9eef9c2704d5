"""Tensor subclasses that wrap other tensors, such as ``DTensor``: they do not hold values to round themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_PLAIN = frozenset([torch.Tensor, torch.nn.Parameter])


def has_memory(x: torch.Tensor) -> bool:
    """Whether the values of ``x`` are in its own storage; true for a fake tensor, while tracing, of such a tensor."""
    if type(x) in _PLAIN:  # nearly always
        return True
    if isinstance(x, FakeTensor) or x.numel() == 0:
        return True
    return type(x).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl or x.data_ptr() != 0  # noqa: SLF001  the only test there is


def has_own_memory(x: object) -> bool:
    """Whether ``x`` is a tensor with its own dense memory, so that its numbers can be counted and found again."""
    return (
        isinstance(x, torch.Tensor)
        and x.layout is torch.strided
        and not (x.is_meta or x.is_nested)
        and has_memory(x)
        and not x._is_zerotensor()  # noqa: SLF001  the only test there is
    )


def is_shape(x: object) -> bool:
    """Whether ``x`` is a fake tensor used only to infer a shape, outside of any trace."""
    return isinstance(x, FakeTensor) and _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is None


def are_plain(types: Sequence[type]) -> bool:
    """Whether all classes that an operation is dispatched for are PyTorch's own, as named also by autograd."""
    return _PLAIN.issuperset(types)


def are_shapes(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Whether :func:`is_shape` is true of an operand."""
    return any(is_shape(x) for x in tree_leaves((args, kwargs)))


def go_first(types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Whether an operand of one of ``types`` (the types that dispatch operations themselves) is a wrapper.

    A wrapper implements an operation by operations on the wrapped tensors.
    """
    return any(
        isinstance(x, torch.Tensor) and type(x) in types and not _keeps_numbers(x) for x in tree_leaves((args, kwargs))
    )


def _keeps_numbers(x: torch.Tensor) -> bool:
    if x.numel() == 0 and hasattr(type(x), "__tensor_flatten__") and not isinstance(x, FakeTensor):
        return False
    return has_memory(x)


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the values of ``x``: itself, or the tensors inside a wrapper."""
    if has_memory(x):
        return [x]
    names = x.__tensor_flatten__()[0] if hasattr(x, "__tensor_flatten__") else ()
    inner = (getattr(x, name) for name in names)
    return [part for value in inner if isinstance(value, torch.Tensor) for part in parts(value)]
