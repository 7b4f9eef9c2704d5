"""Lowerings that make inductor write only loops with the bits of PyTorch's kernels, and call kernels otherwise.

Inductor's loops differ from the kernels in the last bit: where the kernels multiply and add at once (additions with
``alpha``, ``addcmul``), call a library (exponentials, logarithms), or sum in another order. :mod:`.written_operations`
lists the written and the called operations. Operations of the first kind are written here on the CPU as its kernels
compute them, and also called on CUDA.

A called kernel gets its operands with the memory layout of the eager step: the same strides, and views at the same
place of their base. For a kernel sums in the order of memory, and the layout decides whether it computes a function
several elements at a time or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import config, ir, lowering
from torch._inductor import graph as inductor_graph
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.loop_body import LoopBody
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V, ops
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ...aten.schemas import schema_of
from .written_operations import STRUCTURAL, STRUCTURAL_ON_CUDA, is_written

_aten = torch.ops.aten


@cache
def structural_decompositions(device: str) -> dict[Any, Callable[..., Any]]:
    """Decompositions that change no bit, on a type of device."""
    table = select_decomp_table()
    names = STRUCTURAL_ON_CUDA if device == "cuda" else STRUCTURAL
    chosen = {
        op: decomposition
        for op, decomposition in table.items()
        if op.namespace == "aten" and getattr(op, "overloadpacket", op).__name__ in names
    }
    return {**chosen, **_equivalents(device)}


def _equivalents(device: str) -> dict[Any, Callable[..., Any]]:
    """Replacements with the same bits for squares, conjugates, and operations on lists: one for each tensor.

    On the CPU kernels of lists are loops over the tensors. On CUDA they are separate kernels, and only the operations
    that are rounded once are known to have the same bits.
    """

    def for_each(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(tensors: list[Any], *rest: Any, **options: Any) -> list[Any]:
            # Lists have an operand for every tensor; all others are shared.
            rows = zip(tensors, *(other for other in rest if isinstance(other, (list, tuple))), strict=True)
            shared = [other for other in rest if not isinstance(other, (list, tuple))]
            return [operation(*row, *shared, **options) for row in rows]

        return run

    def for_each_value(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(tensors: list[Any], first: list[Any], second: list[Any], value: Any = 1) -> list[Any]:
            values = value if isinstance(value, (list, tuple)) else [value] * len(tensors)
            rows = zip(tensors, first, second, values, strict=True)
            return [operation(x, a, b, value=v) for x, a, b, v in rows]

        return run

    foreach: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = [
        ("mul", for_each(torch.mul), ("Scalar", "Tensor", "List", "ScalarList")),
        ("add", for_each(torch.add), ("Scalar", "Tensor", "List")),
        ("div", for_each(torch.div), ("Scalar", "List")),
        ("sqrt", for_each(torch.sqrt), ("default",)),
        ("copy", for_each(lambda _, y: y.clone()), ("default",)),
        ("addcmul", for_each_value(torch.addcmul), ("Scalar", "ScalarList")),
        ("addcdiv", for_each_value(torch.addcdiv), ("Scalar", "ScalarList")),
    ]
    of_tensors: dict[Any, Callable[..., Any]] = {
        _aten.pow.Tensor_Scalar: lambda x, exponent: (
            x * x if exponent == 2 and x.dtype != torch.bool else NotImplemented
        ),
        _aten._conj.default: torch.conj_physical,  # noqa: SLF001  inductor fails where the parts of a view are looked at
    }
    return of_tensors | {
        getattr(getattr(_aten, f"_foreach_{name}"), overload): _unscaled(run) if device == "cuda" else run
        for name, run, overloads in foreach
        for overload in overloads
        if device != "cuda" or (name, overload) in _ROUNDED_ONCE
    }


# CUDA's kernels of lists that round every element once; ("div", "Scalar"), for one, multiplies by the reciprocal.
_ROUNDED_ONCE = {
    ("mul", "Scalar"), ("mul", "Tensor"), ("mul", "List"), ("mul", "ScalarList"), ("add", "Scalar"), ("add", "List"),
    ("div", "List"), ("sqrt", "default"), ("copy", "default"),
}  # fmt: skip


def _unscaled(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: run(*args) if options.get("alpha", 1) == 1 else NotImplemented


@contextmanager
def exact_lowerings(graph: GraphModule) -> Iterator[None]:
    """While inductor compiles ``graph``, it writes only what gives the bits of the kernels, and calls the rest."""
    # Inductor looks lowerings up by operation, so the decision between loop and kernel is made for each node in them.
    calls: dict[Any, list[Node]] = {}
    for node in graph.graph.nodes:
        if _is_operation(node):
            calls.setdefault(node.target, []).append(node)
    read = _read_by_kernels([node for nodes in calls.values() for node in nodes])
    changed = {target: _lowering(target, any(map(is_written, nodes)), read) for target, nodes in calls.items()}
    with (
        patch.dict(lowering.lowerings, changed),
        patch.object(inductor_graph, "fallback_handler", _called),  # for complex numbers
        patch.object(lowering, "check", _require, create=True),  # PyTorch warns of its own, which is deprecated
        _fusion_with_missing_reads(),
        _reads_behind_writes(),
        _one_rounding_each(),
    ):
        yield


def _require(holds: bool, message: Callable[[], str], error: type[Exception] = RuntimeError) -> None:
    if not holds:
        raise error(message())


def _is_operation(node: Node) -> bool:
    return node.op == "call_function" and hasattr(node.target, "overloadpacket")


def _read_by_kernels(operations: list[Node]) -> set[Node]:
    """Returns the nodes in memory that a called kernel reads, directly or through a view."""
    waiting = [x for node in operations if not is_written(node) for x in node.all_input_nodes]
    read: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in read:
            read.add(node)
            waiting += node.all_input_nodes if is_view(node) else ()
    return read


def is_view(node: Node) -> bool:
    """Whether an operation gives memory of its operand, or one of several results."""
    target: Any = node.target
    if not _is_operation(node):
        return node.op == "call_function"  # one of several results
    return any(value.alias_info is not None for value in schema_of(target).returns)


def _lowering(target: Any, some_are_written: bool, read: set[Node]) -> Any:
    """Returns inductor's lowering of an operation: it generates code where allowed, and calls the kernel otherwise."""
    kernel = _called(target)
    written = _written(target)
    if written is None or not some_are_written:
        return kernel

    def lower(*args: Any, **options: Any) -> Any:
        node = V.graph.current_node
        if not is_written(node):
            return kernel(*args, **options)
        result = written(*args, **options)
        if node not in read or is_view(node) or not isinstance(result, ir.TensorBox):
            return result
        result.realize()  # in memory, with the strides of the trace, since a kernel reads it
        return lowering.constrain_to_fake_tensor(result, node.meta["val"])  # type: ignore[no-untyped-call]

    return lower


