"""``compile``: a training step traced under a simulation and compiled, with the same bits as when it runs eagerly."""

from __future__ import annotations

import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from numbers import Number
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, final

import torch
from torch._C import _get_dispatch_mode, _len_torch_dispatch_stack, _TorchDispatchModeKey
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from roundoff.formats import FormatError
from roundoff.simulate.graph_writer import FormatsAsData
from roundoff.simulate.step_memory import check_lazy, check_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.simulate.graphs import Traced
    from roundoff.simulate.mode import Simulation

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CompileWarning(UserWarning):
    """A step is not compiled, and runs eagerly."""


_compiling = threading.RLock()
"""Tracing and compiling change settings of the whole process."""


class Program(NamedTuple):
    """A compiled step for arguments of certain shapes."""

    call: Callable[[list[torch.Tensor]], Any]
    traced: Traced
    perhaps_lazy: list[int]
    """The tensors that may be negatives or conjugates in name only."""

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Refuses arguments that the program would take for others than they are."""
        if self.perhaps_lazy:
            check_lazy(tensors, self.perhaps_lazy)
        if self.traced.written and len({x.untyped_storage().data_ptr() for x in tensors}) < len(tensors):
            check_shared(tensors, self.traced.written)

    def results(self, computed: Any, tensors: list[torch.Tensor]) -> Any:
        """What the step returns."""
        if self.traced.results is None:
            return None
        rest = iter(computed or ())
        leaves = [next(rest) if alias is None else alias.of(tensors) for alias in self.traced.aliases]
        return tree_unflatten(leaves, self.traced.results)


@final
class CompiledStep(Generic[_P, _R]):
    """What :func:`compile` returns; called like the step.

    Args:
        step: the function.
        simulation: in which it runs; None for plain arithmetic.
        programs: where to keep programs; given by those who know that other steps have the same ones.
        on_eager: called with the reason, in words, if the step is not compiled; None warns of it.

    Attributes:
        step: the function itself.
        simulation: in which it runs; None for plain arithmetic.
        reason: why it runs eagerly, in words; None if it is compiled.
    """

    def __init__(
        self,
        step: Callable[_P, _R],
        simulation: Simulation | None,
        programs: dict[Any, Program] | None = None,
        on_eager: Callable[[str], None] | None = None,
    ) -> None:
        self.step = step
        self.simulation = simulation
        self.reason: str | None = None
        self._programs = {} if programs is None else programs
        self._formats: FormatsAsData | None = None
        self._on_eager = on_eager
        reason = _reason_against(simulation)
        if reason:
            self._give_up(reason, stacklevel=4)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs the step in the simulation, whatever is simulated around it."""
        if self.reason:
            return self.run_eagerly(*args, **kwargs)
        if _len_torch_dispatch_stack():
            if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # it is part of a step that is traced
                return self.run_eagerly(*args, **kwargs)
            with _disable_current_modes():
                return self._run(*args, **kwargs)  # type: ignore[no-any-return]
        return self._run(*args, **kwargs)  # type: ignore[no-any-return]

    def _run(self, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = tuple([_identity(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        key = (spec, constants, tuple([(x.shape, x.stride(), x.dtype, x.device, x.requires_grad) for x in tensors]))
        if self._formats is None:
            self._formats = self._formats_for(tensors)
        try:
            program = self._programs.get(key)
        except TypeError as error:
            raise FormatError(
                f"arguments of a compiled step are tensors, numbers and text, in tuples, lists and dicts; {error}"
            ) from error
        if program is None:
            with _compiling:
                program = self._programs.get(key) or self._compile(leaves, spec, self._formats)
            if program is None:
                return self.run_eagerly(*args, **kwargs)
            self._programs[key] = program
        program.check(tensors)
        if self.simulation is None:
            return program.results(program.call(tensors), tensors)
        place = torch.tensor([self.simulation.step, self.simulation.draws])
        computed = program.call([place, *self._formats.tensors, *tensors])
        if program.traced.steps:
            self.simulation.step += program.traced.steps
        self.simulation.skip_draws(program.traced.draws)
        return program.results(computed, tensors)

    def run_eagerly(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs the step in the simulation as it would run without compilation."""
        with self._arithmetic():
            return self.step(*args, **kwargs)

    def _arithmetic(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.simulation is None else self.simulation

    def _give_up(self, reason: str, *, stacklevel: int) -> None:
        """Runs the step eagerly from now on."""
        self.reason = reason
        if self._on_eager:
            self._on_eager(reason)
        else:
            warnings.warn(f"not compiled: {reason}; the step runs eagerly", CompileWarning, stacklevel=stacklevel)

    def _formats_for(self, tensors: list[torch.Tensor]) -> FormatsAsData:
        if not tensors:
            raise FormatError("a step to compile takes tensors as arguments, got none")
        dtypes = [x.dtype for x in tensors if x.dtype in (torch.float32, torch.float64)]
        formats = [] if self.simulation is None else self.simulation.policy.formats()
        return FormatsAsData(formats, dtypes[0] if dtypes else torch.float32, tensors[0].device)

    def _compile(self, leaves: list[Any], spec: TreeSpec, formats: FormatsAsData) -> Program | None:
        """The program for arguments like these; None if the compiler fails, which nothing has been changed by."""
        from roundoff.simulate.graphs import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        perhaps_lazy = [i for i, x in enumerate(tensors) if x.is_complex() or not x.is_contiguous()]
        check_lazy(tensors, range(len(tensors)))

        def step(tensors: list[torch.Tensor]) -> Any:
            rest = iter(tensors)
            given = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(given, spec)
            return self.step(*args, **kwargs)

        traced = trace(step, tensors, self.simulation, formats)
        check_shared(tensors, traced.written)
        try:
            call = compile_graph(traced)
        except Exception as error:  # noqa: BLE001  a full disk, a mistake of inductor's: no reason to end a training run
            self._give_up(f"PyTorch's compiler failed ({_last_words(error)})", stacklevel=5)
            return None
        return Program(call, traced, perhaps_lazy)


def compile(step: Callable[_P, _R], simulation: Simulation | None) -> CompiledStep[_P, _R]:  # noqa: A001  torch's name
    """A training step as a compiled program: the bits of the simulation, at the speed of a compiled program.

    ``fast = roundoff.compile(step, simulation)``, then ``fast(parameters, buffers, batch)`` instead of
    ``with simulation: step(parameters, buffers, batch)``. When it is first called with arguments of certain shapes,
    the step is traced under the simulation (forward, ``torch.autograd.grad``, in-place updates, all it does with
    tensors) and compiled by PyTorch's inductor; compiled programs are kept on disk, and serve every float format of a
    kind, since the format is data to them.

    The results are those of the eager simulation, bit for bit: operations whose compiled loops would round otherwise
    than PyTorch's own kernels (reductions, exponentials, logarithms, square roots) are called as those kernels.

    What a step may do: everything that changes from call to call, and every tensor it writes to, is an argument; it
    may write to its arguments in place, and returns tensors, in any nesting of tuples, lists and dicts, or nothing.
    Python numbers are constants; other values of them are other programs. It decides by ``torch.where``, not by ``if``.

    Args:
        step: a function of tensors.
        simulation: what it runs in; None for plain arithmetic. Simulations that observe, accumulate in rounded
            arithmetic, have rules about modules, roles, operands or scalars, or primitive granularity, are not traced.

    Returns:
        A function like ``step``. Without a C++ compiler, or in a simulation that cannot be traced, it runs the step
        eagerly, and a :class:`CompileWarning` says so.

    Raises:
        FormatError: when called: the step reads a number from a tensor, writes to a tensor that is no argument, or
            takes two arguments that share memory and writes to one of them.
    """
    return CompiledStep(step, simulation)


def _reason_against(simulation: Simulation | None) -> str | None:
    """Why a step cannot be compiled, in words."""
    if simulation is not None:
        reason = simulation.reason_against_tracing()
        if reason:
            return reason
    return reason_against_compiling()


@cache
def reason_against_compiling() -> str | None:
    """Why nothing can be compiled on this machine: found out by compiling something, which is on disk the next time."""
    from roundoff.simulate.graphs import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

    x = torch.zeros(16)
    try:
        formats = FormatsAsData([], x.dtype, x.device)
        program = compile_graph(trace(lambda tensors: tensors[0] + 1, [x], None, formats))
        program([x])
    except Exception as error:  # noqa: BLE001  whatever it is: no compiler, no headers, a folder that cannot be written
        return (
            f"PyTorch's compiler does not work here ({_last_words(error)}); it needs g++ and the headers of Python"
            " (python3-dev)"
        )
    return None


def _last_words(error: Exception) -> str:
    """What a compiler has to say, which may be pages."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = [line.strip() for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or [type(error).__name__])[-1][:200]


def _identity(constant: Any) -> Any:
    """What two constants must have in common to be the same to a program: 0.0 and -0.0 or 1, 1.0 and True are not."""
    return type(constant), repr(constant) if isinstance(constant, Number) else constant
