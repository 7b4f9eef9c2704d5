"""Several simulations of one training step as one program: the members of a population, each in its own format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, final

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...formats import FormatError, Rounding
from ..aten.tensor_cores import in_float32
from ..dispatch.simulation import Simulation
from .program import CompiledProgram, compiling, formats_of, products_of, reason_against_compiling
from .refusals import reason_against_tracing


def reason_against_sharing(simulations: Sequence[Simulation | None], *, roles: bool = False) -> str | None:
    """The reason why simulations cannot share a program, regardless of this machine's compiler; None if they can.

    Args:
        simulations: simulation of each member.
        roles: as of :class:`~.step.CompiledStep`.
    """
    for simulation in simulations:
        reason = simulation and reason_against_tracing(simulation, roles=roles)
        if reason:
            return reason
        if simulation is not None and set(simulation.policy.settings("rounding")) != {Rounding.NEAREST_EVEN}:
            return "stochastic rounding draws the bits of one simulation at a time"
    return None


@final
class PopulationStep:
    """A step of several members at once: as :class:`CompiledStep`, with one more axis in front of every tensor.

    Args:
        step: The function of one member's tensors; its trace for the first member represents all.
        simulations: The simulation of each member, None for plain arithmetic; only widths of formats differ.
        programs: The dictionary of programs, which callers share between steps with the same programs.
        roles: as of :class:`~.step.CompiledStep`.

    Raises:
        FormatError: the simulations cannot share a program.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        simulations: Sequence[Simulation | None],
        programs: dict[Any, CompiledProgram] | None = None,
        *,
        roles: bool = False,
    ) -> None:
        reason = reason_against_sharing(simulations, roles=roles) or reason_against_compiling()
        if reason:
            raise FormatError(f"these simulations cannot share a program: {reason}")
        self._step = step
        self._simulations = list(simulations)
        self._programs = {} if programs is None else programs
        self._formats: list[torch.Tensor] | None = None

    def prepare(self, *args: Any) -> None:
        """Compiles the program for arguments like these, which are not changed; a call also does it.

        Raises:
            Exception: whatever the compiler has failed with.
        """
        self._program(*tree_flatten(args))

    def __call__(self, *args: Any) -> Any:
        """Runs the step for all members.

        Args:
            args: tensors, (members, ...), in any nesting of tuples, lists and dicts; changed in place as the step does.

        Returns:
            The results of the step, (members, ...).
        """
        leaves, spec = tree_flatten(args)
        program = self._program(leaves, spec)
        program.check(leaves)
        assert self._formats is not None
        places = [simulation.place for simulation in self._simulations if simulation is not None]  # before it counts
        results = program.run([*([torch.stack(places)] if places else []), *self._formats, *leaves])
        for simulation in self._simulations:
            if simulation is not None:
                simulation.advance(program.traced.steps, program.traced.draws)
        return program.results(results, leaves)

    def _program(self, leaves: list[torch.Tensor], spec: TreeSpec) -> CompiledProgram:
        if self._formats is None:
            self._formats = self._stacked_formats(leaves)
        key = (spec, tuple((x.shape, x.stride(), x.dtype, x.device) for x in leaves))
        if key not in self._programs:
            with compiling:
                self._programs[key] = self._compile(leaves, spec)
        return self._programs[key]

    def _stacked_formats(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """The formats of all members."""
        floating = _first_floating(leaves)
        member_formats = [formats_of(simulation, floating.dtype, floating.device) for simulation in self._simulations]
        if len({formats.kind for formats in member_formats}) > 1:
            raise FormatError(
                "the members' formats must be float formats rounded by the same loops (those with bfloat16's exponents"
                " are not rounded as those with float16's), and others the same"
            )
        return [torch.stack(rows) for rows in zip(*(formats.tensors for formats in member_formats), strict=True)]

    def _compile(self, leaves: list[torch.Tensor], spec: TreeSpec) -> CompiledProgram:
        from .graphs.tracing import compile_graph, for_members, trace  # noqa: PLC0415  seconds to import

        simulation = self._simulations[0]
        floating = _first_floating(leaves)
        reason = reason_against_compiling("cuda") if floating.is_cuda else None
        if reason:
            raise FormatError(reason)

        def step(tensors: list[torch.Tensor]) -> Any:
            return self._step(*tree_unflatten(tensors, spec))

        formats = formats_of(simulation, floating.dtype, floating.device)
        traced = trace(step, [x[0] for x in leaves], simulation, formats)
        # Refuses roundings that are constants of the graph, if members have different ones
        member_formats = [[str(fmt) for fmt in s.formats] for s in self._simulations if s is not None]
        differing = {names[0] for names in zip(*member_formats, strict=True) if len(set(names)) > 1}
        for node in traced.graph.graph.nodes:
            if differing.intersection(x for x in node.args if isinstance(x, str)):
                raise FormatError(
                    f"the step computes with {node.meta['val'].dtype} inside a simulation, whose roundings members of a"
                    " population share; give it tensors of one type"
                )
        products = products_of(traced.graph, self._simulations)
        with in_float32(*products) if products else nullcontext():  # kernels are compared as they run
            traced = for_members(traced, len(self._simulations))
        aliases = [None if alias is None else alias.of_members(leaves[alias.argument]) for alias in traced.aliases]
        return CompiledProgram(compile_graph(traced), traced._replace(aliases=aliases), [], None, products)


def _first_floating(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return next(x for x in tensors if x.dtype.is_floating_point)
