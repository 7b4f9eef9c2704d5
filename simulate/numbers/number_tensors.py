"""Operations of a traced step on numbers that change in every call, as operations on tensors.

They give the bits of the kernels that take Python numbers: like those, they round a number to the type of the tensors,
and multiply and add by one fused operation where ``alpha`` or ``value`` scales a term. On
CUDA the kernels themselves are called (:mod:`.kernel_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..aten.schemas import written_arguments
from ..aten.tables import plain_name
from .host_numbers import NumberError, NumberRecord, TracedNumber, number_of
from .kernel_calls import call_kernel

_aten = torch.ops.aten


@torch.library.custom_op("roundoff::number", mutates_args=())
def number_operator(place: int) -> torch.Tensor:
    """Represents an element of the program's tensor of numbers in a traced graph."""
    raise AssertionError(f"the number {place} of a traced step is no input of its program")


@number_operator.register_fake
def _number_fake(place: int) -> torch.Tensor:  # noqa: ARG001
    return torch.empty((), dtype=torch.float64)  # Like Python's floats.


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(alpha, torch.Tensor):
        return torch.add(x, y, alpha=alpha)
    scaled = y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype, device=x.device)
    return _aten.addcmul.default(x, scaled, alpha)  # Rounded once, like a kernel's fused multiply-add.


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(alpha, torch.Tensor):
        return torch.sub(x, y, alpha=alpha)
    return _add(x, y, alpha=_aten.neg.default(alpha))  # Exact.


def _addcmul(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    if not isinstance(value, torch.Tensor):
        return torch.addcmul(x, a, b, value=value)
    return _aten.addcmul.default(x, _aten.mul.Tensor(a, value), b)  # The kernel also scales the first factor.


def _addcdiv(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    if not isinstance(value, torch.Tensor):
        return torch.addcdiv(x, a, b, value=value)
    return _aten.add.Tensor(x, _aten.div.Tensor(_aten.mul.Tensor(a, value), b))


def _fill(x: Any, value: Any) -> Any:
    return _aten.clone.default(_aten.expand.default(value, x.shape))


_TENSOR_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "mul": torch.mul, "div": torch.div, "addcmul": _addcmul,
    "addcdiv": _addcdiv, "lerp": torch.lerp, "fill": _fill,
}  # fmt: skip
"""The results of operations on floating-point tensors, with tensors in place of numbers."""


def tensor_of(number: TracedNumber, dtype: torch.dtype) -> torch.Tensor:
    """Returns the number as a tensor without axes, rounded to a type as kernels do."""
    exact: torch.Tensor = torch.ops.roundoff.number(number.record.place_of(number))
    return exact.to(dtype)


@final
class NumbersAsTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations that take a :class:`TracedNumber` on tensors; below the simulation, which rounds results."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs one operation; on lists of tensors, one by one, as the kernels of the CPU do."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        compute = _TENSOR_OPERATIONS.get(plain_name(name))
        if name.startswith("_fused_") and name.endswith("_"):
            return _fused(func, args, kwargs)
        on_lists = name.startswith("_foreach_")
        by_kernel = any(isinstance(x, torch.Tensor) and x.is_cuda for x in tree_leaves(args[:1]))
        if not any(isinstance(x, torch.SymFloat) for x in tree_leaves((args, kwargs))):
            if not on_lists or compute is None or by_kernel:
                return func(*args, **kwargs)
        elif compute is None or "out" in kwargs:
            raise NumberError(f"a number that the step reads from a tensor goes into {name}, which no program can take")
        in_place = name.endswith("_")
        if by_kernel:
            return _by_kernel(func, args, kwargs, in_place=in_place)
        if not on_lists:
            return _run_on_tensor(compute, args[0], args[1:], kwargs, in_place=in_place)
        # An argument that is not a list belongs to every tensor.
        columns = [x if isinstance(x, (list, tuple)) else [x] * len(args[0]) for x in args]
        results = [_run_on_tensor(compute, x, row, kwargs, in_place=in_place) for x, *row in zip(*columns, strict=True)]
        return None if in_place else results


def _by_kernel(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, in_place: bool) -> Any:
    """Runs an operation on CUDA by the kernel that takes such numbers."""

    def tensor(x: Any) -> torch.Tensor | None:
        number = number_of(x)
        return None if number is None else tensor_of(number, torch.float64)

    results = call_kernel(func, args, kwargs, tensor)
    if not in_place:
        return results
    if not isinstance(results, list):
        return args[0].copy_(results)
    for x, result in zip(args[0], results, strict=True):
        x.copy_(result)
    return None


def _fused(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Runs a fused optimizer out of place and copies its results: functionalization fails on an empty list in place."""
    pure: Any = getattr(_aten, func.overloadpacket.__name__.removesuffix("_"))
    written = [list(args[i]) for i, _ in written_arguments(func)]
    for old, new in zip(written, getattr(pure, func._overloadname)(*args, **kwargs), strict=True):  # noqa: SLF001
        for x, y in zip(old, new, strict=True):
            x.copy_(y)


def _run_on_tensor(
    compute: Callable[..., Any], x: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], *, in_place: bool
) -> torch.Tensor:
    """Runs one operation on one tensor, and writes the result to it if ``in_place``."""
    if any(isinstance(y, torch.SymFloat) for y in (*args, *kwargs.values())):
        dtypes = {y.dtype for y in (x, *args) if isinstance(y, torch.Tensor)}
        if len(dtypes) > 1 or not x.is_floating_point():
            raise NumberError("a number that the step reads from a tensor meets tensors of other types than one float")

    def as_tensor(value: Any) -> Any:
        number = number_of(value)
        return value if number is None else tensor_of(number, x.dtype)

    result: torch.Tensor = compute(x, *map(as_tensor, args), **{key: as_tensor(v) for key, v in kwargs.items()})
    return x.copy_(result) if in_place else result


def numbers_as_input(graph: GraphModule, record: NumberRecord) -> list[torch.Tensor]:
    """Adds an input for the numbers of a record, after all others; returns its stand-in, or nothing without numbers."""
    if not record.count:
        return []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]  # Numbers follow it.
    with graph.graph.inserting_after(last):
        numbers = graph.graph.placeholder("numbers")
    numbers.meta["val"] = torch.empty(record.count, dtype=torch.float64)  # For the compiler, which asks for shapes.
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.roundoff.number.default:
            with graph.graph.inserting_before(node):
                element = graph.graph.call_function(_aten.select.int, (numbers, 0, node.args[0]))
            element.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(element)
            graph.graph.erase_node(node)
    graph.recompile()
    return [numbers.meta["val"]]
