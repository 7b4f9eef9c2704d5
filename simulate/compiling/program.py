"""Compiled programs of a step, each for arguments of certain shapes; and whether there can be any on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_unflatten

from roundoff.locks import new_lock
from roundoff.pytorch.versions import reason_against_compiled_bits

from ..aten.tables import is_contraction
from ..aten.tensor_cores import in_float32, is_on_gpu
from ..dispatch.graph_writer import FormatsAsData
from ..dispatch.plan import UNSIMULATED
from ..dispatch.simulation import Simulation
from ..numbers.kernel_calls import called
from .refusals import is_of_a_tool, last_words
from .surroundings.arguments import check_lazy, check_shared
from .surroundings.state import StepEffects

if TYPE_CHECKING:
    from .graphs.tracing import TracedStep


compiling = new_lock()
"""Tracing and compiling change settings of the whole process: one thread does so at a time."""

_NARROW = "narrow_product"
"""The product of tensor cores; on a card without them it is PyTorch's own."""


class CompiledProgram(NamedTuple):
    """The program that inductor has compiled from a step, with the facts that inductor does not know."""

    call: Callable[[list[torch.Tensor]], Any]
    traced: TracedStep
    perhaps_lazy: list[int]
    """Indices of the tensors that may be lazy: marked as negated or conjugated only."""
    effects: StepEffects | None = None
    """The values that it leaves in the step's surroundings, which are its first results."""
    products: tuple[str, ...] = ()
    """Operations that a GPU is to compute without TF32."""

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Refuses arguments that the program would misread: lazy ones, and ones that share memory it writes to."""
        if self.perhaps_lazy:
            check_lazy(tensors, self.perhaps_lazy)
        # Fewer addresses than tensors: the slow check finds the pair, and whether a write makes it wrong.
        to_check = self.traced.written or sum([x.requires_grad for x in tensors]) > 1
        if to_check and len({x.untyped_storage().data_ptr() for x in tensors}) < len(tensors):
            check_shared(tensors, self.traced.written)

    def run(self, inputs: list[torch.Tensor]) -> Any:
        """Runs the program and returns its outputs; kernels that it calls record no autograd graph."""
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):  # the program has the step's own casts
                    return self.run(inputs)
        if self.products:
            with in_float32(*self.products):
                return self._run(inputs)
        return self._run(inputs)

    def _run(self, inputs: list[torch.Tensor]) -> Any:
        if not torch.is_grad_enabled():
            return self.call(inputs)
        torch._C._set_grad_enabled(False)  # noqa: SLF001  torch.no_grad() takes as long as a small kernel
        try:
            return self.call(inputs)
        finally:
            torch._C._set_grad_enabled(True)  # noqa: SLF001

    def results(self, computed: Any, tensors: list[torch.Tensor]) -> Any:
        """Returns the results of the step."""
        if self.traced.results is None:
            return None
        rest = iter(computed or ())
        # Results in the memory of arguments are views of these, as in the eager step; the program computes the others.
        leaves = [next(rest) if alias is None else alias.of(tensors) for alias in self.traced.aliases]
        return tree_unflatten(leaves, self.traced.results)


def first_for(
    programs: Sequence[CompiledProgram], inputs: list[torch.Tensor], numbers: list[float]
) -> tuple[CompiledProgram, list[torch.Tensor]] | None:
    """Finds the first program that was compiled for these numbers; returns it with all its inputs.

    Args:
        programs: programs to choose from, which differ in their decisions by numbers.
        inputs: inputs before the inputs that are made for each call.
        numbers: numbers in the step's surroundings.
    """
    for program in programs:
        # A program follows the branches that its numbers took; with others the step might take another branch.
        if (further := program.traced.further_inputs(inputs, numbers)) is not None:
            return program, [*inputs, *further]
    return None


def products_of(graph: GraphModule, simulations: Sequence[Simulation | None]) -> tuple[str, ...]:
    """The names of the products in the graph of a step that a GPU computes, if it is simulated.

    Args:
        graph: graph of the step.
        simulations: simulation of each member of a population; or the only one.
    """
    if all(simulation is None or simulation.policy == UNSIMULATED for simulation in simulations):
        return ()
    on_gpu = (
        node
        for node in graph.graph.nodes
        if node.op == "call_function" and is_on_gpu(tree_leaves([x.meta.get("val") for x in node.all_input_nodes]))
    )
    return tuple(sorted(name for name in set(map(_operation_name, on_gpu)) if is_contraction(name) or name == _NARROW))


def _operation_name(node: Node) -> str:
    if node.target is torch.ops.roundoff.kernel.default:  # PyTorch's kernel, by its name
        return called(str(node.args[0]))
    return str(getattr(node.target, "overloadpacket", node.target).__name__)  # type: ignore[union-attr]


def formats_of(simulation: Simulation | None, dtype: torch.dtype, device: torch.device) -> FormatsAsData:
    """The formats of a simulation, as inputs of a program: one program serves all formats of a kind."""
    return FormatsAsData([] if simulation is None else simulation.formats, dtype, device)


def whole_among(simulation: Simulation | None, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Returns the positions of tensors that are known to hold integers; a program is made for those."""
    integers = None if simulation is None else simulation.whole  # None also where the policy rounds integers
    return tuple(i for i, x in enumerate(tensors) if x in integers) if integers else ()


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Returns the device that a program of such tensors runs on: a GPU, if some are there."""
    return next((x.device for x in tensors if x.is_cuda), tensors[0].device)


def reason_against_compiling(device: str = "cpu") -> str | None:
    """The reason why nothing is compiled for a type of device with this PyTorch on this machine."""
    return reason_against_compiled_bits() or _reason_of_this_machine(device)


@cache
def _reason_of_this_machine(device: str) -> str | None:
    """The reason why nothing can be compiled; found by compiling something, which is on disk the next time."""
    from .graphs.tracing import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

    try:
        with compiling:
            x = torch.zeros(16, device=device)
            formats = formats_of(None, x.dtype, x.device)
            compile_graph(trace(lambda tensors: tensors[0] + 1, [x], None, formats))([x])  # the smallest program
    except Exception as error:  # noqa: BLE001  whatever it is: no compiler, no headers, a folder that cannot be written
        reason = f"PyTorch's compiler does not work here ({last_words(error)})"
        if device == "cuda":
            return f"{reason}; it needs triton, g++ and the headers of Python (python3-dev)"
        return f"{reason}; it needs g++ and the headers of Python (python3-dev)" if is_of_a_tool(error) else reason
    return None