def _called(target: Any, add_to_fallback_set: bool = False) -> Any:  # noqa: ARG001  as inductor's own has it
    """Calls the kernel of an operation, with operands in their traced memory layout."""
    kernel = lowering.fallback_handler(target, add_to_fallback_set=False)  # type: ignore[no-untyped-call]

    def lower(*args: Any, **options: Any) -> Any:
        node = V.graph.current_node
        if is_view(node) and any(user.target is _aten.copy_.default and user.args[0] is node for user in node.users):
            # Inductor's own passes write scatters in this way. They do not see the memory behind a kernel's view.
            raise RuntimeError(f"{node.target}: a view that a kernel gives is written to")
        traced = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
        args, options = lowering.constrain_to_fake_tensors(args, options, *traced)  # type: ignore[no-untyped-call]
        return kernel(*args, **options)

    lower._is_fallback_handler = True  # type: ignore[attr-defined]  # noqa: SLF001  inductor's own mark
    return lower


def _written(target: Any) -> Any:
    """Returns inductor's own lowering of an operation; None if it lacks one."""
    usual: Any = lowering.lowerings.get(target)
    if target is torch.ops.roundoff.sqrt.default:
        return _pointwise(lambda _, x: ops.sqrt(x))  # the instruction, which rounds correctly
    name = target.overloadpacket.__name__
    as_kernels = {device: table[name](usual) for device, table in _AS_KERNELS.items() if name in table}
    if not as_kernels:
        return usual
    return lambda *args, **options: as_kernels.get(_device(args), usual)(*args, **options)


def _device(operands: Iterable[Any]) -> str:
    """The type of device that an operation works on."""
    types = {x.get_device_or_error().type for x in operands if isinstance(x, ir.IRNode)}
    return "cuda" if "cuda" in types else "cpu"


@contextmanager
def _one_rounding_each() -> Iterator[None]:
    """Inductor's Triton programs round every operation once, to nearest, and keep subnormals, as nvcc's do by default.

    By ``emulate_precision_casts`` it would also leave ``fma`` out, but take another library of functions.
    """
    before: Any = TritonKernel.triton_meta_common

    def without_contraction(_: type[TritonKernel]) -> dict[str, Any]:
        return {**before(), "enable_fp_fusion": False}

    settings = {"eager_numerics.division_rounding": True, "eager_numerics.disable_ftz": True, "use_fast_math": False}
    with patch.object(TritonKernel, "triton_meta_common", classmethod(without_contraction)), config.patch(settings):
        yield


