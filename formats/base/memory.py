"""Whether a tensor's elements are stored at its address, and substitutes for tensors without stored elements.

Compiled loops take addresses. Of many tensors of PyTorch the address does not lead to the elements: of a lazily negated
view (``z.conj().imag``), a gradient that is known to be zero, a tensor inside ``torch.vmap``, a wrapper subclass such
as DTensor. All code that passes an address to a loop therefore asks :func:`in_memory` first.
Loops visit elements in memory order; layouts are CPU tensors' layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C import (
    _get_dispatch_mode,
    _len_torch_dispatch_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
    _TorchDispatchModeKey,
)
from torch.compiler import is_compiling

from .errors import FormatError

_P = ParamSpec("_P")
_R = TypeVar("_R")

# A subclass may redefine operations: its tensors are rounded by an operator, which it can also redefine.
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_TRACING = (_TorchDispatchModeKey.FAKE, _TorchDispatchModeKey.PROXY, _TorchDispatchModeKey.FUNCTIONAL)


def in_memory(x: torch.Tensor) -> bool:
    """Whether the elements of ``x`` are stored at its address in the CPU's memory, and torch is not compiling."""
    if type(x) not in _PLAIN or is_compiling() or not x.is_cpu or x.is_neg():
        return False
    try:
        # The address is 0 for gradients known to be zero and freed storages, but also for tensors without elements.
        return x.data_ptr() != 0 or x.numel() == 0
    except RuntimeError:  # inside torch.func: no storage
        return False


def has_kernels(x: torch.Tensor) -> bool:
    """Whether the elements of ``x`` are on a device with kernels (:mod:`roundoff.formats.gpu`)."""
    return (
        x.is_cuda
        and type(x) in _PLAIN
        and not x.is_neg()
        and not x._is_zerotensor()  # noqa: SLF001  the only test there is
        and not is_compiling()
        and not is_virtual(x)
        and _compiles_for(x.device)
    )


@cache
def _compiles_for(device: torch.device) -> bool:
    """Whether Triton is installed, and the device is a GPU that the kernels are tested on: NVIDIA's, from Ampere on."""
    has_triton = find_spec("triton") is not None and torch.version.cuda is not None  # ROCm is untested.
    return has_triton and torch.cuda.get_device_capability(device) >= (8, 0)


def is_virtual(x: torch.Tensor) -> bool:
    """Whether ``x`` represents elements elsewhere: fake, inside a torch.func transform, or of a wrapper subclass."""
    return (
        type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # noqa: SLF001  no other test
        or torch._C._functorch.is_functorch_wrapped_tensor(x)  # noqa: SLF001
        or torch._is_functional_tensor(x)  # noqa: SLF001
    )


def materialized(x: torch.Tensor) -> torch.Tensor:
    """Returns ``x``, or a copy if ``x`` is only marked as negated, conjugated or all zeros, without such elements.

    Raises:
        FormatError: the storage was freed.
    """
    if x._is_zerotensor():  # noqa: SLF001  the only test there is
        return torch.zeros_like(x)
    if type(x) in _PLAIN and x.is_cpu and not is_virtual(x) and not x.data_ptr() and x.numel():
        raise FormatError(f"a tensor of shape {tuple(x.shape)} has no memory: its storage was freed")
    return x.resolve_conj().resolve_neg()


def is_traced() -> bool:
    """Whether a mode of PyTorch records operations, or runs them on fake tensors, instead of computing them."""
    return any(_get_dispatch_mode(key) is not None for key in _TRACING)


def unsimulated(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function: simulations around its calls neither round nor count its operations.

    Modes that trace a program still see these operations.
    """

    @wraps(function)
    def call_unsimulated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if is_compiling() or not _len_torch_dispatch_stack():
            return function(*args, **kwargs)
        # PyTorch keeps tracing modes in separate slots; only the other modes are popped.
        mode_count = _len_torch_dispatch_stack() - sum(_get_dispatch_mode(key) is not None for key in _TRACING)
        modes = [_pop_torch_dispatch_stack(None) for _ in range(mode_count)]
        try:
            return function(*args, **kwargs)
        finally:
            for mode in reversed(modes):
                _push_on_torch_dispatch_stack(mode)

    return call_unsimulated


def is_dense(x: torch.Tensor) -> bool:
    """Whether the elements of ``x`` fill one piece of memory without gaps or overlaps, in any order."""
    if x.is_contiguous():
        return True
    expected = 1  # Each stride is the product of the smaller axes' sizes; the stride of an axis of size 1 is arbitrary.
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def in_place_of(
    work: Callable[..., None], source: torch.Tensor, target: torch.Tensor, *rest: Any, in_order: bool
) -> None:
    """Calls ``work(source, target, *rest)``, on a row-major copy if loops cannot take the layout of the tensors.

    Args:
        work: takes two dense tensors with the same strides.
        source: any strides.
        target: any strides, the same shape; may be ``source``.
        rest: further arguments.
        in_order: whether elements must be in row-major order in memory: random bits depend on an element's position.
    """
    has_same_order = not in_order and source.stride() == target.stride() and is_dense(source)
    if has_same_order or (source.is_contiguous() and target.is_contiguous()):
        work(source, target, *rest)
    else:
        row_major = source.clone(memory_format=torch.contiguous_format)
        work(row_major, row_major, *rest)  # In place: one copy is enough.
        target.copy_(row_major)


def in_order_of_memory(x: torch.Tensor) -> torch.Tensor:
    """Returns the elements of a dense tensor as a vector, in the order of memory."""
    return x.view(-1) if x.is_contiguous() else x.as_strided((x.numel(),), (1,))


def along(x: torch.Tensor, axis: int) -> tuple[int, int]:
    """Returns (length, stride) of an axis of a dense tensor."""
    if x.dim() == 0:
        return 1, 1
    length = x.shape[axis]
    if x.is_contiguous():
        return length, math.prod(x.shape[axis + 1 :])
    return length, x.stride(axis) if length > 1 else 1  # The stride of a single element is arbitrary.
