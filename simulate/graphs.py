"""From a step to a graph of ATen operations and roundings, and from the graph to a compiled program."""

from __future__ import annotations

import hashlib
import inspect
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, tracing
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import TreeSpec, tree_flatten

from roundoff.formats import FormatError, RoundoffError, float_lowering
from roundoff.simulate import exact_lowerings as exact_lowerings_module
from roundoff.simulate.exact_lowerings import exact_lowerings, structural_decompositions
from roundoff.simulate.graph_writer import FormatsAsData, GraphWriter
from roundoff.simulate.members import stack_members
from roundoff.simulate.program_cache import compiled_on_disk
from roundoff.simulate.step_memory import Alias, alias_of, check_kept, layouts
from roundoff.simulate.treatment import is_move

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roundoff.simulate.mode import Simulation

_aten = torch.ops.aten
_INSIDE = (os.sep + "torch" + os.sep, str(Path(__file__).parent) + os.sep, "<string>")


class Traced(NamedTuple):
    """A step as a graph.

    Its inputs are, in a simulation, the place of its random bits and the formats, and then the step's tensors.
    """

    graph: GraphModule
    inputs: Sequence[torch.Tensor]
    """Stand-ins,"""
    stand_ins: FakeTensorMode
    """made by this."""
    results: TreeSpec | None
    """What the step returns; None for nothing,"""
    aliases: Sequence[Alias | None]
    """and which of it lies in the memory of its arguments: the graph computes the others."""
    written: frozenset[int]
    """The step's tensors that it writes to."""
    steps: int
    draws: int


def trace(
    step: Callable[[list[torch.Tensor]], Any],
    tensors: list[torch.Tensor],
    simulation: Simulation | None,
    formats: FormatsAsData,
) -> Traced:
    """The graph of ``step`` for tensors like these: functional, but that it ends by writing to inputs.

    Raises:
        FormatError: it cannot be traced.
    """
    stand_ins = FakeTensorMode(shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False))
    place = [] if simulation is None else [torch.zeros(2, dtype=torch.int64)]
    # Two pieces of memory, or one: what is written to one must not show in another.
    inputs = [stand_ins.from_tensor(x.detach(), static_shapes=True) for x in (*place, *formats.tensors, *tensors)]
    leaves_of_autograd = inputs[: -len(tensors)] + [
        stand_in.detach().requires_grad_() if x.requires_grad else stand_in
        for stand_in, x in zip(inputs[-len(tensors) :], tensors, strict=True)
    ]
    of_formats = slice(len(place), len(place) + len(formats.tensors))
    results: list[TreeSpec | None] = []
    aliases: list[Alias | None] = []
    ends: list[int] = []

    def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = list(given[of_formats.stop :])
        as_given = layouts(rest)
        if simulation is None:
            result = step(rest)
        else:
            simulation.step = 0
            writer = GraphWriter(formats.standing_for(given[of_formats]), given[0])
            with simulation.writing(writer):
                result = step(rest)
            ends[:] = [simulation.step, simulation.draws]
        check_kept(rest, as_given)
        leaves, spec = tree_flatten(() if result is None else result)
        others = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if others:
            raise FormatError(f"a step to compile returns tensors, or nothing; got {', '.join(others)}")
        results[:] = [None if result is None else spec]
        aliases[:] = [alias_of(leaf, rest) for leaf in leaves]
        return tuple(leaf for leaf, alias in zip(leaves, aliases, strict=True) if alias is None)

    before = None if simulation is None else (simulation.step, simulation.draws)
    try:
        with stand_ins:
            with_writes = make_fx(flat)(*leaves_of_autograd)
            _erase_profiling(with_writes)
            functional = torch.func.functionalize(with_writes, remove="mutations")
            graph = make_fx(functional, decomposition_table=structural_decompositions())(*inputs)
    except RoundoffError:
        raise
    except Exception as error:
        if _is_its_own(error):
            raise
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(
            f"the step cannot be traced{_place(error)} ({first_line}): it may compute only with its arguments and with"
            " tensors it makes itself, write to no other, and read no number from a tensor (.item(), if, float())"
        ) from error
    finally:
        if simulation is not None and before is not None:
            simulation.step = before[0]
            simulation.skip_draws(before[1])
    graph = _tidied(graph)
    _check_randomness(graph)
    written = _written(graph, skipped=of_formats.stop)
    return Traced(graph, inputs, stand_ins, results[0], aliases, written, *(ends or (0, 0)))


