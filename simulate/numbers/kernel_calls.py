"""Kernels that take Python numbers, called from a program with numbers that differ in every call.

The CUDA source does not determine how a kernel multiplies by a number and adds, so the kernel itself is called. Its
numbers are tensors on the CPU, which can be read without waiting for the GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map


def call_kernel(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], number_of: Callable[[Any], torch.Tensor | None]
) -> Any:
    """Represents, in a traced graph, the result of an ATen operation, as new tensors.

    Args:
        func: the operation; an in-place one is replaced by its variant that returns new tensors.
        args: its arguments.
        kwargs: its arguments by name.
        number_of: returns the tensor that represents an argument, if that is such a number.
    """
    tensors: list[torch.Tensor] = []
    numbers: list[torch.Tensor] = []

    def describe(x: Any) -> Any:
        number = number_of(x)
        if number is not None:
            numbers.append(number)
            return {"number": len(numbers) - 1}
        if isinstance(x, torch.Tensor):
            tensors.append(x)
            return {"tensor": len(tensors) - 1}
        return x

    # An operator takes no nested arguments: JSON describes the call, with places instead of tensors and numbers.
    name = func.overloadpacket.__name__.removesuffix("_")
    text = json.dumps([name, func._overloadname, *tree_map(describe, (list(args), dict(kwargs)))])  # noqa: SLF001
    results = torch.ops.roundoff.kernel(text, tensors, numbers)
    return list(results) if name.startswith("_foreach_") else results[0]


@torch.library.custom_op("roundoff::kernel", mutates_args=())
def kernel(call: str, tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs an operation of ATen, and returns its results.

    Args:
        call: its name, its overload and its arguments, as JSON; tensors and numbers by their places.
        tensors: the first of them.
        numbers: the others, float64, on the CPU.
    """
    return _run_call(call, tensors, [number.item() for number in numbers])


@kernel.register_fake
def _kernel_fake(call: str, tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    return _run_call(call, tensors, [1.0] * len(numbers))  # Shapes do not depend on the numbers.


def _run_call(call: str, tensors: list[torch.Tensor], numbers: list[float]) -> list[torch.Tensor]:
    name, overload, args, kwargs = _parse(call)

    def fill(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        return tensors[x["tensor"]] if "tensor" in x else numbers[x["number"]]

    def is_place(x: Any) -> bool:
        return isinstance(x, dict) and x.keys() in ({"tensor"}, {"number"})

    args, kwargs = tree_map(fill, (args, kwargs), is_leaf=is_place)
    results = getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)
    return list(tree_flatten(results)[0])


def called(call: str) -> str:
    """Returns the name of the operation in a call of :func:`kernel`."""
    return _parse(call)[0]


@cache
def _parse(call: str) -> tuple[str, str, list[Any], dict[str, Any]]:
    name, overload, args, kwargs = json.loads(call)
    return name, overload, args, kwargs
