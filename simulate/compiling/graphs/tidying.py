"""Simplify the graph of a step before compilation: remove copies, repetitions and roundings without effect."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.node import map_arg

from ...aten.moves import is_move, is_zero
from ...aten.tables import SIGNED, VIEWS

_aten = torch.ops.aten


def erase_profiling(graph: GraphModule) -> None:
    """Erases the profiler's marks around the steps of optimizers."""
    for node in reversed(graph.graph.nodes):
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()


def tidied(graph: GraphModule) -> GraphModule:
    """Returns the graph without nodes that compute nothing, or the same as another."""
    # Removes copies over the whole of a tensor like the one copied, as left by in-place operations
    for node in list(graph.graph.nodes):
        if node.target in (_aten.copy.default, _aten.detach.default, _aten.alias.default, _aten.clone.default):
            source = node.args[1] if node.target is _aten.copy.default else node.args[0]
            a, b = node.meta["val"], source.meta["val"]
            if bool(a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph = _make_graph_module(graph, fx_graph_cse(graph.graph))
    # Removes the rounding of values that were only moved or selected from values already rounded the same way
    rounding: dict[Node, Any] = {}  # the rounding of a node's values
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.roundoff.round_float.default:
            source, *options = node.args
            if rounding.get(source) in (tuple(options), _ANY):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
            else:
                rounding[node] = tuple(options)
        elif node.target is _aten.full.default and is_zero(node.args[1]):
            rounding[node] = _ANY
        elif node.op == "call_function" and _passes_on(node):
            values = {source: source.meta["val"] for source in node.all_input_nodes}
            floating = [x for x, v in values.items() if isinstance(v, (tuple, list)) or v.dtype.is_floating_point]
            ways = {rounding.get(source) for source in floating} - {_ANY}
            # Zero can become -0, which not all formats that are rounded bit by bit have.
            if len(ways) == 1 and (way := ways.pop()) is not None and (way[-1] or _target_name(node) not in SIGNED):
                rounding[node] = way
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


_ANY = "any"
"""The rounding of zeros: they are values of every float format."""


def _target_name(node: Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.target).__name__)  # type: ignore[union-attr]


def _passes_on(node: Node) -> bool:
    """Whether the values of its results are among the values of its operands, or zeros."""
    name = _target_name(node)
    if name in VIEWS:
        return not (name == "view" and isinstance(node.args[1], torch.dtype))
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001  the only name there is
        return False
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return is_move(node.target, args, kwargs)
