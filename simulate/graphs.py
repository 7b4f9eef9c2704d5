"""From a step to a graph of ATen operations and roundings, and from the graph to a compiled program."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import TreeSpec, tree_flatten

from roundoff.formats import FormatError, RoundoffError, float_lowering
from roundoff.simulate import exact_lowerings as exact_lowerings_module
from roundoff.simulate.chance import Draw, drawn_before
from roundoff.simulate.compiler import INSIDE
from roundoff.simulate.exact_lowerings import exact_lowerings, structural_decompositions
from roundoff.simulate.graph_tidying import erase_profiling, tidied
from roundoff.simulate.graph_writer import FormatsAsData, GraphWriter
from roundoff.simulate.host_numbers import Record
from roundoff.simulate.members import stack_members
from roundoff.simulate.number_tensors import NumbersAsTensors, numbers_as_input
from roundoff.simulate.readings import Reading, Readings
from roundoff.simulate.stand_ins import NewStateError
from roundoff.simulate.step_memory import Alias, alias_of, check_kept, layouts
from roundoff.simulate.walk import HOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roundoff.simulate.mode import Simulation

_aten = torch.ops.aten


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
    numbers: Record
    """Python numbers that every call computes anew: behind the step's tensors, they are an input, if there are any."""
    readings: Sequence[Reading]
    """How those follow that it reads from tensors."""
    chance: Sequence[Draw]
    """Random numbers that are drawn before the program runs: its last inputs."""

    def extra_inputs(self, inputs: Sequence[torch.Tensor], numbers: Sequence[float]) -> list[torch.Tensor] | None:
        """The inputs behind the step's tensors; None if the graph is made for other numbers.

        Args:
            inputs: all in front of them.
            numbers: given to the record before the step was traced.
        """
        known: dict[Any, float] = {}
        values = self.numbers.evaluate(numbers, lambda i, number: self.readings[i].value(inputs, number, known))
        if values is None:
            return None
        of_numbers = [torch.tensor(values, dtype=torch.float64)] if values else []
        return [*of_numbers, *(draw() for draw in self.chance)]


def trace(
    step: Callable[[list[torch.Tensor]], Any],
    tensors: list[torch.Tensor],
    simulation: Simulation | None,
    formats: FormatsAsData,
    numbers: Record | None = None,
) -> Traced:
    """The graph of ``step`` for tensors like these: functional, but that it ends by writing to inputs.

    Args:
        step: a function of a list of tensors.
        tensors: what it will be called with.
        simulation: in which it runs; None for plain arithmetic.
        formats: of its policy.
        numbers: where the step records what it does with Python numbers that are others in every call.

    Raises:
        FormatError: it cannot be traced.
    """
    numbers = Record() if numbers is None else numbers
    stand_ins = FakeTensorMode(shape_env=ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False))
    place = [] if simulation is None else [torch.tensor([simulation.step, simulation.draws])]
    real = [*place, *formats.tensors, *tensors]
    # Two pieces of memory, or one: what is written to one must not show in another.
    inputs = [stand_ins.from_tensor(x.detach(), static_shapes=True) for x in real]
    leaves_of_autograd = inputs[: -len(tensors)] + [
        stand_in.detach().requires_grad_() if x.requires_grad else stand_in
        for stand_in, x in zip(inputs[-len(tensors) :], tensors, strict=True)
    ]
    of_formats = slice(len(place), len(place) + len(formats.tensors))
    results: list[TreeSpec | None] = []
    aliases: list[Alias | None] = []
    ends: list[int] = []
    readings = Readings(numbers, real, of_formats.stop)

    def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = list(given[of_formats.stop :])
        as_given = layouts(rest)
        with readings.recording(), NumbersAsTensors():
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
        own = [leaf for leaf, alias in zip(leaves, aliases, strict=True) if alias is None]
        return (*own, *readings.tensors)

    before = None if simulation is None else (simulation.step, simulation.draws)
    try:
        with stand_ins:
            with_writes = make_fx(flat)(*leaves_of_autograd)
            erase_profiling(with_writes)
            functional = torch.func.functionalize(with_writes, remove="mutations")
            graph = make_fx(functional, decomposition_table=structural_decompositions())(*inputs)
            found = readings.take_from(graph)
            inputs += numbers_as_input(graph, numbers)
        chance, drawn = drawn_before(graph)
    except (RoundoffError, NewStateError):
        raise
    except Exception as error:
        if _is_its_own(error):
            raise
        if "to FakeTensors" in str(error):
            raise FormatError(
                f"the step uses a tensor{_place(error)} that is not among its arguments and was not found around it; pass"
                f" it as an argument, or {HOW}"
            ) from error
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(
            f"the step cannot be traced{_place(error)} ({first_line}): it may compute only with its arguments and with"
            " tensors it makes itself, write to no other, and read no number from a tensor (.item(), if, float())"
        ) from error
    finally:
        if simulation is not None and before is not None:
            simulation.step = before[0]
            simulation.skip_draws(before[1])
    graph = tidied(graph)
    written = _written(graph, skipped=of_formats.stop)
    counts = ends or (0, 0)
    return Traced(graph, inputs + drawn, stand_ins, results[0], aliases, written, *counts, numbers, found, chance)


