"""Compiles functions of ``torch.compile`` for recording: each graph of inductor becomes one recorded operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from ..dispatch.simulation import Simulation, at_work
from ..shadow.shadow import Shadow
from ..shadow.widening import rerun_needs
from .bounds import errors
from .trace import sketch

_MARGIN = 16  # the factor by which compiled code may err more than its operations do one by one


def compile_recorded(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Compiles a graph as inductor does: the ``backend`` of recorders, which receive each run of it."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415  it takes seconds

    with _disable_current_modes():
        return compile_fx(graph, inputs, inner_compile=_compile)  # type: ignore[arg-type]


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """Compiles one graph, forward or backward; its runs go through the recorder of the simulation at work, if any."""
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415  as above

    operations = deepcopy(graph)  # inductor changes its own
    compiled: Any = compile_fx_inner(graph, inputs, **settings)
    role = "backward" if settings.get("is_backward") else "forward"

    def run(arguments: list[Any]) -> Any:
        simulation = at_work()
        watchers = () if simulation is None else simulation.watchers
        recorder: Any = next((watcher for watcher in watchers if watcher.backend is compile_recorded), None)
        return recorder.run_compiled(compiled, operations, arguments, role) if recorder else compiled(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001  it gets a list, which compiled code empties
    return run


def run_eagerly(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], shadow: Shadow
) -> tuple[list[Any], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Runs the operations of a graph on copies of its arguments; the shadow gets the float64 twins of the results.

    Returns:
        The results, and the arguments that the graph changes, with their changed copies. Nothing if the graph draws
        random numbers, communicates, or fails.
    """
    targets = [node.target for node in graph.graph.nodes if isinstance(node.target, OpOverload)]
    if any(rerun_needs(target).random or rerun_needs(target).communicates for target in targets):
        return [], []
    try:
        with Simulation("fp32", watchers=[shadow], products="plain", warn_unused=False):
            copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
            results = list(graph(*copies))
    except Exception:  # noqa: BLE001  the compiled code runs anyway
        return [], []
    tensors = [(x, y) for x, y in zip(arguments, copies, strict=True) if isinstance(x, torch.Tensor)]
    return results, [(x, y) for x, y in tensors if sketch(x, None).bits != sketch(y, None).bits]


def excess(x: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, size: float) -> float:
    """Returns the largest error of a compiled result over the bound for eager operations of this size; 0 within it."""
    error, allowed = (errors(y, exact).max().item() for y in (x, eager))
    bound = _MARGIN * max(allowed, torch.finfo(x.dtype).eps * size)
    if error <= bound:
        return 0.0
    return error / bound if bound else inf
