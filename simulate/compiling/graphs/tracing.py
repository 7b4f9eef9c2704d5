"""From a step to a graph of ATen operations and roundings, and from the graph to a compiled program."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import clear_frames
from typing import Any, NamedTuple, final

import torch
from torch._guards import TracingContext, tracing
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import TorchFunctionMetadataMode, make_fx
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._foreach_utils import _foreach_supported_types
from torch.utils._pytree import TreeSpec, tree_flatten

from ....formats import FormatError, RoundoffError
from ....formats.compiling import inductor as float_lowering
from ...dispatch.graph_writer import FormatsAsData, GraphWriter
from ...dispatch.simulation import Simulation
from ...numbers.host_numbers import NumberRecord
from ...numbers.number_tensors import NumbersAsTensors, numbers_as_input
from ...numbers.readings import Reading, Readings
from ..program_cache import compiled_on_disk
from ..refusals import is_of_the_step, why_untraceable
from ..surroundings.arguments import ArgumentAlias, alias_of, check_kept, gradient_of, layouts, memory_of
from ..surroundings.stand_ins import NewStateError
from . import exact_lowerings as exact_lowerings_module
from . import layouts as layouts_module
from . import written_operations
from .chance import RandomCall, drawn_before, settings_of_the_generator
from .exact_lowerings import exact_lowerings, structural_decompositions
from .functional import functional
from .gathered_loops import gathered_loops
from .layouts import LayoutMode
from .members import stack_members
from .own_memory import separate
from .tidying import erase_profiling, tidied

_aten = torch.ops.aten


class WholeNumberMarks(NamedTuple):
    """Whether each tensor holds integers after a step has run."""

    tensors: Sequence[bool]
    """The step's tensors."""
    results: Sequence[bool]
    """The results of the step, without results in the memory of its tensors."""


class TracedStep(NamedTuple):
    """A step as a graph.

    Its inputs are, in a simulation, the place of its random bits and the formats, and then the step's tensors.
    """

    graph: GraphModule
    inputs: Sequence[torch.Tensor]
    """Tensors without values that represent the inputs."""
    stand_ins: FakeTensorMode
    """The mode that made ``inputs``."""
    results: TreeSpec | None
    """The structure of the step's return value; None for nothing."""
    aliases: Sequence[ArgumentAlias | None]
    """For each result, the argument that shares its memory; None: the graph computes it."""
    written: frozenset[int]
    """The step's tensors that it writes to."""
    steps: int
    """The number of steps of the simulation that begin in it."""
    draws: int
    """The number of stochastic roundings in the last of them."""
    numbers: NumberRecord
    """Python numbers that every call recomputes: they are an input after the step's tensors, if there are any."""
    readings: Sequence[Reading]
    """The derivation of the numbers that the step reads from tensors."""
    chance: Sequence[RandomCall]
    """Random numbers that are drawn before the program runs: its last inputs."""
    whole: WholeNumberMarks
    """The tensors where the program leaves integers."""

    def further_inputs(self, inputs: Sequence[torch.Tensor], numbers: Sequence[float]) -> list[torch.Tensor] | None:
        """The inputs after the step's tensors; None if the graph is made for other numbers.

        Args:
            inputs: The inputs before these.
            numbers: The current values of the numbers that the record was given when the step was traced.
        """
        if not self.numbers.values and not self.chance:
            return []
        known: dict[Any, float] = {}
        values = self.numbers.evaluate(numbers, lambda i, number: self.readings[i].value(inputs, number, known))
        if values is None:
            return None
        as_tensor = [torch.tensor(values, dtype=torch.float64)] if values else []  # a Python float has 64 bits
        return [*as_tensor, *(draw() for draw in self.chance)]