def _is_its_own(error: Exception) -> bool:
    """Whether the step itself has raised an error, which PyTorch's C++ does with these two alone."""
    origin = traceback.extract_tb(error.__traceback__)[-1].filename
    return not isinstance(error, (RuntimeError, TypeError)) and not any(part in origin for part in INSIDE)


def for_members(traced: Traced, members: int) -> Traced:
    """The graph of a population: all its inputs and results are of every member, (members, ...).

    Raises:
        FormatError: the step has inputs that are not the members' tensors.
    """
    if traced.numbers.count or traced.chance:
        raise FormatError("a step of a population draws no random numbers, and reads none from tensors")
    with traced.stand_ins:
        inputs = [torch.empty(members, *x.shape, dtype=x.dtype, device=x.device) for x in traced.inputs]
        graph = stack_members(traced.graph, inputs)
    return traced._replace(graph=graph, inputs=inputs)


def _place(error: Exception) -> str:
    """Where, outside of PyTorch and the simulation, an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not any(part in frame.filename for part in INSIDE)]
    return f" at {outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}" if outside else ""


def compile_graph(traced: Traced) -> Callable[[list[torch.Tensor]], Any]:
    """The program of a graph; inductor keeps it on disk."""
    from torch._inductor import config  # noqa: PLC0415  it takes seconds to import
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415  likewise

    settings = {
        "pattern_matcher": False,  # it replaces operations by others that are not the same in the last bit
        "layout_optimization": False,  # kernels called behind channels-last convolutions have other strides than traced
        "post_grad_custom_pre_pass": _ThisVersion(),
    }
    context = tracing(TracingContext(traced.stand_ins))  # without it there is no cache on disk
    with _one_at_a_time(), context, exact_lowerings(traced.graph), config.patch(settings):
        return compile_fx_inner(traced.graph, traced.inputs, is_inference=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of the processes of a user, one compiles: those that wait find on disk what it has compiled."""
    folder = Path(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "roundoff.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@final
class _ThisVersion(CustomGraphPass):
    """Changes nothing; but programs on disk are kept under its name, which is that of the code that made them."""

    def __call__(self, graph: Graph) -> None:
        """Leaves the graph as it is."""

    def uuid(self) -> str:
        """A hash of the lowerings."""
        sources = [inspect.getsource(module) for module in (exact_lowerings_module, float_lowering)]
        return hashlib.sha256("".join(sources).encode()).hexdigest()


def _written(graph: GraphModule, *, skipped: int) -> frozenset[int]:
    """Which of the inputs are written to, counted from the step's first."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"][skipped:]
    targets = {node.args[0] for node in graph.graph.nodes if node.target is _aten.copy_.default}
    return frozenset(i for i, node in enumerate(placeholders) if node in targets)
