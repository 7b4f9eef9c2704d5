"""Simplify the graph of a step before compilation: remove copies, repetitions and roundings without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.node import map_arg

from ...aten.moves import is_move, is_zero
from ...aten.tables import SIGNED, VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def erase_profiling(graph: GraphModule) -> None:
    """An optimizer's step tells the profiler where it begins and ends."""
    for node in reversed(graph.graph.nodes):
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()


def tidied(graph: GraphModule) -> GraphModule:
    """The graph without what computes nothing, or the same twice."""
    _forward_copies(graph)
    graph.graph.eliminate_dead_code()
    graph = _make_graph_module(graph, fx_graph_cse(graph.graph))
    _forward_exact_moves(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _forward_copies(graph: GraphModule) -> None:
    """Removes copies over the whole of a tensor like the one copied, as left by in-place operations."""
    for node in list(graph.graph.nodes):
        if node.target in (_aten.copy.default, _aten.detach.default, _aten.alias.default, _aten.clone.default):
            source = node.args[1] if node.target is _aten.copy.default else node.args[0]
            if _alike(node, source):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)


def _alike(node: Node, other: Node) -> bool:
    a, b = node.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype)


_ANY = "any"
"""The rounding of zeros: they are values of every float format."""


def _forward_exact_moves(graph: GraphModule) -> None:
    """Removes the rounding of values that were only moved or selected from values already rounded the same way."""
    rounding: dict[Node, Any] = {}  # how the numbers of a node were rounded
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.roundoff.round_float.default:
            source, *how = node.args
            if rounding.get(source) in (tuple(how), _ANY):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
            else:
                rounding[node] = tuple(how)
        elif node.target is _aten.full.default and is_zero(node.args[1]):
            rounding[node] = _ANY
        elif node.op == "call_function" and _passes_on(node):
            ways = {rounding.get(source) for source in _floating_inputs(node)}
            ways.discard(_ANY)
            if len(ways) == 1 and (way := ways.pop()) is not None and (way[-1] or not _changes_signs(node)):
                rounding[node] = way


def _floating_inputs(node: Node) -> Iterator[Node]:
    for source in node.all_input_nodes:
        value = source.meta["val"]
        if isinstance(value, (tuple, list)) or value.dtype.is_floating_point:
            yield source


def _name(node: Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.target).__name__)  # type: ignore[union-attr]


def _passes_on(node: Node) -> bool:
    """Whether the values of its results are among the values of its operands, or zeros."""
    name = _name(node)
    if name in VIEWS:
        return not (name == "view" and isinstance(node.args[1], torch.dtype))
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001  the only name there is
        return False
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return is_move(node.target, args, kwargs)


def _changes_signs(node: Node) -> bool:
    """Whether zero can become -0, which not all formats that are rounded bit by bit have."""
    return _name(node) in SIGNED