def _tidied(graph: GraphModule) -> GraphModule:
    """The graph without what computes nothing, or the same twice."""
    _forward_copies(graph)
    graph.graph.eliminate_dead_code()
    graph = GraphModule(graph, fx_graph_cse(graph.graph))
    _forward_exact_moves(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _check_randomness(graph: GraphModule) -> None:
    """Refuses steps whose random numbers depend on an order, which inductor does not keep."""
    drawing = [node for node in graph.graph.nodes if torch.Tag.nondeterministic_seeded in _tags(node)]
    if len(drawing) > 1:
        raise FormatError(
            f"the step draws random numbers {len(drawing)} times (torch.randn, dropout, ...), and a compiled one would"
            " draw them in another order; draw them outside, and pass them as arguments"
        )


def _tags(node: Node) -> Sequence[torch.Tag]:
    return getattr(node.target, "tags", ())


def _is_its_own(error: Exception) -> bool:
    """Whether the step itself has raised an error, which PyTorch's C++ does with these two alone."""
    origin = traceback.extract_tb(error.__traceback__)[-1].filename
    return not isinstance(error, (RuntimeError, TypeError)) and not any(part in origin for part in _INSIDE)


def for_members(traced: Traced, members: int) -> Traced:
    """The graph of a population: all its inputs and results are of every member, (members, ...)."""
    with traced.stand_ins:
        inputs = [torch.empty(members, *x.shape, dtype=x.dtype, device=x.device) for x in traced.inputs]
        graph = stack_members(traced.graph, inputs)
    return traced._replace(graph=graph, inputs=inputs)


def _place(error: Exception) -> str:
    """Where, outside of PyTorch and the simulation, an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not any(part in frame.filename for part in _INSIDE)]
    return f" at {outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}" if outside else ""


def compile_graph(traced: Traced) -> Callable[[list[torch.Tensor]], Any]:
    """The program of a graph; inductor keeps it on disk."""

    def compile_program() -> Callable[[list[torch.Tensor]], Any]:
        from torch._inductor import config  # noqa: PLC0415  it takes seconds to import
        from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415  likewise

        settings = {
            "pattern_matcher": False,  # it replaces operations by others that are not the same in the last bit
            "post_grad_custom_pre_pass": _ThisVersion(),
        }
        context = tracing(TracingContext(traced.stand_ins))  # without it there is no cache on disk
        with context, exact_lowerings(traced.graph), config.patch(settings):
            return compile_fx_inner(traced.graph, traced.inputs, is_inference=True)

    return compiled_on_disk(compile_program)


@final
class _ThisVersion(CustomGraphPass):
    """Changes nothing; but programs on disk are kept under its name, which is that of the code that made them."""

    def __call__(self, graph: Graph) -> None:
        """Leaves the graph as it is."""

    def uuid(self) -> str:
        """A hash of the lowerings."""
        sources = [inspect.getsource(module) for module in (exact_lowerings_module, float_lowering)]
        return hashlib.sha256("".join(sources).encode()).hexdigest()


def _erase_profiling(graph: GraphModule) -> None:
    """An optimizer's step tells the profiler where it begins and ends."""
    for node in reversed(graph.graph.nodes):
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()


def _forward_copies(graph: GraphModule) -> None:
    """Removes copies over the whole of a tensor like the one copied, which in-place operations leave behind."""
    for node in list(graph.graph.nodes):
        if node.target in (_aten.copy.default, _aten.detach.default, _aten.alias.default, _aten.clone.default):
            source = node.args[1] if node.target is _aten.copy.default else node.args[0]
            if _alike(node, source):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)


def _alike(node: Node, other: Node) -> bool:
    a, b = node.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype)


def _forward_exact_moves(graph: GraphModule) -> None:
    """Removes the rounding of what was only moved or selected from numbers that are rounded the same way already."""
    rounding: dict[Node, Any] = {}  # how the numbers of a node were rounded; "any" for zeros
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.roundoff.round_float.default:
            source, *how = node.args
            if rounding.get(source) in (tuple(how), "any"):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
            else:
                rounding[node] = tuple(how)
        elif node.target is _aten.full.default and node.args[1] == 0:
            rounding[node] = "any"
        elif node.op == "call_function" and _only_moves(node):
            ways = {
                rounding.get(source)
                for source in node.all_input_nodes
                if isinstance(source.meta["val"], (tuple, list)) or source.meta["val"].dtype.is_floating_point
            }
            ways.discard("any")
            if len(ways) == 1 and None not in ways:
                rounding[node] = ways.pop()


_VIEWS = frozenset(
    ["view", "expand", "permute", "transpose", "slice", "select", "unsqueeze", "squeeze", "split", "split_with_sizes",
     "unbind", "reshape", "_unsafe_view", "t", "as_strided", "alias", "getitem"]
)  # fmt: skip


def _only_moves(node: Node) -> bool:
    name = str(getattr(node.target, "overloadpacket", node.target).__name__)  # type: ignore[union-attr]
    if name == "view" and len(node.args) > 1 and isinstance(node.args[1], torch.dtype):
        return False
    if name == "where" and any(not isinstance(x, Node) for x in node.args):
        return False
    return name in _VIEWS or is_move(name)


def _written(graph: GraphModule, *, skipped: int) -> frozenset[int]:
    """Which of the inputs are written to, counted from the step's first."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"][skipped:]
    targets = {node.args[0] for node in graph.graph.nodes if node.target is _aten.copy_.default}
    return frozenset(i for i, node in enumerate(placeholders) if node in targets)
