"""Operations with their own kernels, and operations that PyTorch composes of others or of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_leaves

from ...formats import FormatError


def is_composite(operation: OpOverload) -> bool:
    """Whether PyTorch has a formula for the operation, which autograd sees instead of it."""
    return bool(has_kernel(_full_name(operation), "CompositeImplicitAutograd"))


def _full_name(operation: OpOverload) -> str:
    return str(operation.name())  # type: ignore[no-untyped-call]


def formula(operation: OpOverload) -> Callable[..., Any] | None:
    """PyTorch's formula of ``operation`` in other operations, which autograd sees; None if it has a kernel.

    Some have a formula for any tensor and kernels for some (the derivatives of SiLU and Mish on the CPU, products of
    nested tensors): the formula then gives ``NotImplemented`` where there is a kernel.
    """
    if operation.namespace == "prim":  # Queries of a tensor's properties while a program is traced.
        return None
    return _formula_of_aten(operation) if operation.namespace == "aten" else _formula(operation)


def _formula(operation: OpOverload) -> Callable[..., Any] | None:
    name = _full_name(operation)
    if not is_composite(operation) or any(has_kernel(name, key) for key in FOR_ANY_BACKEND):
        return None
    backends = frozenset(key for key in _BACKENDS if has_kernel(name, key))
    if not backends:
        return operation.decompose

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensors = (x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        return NotImplemented if any(_backend(x) in backends for x in tensors) else operation.decompose(*args, **kwargs)

    return decomposed


_formula_of_aten = cache(_formula)  # a program's own operations may be given kernels at any time


FOR_ANY_BACKEND = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_BACKENDS = (
    "CPU", "CUDA", "MPS", "XPU", "HPU", "MTIA", "PrivateUse1", "Meta",
    "NestedTensorCPU", "NestedTensorCUDA", "SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA",
)  # fmt: skip


def _backend(x: torch.Tensor) -> str:
    """The name of the dispatch key for kernels that compute with ``x``."""
    layouts = {torch.strided: "", torch.sparse_coo: "Sparse"}
    layout = "NestedTensor" if x.is_nested else layouts.get(x.layout, "SparseCsr")
    device = x.device.type
    return layout + {"meta": "Meta", "privateuseone": "PrivateUse1"}.get(device, device.upper())


# Operations with a plain implementation: operations, and calls of the functions.
_PLAIN = (
    "associative_scan", "flex_attention", "flex_attention_backward", "invoke_subgraph", "map_impl", "while_loop",
    "while_loop_stack_output",
)  # fmt: skip


def steps(operation: HigherOrderOperator) -> Callable[..., Any]:
    """Returns an implementation of ``operation`` by operations that a mode sees, also inside its functions.

    Raises:
        FormatError: no such implementation exists.
    """
    name = str(operation)
    if name == "cond":
        return lambda condition, if_true, if_false, operands: (if_true if condition else if_false)(*operands)
    if name == "scan":
        return _scan
    kernel = operation.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if name not in _PLAIN or not callable(kernel):
        raise FormatError(
            f"{name} calls functions that a simulation does not see, and cannot be simulated; call it outside of the"
            " simulation, or compute the same with other operations"
        )
    return kernel


def _scan(combine: Callable[..., Any], start: Sequence[Any], values: Sequence[Any], others: Sequence[Any]) -> Any:
    from torch._higher_order_ops.scan import generic_scan  # noqa: PLC0415  who calls scan has imported it

    return generic_scan(combine, start, values, additional_inputs=others)  # type: ignore[no-untyped-call]