@contextmanager
def _fusion_with_missing_reads() -> Iterator[None]:
    """Inductor asks of loops that it fuses where they read a buffer, and fails if one only waits for it."""
    before: Any = LoopBody.get_read_expr

    def get_read_expr(body: LoopBody, buffer: str) -> Any:
        try:
            return before(body, buffer)
        except KeyError:
            return None  # no place, so not the one that was hoped for

    with patch.object(LoopBody, "get_read_expr", get_read_expr):
        yield


@contextmanager
def _reads_behind_writes() -> Iterator[None]:
    """Loops that inductor splits or merges still wait for writes to the memory that they read.

    Inductor has a name for memory as each operation leaves it. It finds the reads of such loops once more, and then
    takes the name of the memory before the write, so that they may be fused with what runs before it.
    """
    before: Any = SchedulerNode.recompute_size_and_body

    def recompute_size_and_body(node: SchedulerNode, *args: Any, **options: Any) -> None:
        before(node, *args, **options)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with patch.object(SchedulerNode, "recompute_size_and_body", recompute_size_and_body):
        yield


def _pointwise(body: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering for tensors that broadcast, and keyword numbers."""

    def lower(*operands: Any, **numbers: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, ir.IRNode)]
        # A tensor without axes does not decide the dtype, unless there are only such.
        dtype = max((x.get_dtype() for x in tensors if x.get_size()), key=lambda t: t.itemsize, default=None)
        dtype = dtype or tensors[0].get_dtype()
        converted = [lowering.to_dtype(x, dtype) for x in operands]
        expanded = lowering.broadcast_tensors(*converted)
        loaders = [x.make_loader() for x in expanded]
        return ir.Pointwise.create(
            device=expanded[0].get_device(),
            dtype=dtype,
            inner_fn=lambda index: body(dtype, *(load(index) for load in loaders), **numbers),
            ranges=expanded[0].get_size(),
        )

    return lower


def _in_carrier(value: float, dtype: torch.dtype) -> Any:
    """The number as the kernels take it: rounded to the carrier."""
    return ops.constant(torch.tensor(value, dtype=dtype).item(), dtype)


def _add_scaled(sign: int) -> Callable[[Any], Any]:
    """``add`` and ``sub``: with ``alpha``, one fused multiply-add."""

    def lowering_of(usual: Any) -> Any:
        fused = _pointwise(lambda dtype, a, b, alpha: ops.fma(b, _in_carrier(sign * alpha, dtype), a))

        def lower(a: Any, b: Any, *, alpha: Any = 1) -> Any:
            floating = isinstance(a, ir.IRNode) and a.get_dtype().is_floating_point
            if alpha == 1 or not floating or not isinstance(b, ir.IRNode):
                return usual(a, b, alpha=alpha)
            return fused(a, b, alpha=alpha)

        return lower

    return lowering_of


def _scaling_first(combine: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """``addcmul`` and ``addcdiv``: the first factor is scaled before anything else."""

    def body(dtype: torch.dtype, a: Any, b: Any, c: Any, value: float = 1) -> Any:
        return combine(a, b if value == 1 else ops.mul(b, _in_carrier(value, dtype)), c)

    return lambda _: _pointwise(body)


def _tanh_backward(_: Any) -> Any:
    return _pointwise(lambda dtype, g, y: ops.mul(g, ops.fma(ops.neg(y), y, _in_carrier(1.0, dtype))))


def _bounded(beyond: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """``clamp_min`` and ``clamp_max`` by a number."""

    def lower(x: Any, bound: Any) -> Any:
        def body(dtype: torch.dtype, x: Any) -> Any:
            limit = _in_carrier(bound, dtype)
            return ops.where(beyond(x, limit), limit, x)

        return _pointwise(body)(x)

    return lambda usual: lambda x, bound: lower(x, bound) if x.get_dtype().is_floating_point else usual(x, bound)


def _negated(_: Any) -> Any:
    return _pointwise(lambda dtype, x: ops.mul(x, _in_carrier(-1.0, dtype)) if dtype.is_floating_point else ops.neg(x))


_AS_KERNELS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "cpu": {
        "add": _add_scaled(1),
        "sub": _add_scaled(-1),
        "addcmul": _scaling_first(lambda a, b, c: ops.fma(b, c, a)),
        "addcdiv": _scaling_first(lambda a, b, c: ops.add(a, ops.truediv(b, c))),
        "tanh_backward": _tanh_backward,
        "clamp_min": _bounded(ops.lt),  # of equal zeros, as of NaN, the number itself
        "clamp_max": _bounded(ops.gt),
    },
    "cuda": {"neg": _negated},  # Triton subtracts from 0, which makes +0 of +0
}
"""Operations written as the kernels of a device compute them; each is given the usual lowering."""
