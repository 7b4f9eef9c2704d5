"""Results of a graph have their own memory where the results of the eager step do.

A value computed twice is one node of a tidied graph, and a copy is the node that it copies. Where both are results,
they would share memory: a caller who writes to one would change the other one. And a copy of an input that the step
writes to afterwards would show the new values, be it a result or on its way to another input.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .exact_lowerings import is_view

_aten = torch.ops.aten


def separate(graph: GraphModule, memory: Sequence[Hashable], arguments: Collection[Hashable]) -> None:
    """Copies what shares memory with an input that is written to, and results that do so among each other.

    Results that also share memory eagerly are not copied.

    Args:
        graph: a tidied graph, which writes to inputs at its end.
        memory: for each result, its memory in eager mode.
        arguments: the memory of the step's arguments.
    """
    results: list[Any] = list(graph.graph.output_node().args[0])  # type: ignore[arg-type]
    sharing: dict[tuple[Node, Hashable], list[int]] = {}
    for i, (result, where) in enumerate(zip(results, memory, strict=True)):
        sharing.setdefault((chain_of_views(result)[0], where), []).append(i)
    owners: dict[Node, Hashable] = {}
    for (root, where), places in sharing.items():
        if where in arguments or (root.op == "call_function" and owners.setdefault(root, where) == where):
            continue
        chains = [chain_of_views(results[i]) for i in places]
        for i, copy in zip(places, _views_of_a_copy(graph.graph, chains), strict=True):
            results[i] = copy
    graph.graph.output_node().args = (tuple(results),)
    writes = _writes(graph.graph)
    written = {write.args[0] for write in writes}
    for write in writes:
        target, source = write.args
        chain = chain_of_views(source)  # type: ignore[arg-type]
        if chain[0] in written:
            write.args = (target, *_views_of_a_copy(graph.graph, [chain]))
    graph.recompile()


def _writes(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.target is _aten.copy_.default]


def chain_of_views(node: Node) -> list[Node]:
    """Returns a node and all views before it, from the first: the node with memory."""
    chain = [node]
    while is_view(chain[0]):
        source = chain[0].all_input_nodes[0]
        if chain[0].target is operator.getitem and not is_view(source):
            break  # one of several results, each with memory of its own
        chain.insert(0, source)
    return chain


def _views_of_a_copy(graph: Graph, chains: list[list[Node]]) -> list[Node]:
    """The last node of each chain, as a view of one copy of the chains' common part."""
    shared = 0  # the number of nodes that all chains begin with
    while all(len(chain) > shared and chain[shared] is chains[0][shared] for chain in chains):
        shared += 1
    # The last shared node with a copy that has the same layout: the copy is no larger than needed.
    first = next((i for i in range(shared - 1, 0, -1) if _without_gaps(chains[0][i])), 0)
    with graph.inserting_before(next(iter(_writes(graph)), graph.output_node())):
        copy = _with_value(graph.call_function(_aten.clone.default, (chains[0][first],)))
        copies = {chains[0][first]: copy}
        for chain in chains:
            for node in chain[first + 1 :]:
                if node not in copies:
                    copies[node] = _with_value(graph.node_copy(node, lambda x: copies.get(x, x)))
    return [copies[chain[-1]] for chain in chains]


def _without_gaps(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and torch.empty_like(value).stride() == value.stride()


def _with_value(node: Node) -> Node:
    args, kwargs = map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
    node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    return node