@final
class _Run:
    """The step as a function of all inputs of its graph.

    Args:
        step: a function of a list of tensors.
        simulation: simulation around the step; None for plain arithmetic.
        formats: formats of its policy.
        readings: values that it reads from tensors.
        whole: Positions of its integer-valued tensors.
    """

    def __init__(
        self,
        step: Callable[[list[torch.Tensor]], Any],
        simulation: Simulation | None,
        formats: FormatsAsData,
        readings: Readings,
        whole: Sequence[int],
    ) -> None:
        self._step, self._simulation, self._formats, self._readings = step, simulation, formats, readings
        self._whole = whole
        self.marks = WholeNumberMarks((), ())
        # The inputs are the place of the random bits, if there is a simulation, the formats, and the step's tensors.
        self.of_formats = slice(simulation is not None, (simulation is not None) + len(formats.tensors))
        self.results: TreeSpec | None = None
        self.aliases: list[ArgumentAlias | None] = []
        self.counts = (0, 0)
        self.memory: list[Hashable] = []
        self.memory_of_arguments: set[Hashable] = set()

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the results outside of the arguments' memory, and the values that were read."""
        rest = list(inputs[self.of_formats.stop :])
        before, gradients = layouts(rest), [gradient_of(x) for x in rest]
        with _functions_as_eagerly(), _foreach_as_eagerly(), self._readings.recording(), NumbersAsTensors():  # type: ignore[no-untyped-call]
            result = self._step(rest) if self._simulation is None else self._simulated(self._simulation, inputs, rest)
        check_kept(rest, before, gradients)
        leaves, spec = tree_flatten(() if result is None else result)
        wrong_types = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if wrong_types:
            raise FormatError(f"a step to compile returns tensors, or nothing; got {', '.join(wrong_types)}")
        self.results = None if result is None else spec
        self.aliases = [alias_of(leaf, rest) for leaf in leaves]
        new = [leaf for leaf, alias in zip(leaves, self.aliases, strict=True) if alias is None]
        self.memory, self.memory_of_arguments = [memory_of(x) for x in new], {memory_of(x) for x in rest}
        known = None if self._simulation is None else self._simulation.whole
        if known is not None:
            self.marks = WholeNumberMarks([x in known for x in rest], [x in known for x in new])
        return (*new, *self._readings.tensors)

    def _simulated(self, simulation: Simulation, inputs: Sequence[torch.Tensor], rest: list[torch.Tensor]) -> Any:
        writer = GraphWriter(self._formats.standing_for(inputs[self.of_formats]), inputs[0])
        if simulation.whole is not None:
            for i in self._whole:
                simulation.whole.mark(rest[i])
        with simulation.writing(writer):
            result = self._step(rest)
            self.counts = (simulation.step, simulation.draws)
        return result


@contextmanager
def _dispatching_as_before() -> Iterator[None]:
    """Errors in the block leave the thread's dispatcher as it was.

    The frame of PyTorch's function that prints a tensor holds a guard until it is freed. In forward mode that happens
    after other guards are left, and the thread would stay without autograd.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()  # noqa: SLF001  public nowhere
    with torch._C._ForceDispatchKeyGuard(included, excluded):  # noqa: SLF001  public nowhere
        try:
            yield
        except Exception as error:
            if not is_of_the_step(error):
                clear_frames(error.__traceback__)
            raise


@contextmanager
def _functions_as_eagerly() -> Iterator[None]:
    """For the block, no mode of tracing sees PyTorch's functions, since modules take other branches under such a mode.

    A mode would also cost time whenever a tensor's shape is read.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    with _pop_mode_temporarily() if modes and isinstance(modes[-1], TorchFunctionMetadataMode) else nullcontext():
        yield


@contextmanager
def _foreach_as_eagerly() -> Iterator[None]:
    """For the block, functions of PyTorch's run stand-ins through operations on lists where they do so with tensors."""
    _foreach_supported_types.append(FakeTensor)
    try:
        yield
    finally:
        _foreach_supported_types.remove(FakeTensor)


def _lazily_written() -> AbstractContextManager[None]:
    """In the block, a graph is written as Python when it is called or hashed, and not whenever it changes."""
    return _use_lazy_graph_module(should_use=True)


