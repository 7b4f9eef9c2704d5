"""Operators whose arguments are functions (``torch.cond``, ``flex_attention``): what they do, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator

from ...formats import FormatError

# Those whose plain implementation is made of operations and calls of the functions.
_PLAIN = (
    "associative_scan", "flex_attention", "flex_attention_backward", "invoke_subgraph", "map_impl", "while_loop",
    "while_loop_stack_output",
)  # fmt: skip


def steps(operation: HigherOrderOperator) -> Callable[..., Any]:
    """A function that does what ``operation`` does by operations that a mode sees, those of its functions among them.

    Raises:
        FormatError: there is none.
    """
    name = str(operation)
    if name == "cond":
        return _cond
    if name == "scan":
        return _scan
    kernel = operation.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if name not in _PLAIN or not callable(kernel):
        raise FormatError(
            f"{name} calls functions that a simulation does not see, and cannot be simulated; leave it out of the"
            " simulation, or run what it does without it"
        )
    return kernel


def _cond(
    condition: torch.Tensor | bool, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    return (if_true if condition else if_false)(*operands)


def _scan(combine: Callable[..., Any], start: Sequence[Any], values: Sequence[Any], others: Sequence[Any]) -> Any:
    from torch._higher_order_ops.scan import generic_scan  # noqa: PLC0415  who calls scan has imported it

    return generic_scan(combine, start, values, additional_inputs=others)  # type: ignore[no-untyped-call]
