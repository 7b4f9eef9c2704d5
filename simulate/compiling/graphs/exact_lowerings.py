"""What PyTorch's compiler may write itself, and what must be called as PyTorch's kernels, for the same bits.

Inductor's loops differ from the kernels of the CPU in the last bit: where the kernels multiply and add at once
(additions with ``alpha``, ``addcmul``), call a vector library (exponentials, logarithms, square roots), or sum in
another order. The first are written here as the kernels compute them; the others are called.
``tests/simulate/compiling/test_step_operators.py`` compares every operation that is left to inductor with its kernel.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch._inductor import ir, lowering
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.loop_body import LoopBody
from torch._inductor.virtualized import ops

from ....formats.compiling.inductor import vectorised_bitcasts
from ...aten.tables import COMPILED_EXACTLY, STRUCTURAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.fx import GraphModule

_aten = torch.ops.aten


@cache
def structural_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions that change no bit."""
    table = select_decomp_table()
    chosen = {
        op: decomposition
        for op, decomposition in table.items()
        if op.namespace == "aten" and getattr(op, "overloadpacket", op).__name__ in STRUCTURAL
    }
    return {**chosen, **_in_other_words()}


def _in_other_words() -> dict[Any, Callable[..., Any]]:
    """Squares as products, and the foreach operations as one for each tensor, as their kernels on the CPU have it."""

    def each(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(tensors: list[Any], *rest: Any, **options: Any) -> list[Any]:
            rows = zip(tensors, *(other for other in rest if isinstance(other, (list, tuple))), strict=True)
            shared = [other for other in rest if not isinstance(other, (list, tuple))]
            return [operation(*row, *shared, **options) for row in rows]

        return run

    def with_value(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(tensors: list[Any], first: list[Any], second: list[Any], value: Any = 1) -> list[Any]:
            values = value if isinstance(value, (list, tuple)) else [value] * len(tensors)
            rows = zip(tensors, first, second, values, strict=True)
            return [operation(x, a, b, value=v) for x, a, b, v in rows]

        return run

    foreach: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = [
        ("mul", each(torch.mul), ("Scalar", "Tensor", "List", "ScalarList")),
        ("add", each(torch.add), ("Scalar", "Tensor", "List")),
        ("div", each(torch.div), ("Scalar", "List")),
        ("sqrt", each(torch.sqrt), ("default",)),
        ("copy", each(lambda _, y: y.clone()), ("default",)),
        ("addcmul", with_value(torch.addcmul), ("Scalar", "ScalarList")),
        ("addcdiv", with_value(torch.addcdiv), ("Scalar", "ScalarList")),
    ]
    squares = {_aten.pow.Tensor_Scalar: lambda x, exponent: x * x if exponent == 2 else NotImplemented}
    return squares | {
        getattr(getattr(_aten, f"_foreach_{name}"), overload): run
        for name, run, overloads in foreach
        for overload in overloads
    }


@contextmanager
def exact_lowerings(graph: GraphModule) -> Iterator[None]:
    """While inductor compiles ``graph``, it writes only what gives the bits of the kernels, and calls the rest."""
    changed: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
            continue
        name = node.target.overloadpacket.__name__
        if node.target is torch.ops.roundoff.sqrt.default:
            changed[node.target] = _pointwise(lambda _, x: ops.sqrt(x))  # the instruction, which rounds correctly
        elif name in _AS_KERNELS:
            changed[node.target] = _AS_KERNELS[name](lowering.lowerings.get(node.target))
        elif node.target not in lowering.lowerings or (name not in COMPILED_EXACTLY and _is_floating(node)):
            call = lowering.fallback_handler(node.target, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
            changed[node.target] = call
    with patch.dict(lowering.lowerings, changed), vectorised_bitcasts(), _fusion_with_missing_reads():
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


def _is_floating(node: Any) -> bool:
    values = node.meta["val"]
    values = values if isinstance(values, (tuple, list)) else [values]
    return any(isinstance(x, torch.Tensor) and x.dtype.is_floating_point for x in values)


def _pointwise(body: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering for tensors that broadcast, and keyword numbers."""

    def lower(*operands: Any, **numbers: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, ir.IRNode)]
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


def _number(value: float, dtype: torch.dtype) -> Any:
    """The number as the kernels take it: rounded to the carrier."""
    return ops.constant(torch.tensor(value, dtype=dtype).item(), dtype)


def _add_scaled(sign: int) -> Callable[[Any], Any]:
    """``add`` and ``sub``: with ``alpha``, one fused multiply-add."""

    def lowering_of(usual: Any) -> Any:
        fused = _pointwise(lambda dtype, a, b, alpha: ops.fma(b, _number(sign * alpha, dtype), a))

        def lower(a: Any, b: Any, *, alpha: Any = 1) -> Any:
            floating = isinstance(a, ir.IRNode) and a.get_dtype().is_floating_point
            if alpha == 1 or not floating or not isinstance(b, ir.IRNode):
                return usual(a, b, alpha=alpha)
            return fused(a, b, alpha=alpha)

        return lower

    return lowering_of


def _scaled(combine: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """``addcmul`` and ``addcdiv``: the first factor is scaled before anything else."""

    def body(dtype: torch.dtype, a: Any, b: Any, c: Any, value: float = 1) -> Any:
        return combine(a, b if value == 1 else ops.mul(b, _number(value, dtype)), c)

    return lambda _: _pointwise(body)


def _tanh_backward(_: Any) -> Any:
    return _pointwise(lambda dtype, g, y: ops.mul(g, ops.fma(ops.neg(y), y, _number(1.0, dtype))))


_AS_KERNELS: dict[str, Callable[[Any], Any]] = {
    "add": _add_scaled(1),
    "sub": _add_scaled(-1),
    "addcmul": _scaled(lambda a, b, c: ops.fma(b, c, a)),
    "addcdiv": _scaled(lambda a, b, c: ops.add(a, ops.truediv(b, c))),
    "tanh_backward": _tanh_backward,
}
"""Operations written as the CPU's kernels compute them; each is given the usual lowering."""
