"""Communication between processes: the arguments written, the operations that compute, and waiting for results."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
_NAMESPACES = ("c10d", *_FUNCTIONAL)
_SENDING = ("send", "barrier", "monitored_barrier_")
_REDUCING = frozenset(
    [
        "allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
    ]
)  # fmt: skip


def communicates(operation: OpOverload) -> bool:
    """Whether it sends numbers to other processes, or gets them from there."""
    return operation.namespace in _NAMESPACES


def brings_results(operation: OpOverload) -> bool:
    """Whether a communicating operation leaves newly computed numbers that can be looked at.

    Reductions do (:func:`settle` waits for them); functional ones where the program waits for them. What others only
    send has been rounded by them.
    """
    name = operation.overloadpacket.__name__
    return name == "wait_tensor" if operation.namespace in _FUNCTIONAL else name in _REDUCING


def overwrites(operation: OpOverload) -> bool:
    """Whether it writes into its first argument, tensors that numbers of processes are put into.

    Operations of ``c10d`` do, except for operations that only send; their schemas do not say so.
    Functional ones make new tensors.
    """
    return operation.namespace == "c10d" and operation.overloadpacket.__name__ not in _SENDING


def settle(result: Any) -> None:
    """Waits for an operation of ``c10d`` that has begun; ``result`` holds its work."""
    for value in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(value, torch.ScriptObject) and str(value._type()).endswith("c10d.Work"):  # noqa: SLF001  the only access
            work = torch.distributed.Work.unbox(value)
            if work is not None:
                work.wait()