def trace(
    step: Callable[[list[torch.Tensor]], Any],
    tensors: list[torch.Tensor],
    simulation: Simulation | None,
    formats: FormatsAsData,
    numbers: NumberRecord | None = None,
    whole: Sequence[int] = (),
) -> TracedStep:
    """Traces ``step`` for tensors like these; the graph is functional, except that it writes to its inputs at its end.

    Args:
        step: a function of a list of tensors.
        tensors: the tensors to call it with.
        simulation: simulation around the step; None for plain arithmetic.
        formats: formats of its policy.
        numbers: where the step records its operations on Python numbers that differ in every call.
        whole: Positions of the integer-valued tensors.

    Raises:
        FormatError: it cannot be traced.
    """
    numbers = NumberRecord() if numbers is None else numbers
    stand_ins = LayoutMode()
    place = [] if simulation is None else [simulation.place]
    real = [*place, *formats.tensors, *tensors]
    # Separate memory for every stand-in, even where tensors share it: a write to one must not show in another.
    inputs: list[torch.Tensor] = [stand_ins.from_tensor(x.detach(), static_shapes=True) for x in real]
    leaves_of_autograd = [
        stand_in.detach().requires_grad_() if x.requires_grad else stand_in
        for stand_in, x in zip(inputs, real, strict=True)
    ]
    given = set(map(id, real))
    for stand_in, x in zip(leaves_of_autograd, real, strict=True):
        if (gradient := gradient_of(x)) is not None and id(gradient) not in given:
            stand_in.grad = gradient  # not an input: a step that reads it is refused
    readings = Readings(numbers, real, len(real) - len(tensors))
    run = _Run(step, simulation, formats, readings, whole)
    try:
        with _dispatching_as_before(), _lazily_written(), stand_ins:
            # First trace: the step as it runs eagerly, with its backward pass and its writes.
            with settings_of_the_generator() as set_by:
                with_writes = make_fx(run)(*leaves_of_autograd)
            stand_ins.runs_step = False
            erase_profiling(with_writes)
            device = "cuda" if any(x.is_cuda for x in inputs) else "cpu"
            # Second trace: the graph as a function, with operations that inductor may write taken apart.
            pure = _functions_as_eagerly()(functional(with_writes))
            graph = make_fx(pure, decomposition_table=structural_decompositions(device))(*inputs)
            steps_read = readings.take_from(graph)
            inputs += numbers_as_input(graph, numbers)
        chance, drawn = drawn_before(graph, set_by)
    except (RoundoffError, NewStateError):
        raise
    except Exception as error:
        if is_of_the_step(error):  # as it would be raised eagerly
            raise
        raise FormatError(why_untraceable(error)) from error
    with _lazily_written():
        graph = tidied(graph)
    separate(graph, run.memory, run.memory_of_arguments)
    # The inputs that are written to, counted from the step's first
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"][run.of_formats.stop :]
    targets = {node.args[0] for node in graph.graph.nodes if node.target is _aten.copy_.default}
    written = frozenset(i for i, node in enumerate(placeholders) if node in targets)
    return TracedStep(
        graph, inputs + drawn, stand_ins, run.results, run.aliases, written, *run.counts, numbers, steps_read, chance,
        run.marks,
    )  # fmt: skip


def for_members(traced: TracedStep, members: int) -> TracedStep:
    """The graph of a population: all its inputs and results are of every member, (members, ...).

    Raises:
        FormatError: the step has inputs that are not the members' tensors.
    """
    if traced.numbers.count or traced.chance:
        raise FormatError("a step of a population draws no random numbers, and reads none from tensors")
    with traced.stand_ins, _lazily_written():
        inputs = [torch.empty(members, *x.shape, dtype=x.dtype, device=x.device) for x in traced.inputs]
        graph = stack_members(traced.graph, inputs)
    return traced._replace(graph=graph, inputs=inputs)


def compile_graph(traced: TracedStep) -> Callable[[list[torch.Tensor]], Any]:
    """The program of a graph; inductor keeps it on disk."""

    def compile_program() -> Callable[[list[torch.Tensor]], Any]:
        with warnings.catch_warnings():  # where warnings are errors, PyTorch's own would end its import
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch._inductor import config  # noqa: PLC0415  it takes seconds to import
            from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415  it takes seconds to import

        settings = {
            "pattern_matcher": False,  # it replaces operations by others that are not the same in the last bit
            "layout_optimization": False,  # kernels behind channels-last convolutions have other strides than traced
            "post_grad_custom_pre_pass": _CodeVersion(),
        }
        context = tracing(TracingContext(traced.stand_ins))  # without it there is no cache on disk
        with context, exact_lowerings(traced.graph), gathered_loops(), config.patch(settings):
            return compile_fx_inner(traced.graph, traced.inputs, is_inference=True)

    return compiled_on_disk(compile_program)


@final
class _CodeVersion(CustomGraphPass):
    """A pass that changes nothing; its name, a hash of the code of lowerings, is part of a program's key on disk."""

    def __call__(self, graph: Graph) -> None:
        """Leaves the graph as it is."""

    def uuid(self) -> str:
        """Returns a hash of the modules that decide which loops inductor writes."""
        modules = (exact_lowerings_module, layouts_module, written_operations, float_lowering)
        return hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()
