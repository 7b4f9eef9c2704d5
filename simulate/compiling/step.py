"""``compile``: traces a training step under a simulation and compiles it, with the bits of the eager simulation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, final

import torch
from torch._C import _get_dispatch_mode, _len_torch_dispatch_stack, _TorchDispatchModeKey
from torch.utils._python_dispatch import _disable_current_modes

from ...formats import FormatError
from ..dispatch.graph_writer import FormatsAsData
from ..dispatch.simulation import Simulation
from ..numbers.host_numbers import NumberError, NumberRecord
from .program import (
    CompiledProgram,
    compiling,
    device_of,
    first_for,
    formats_of,
    products_of,
    reason_against_compiling,
    whole_among,
)
from .refusals import OtherBitsError, last_words, optimizer_of, reason_against_tracing
from .surroundings.arguments import Arguments, check_lazy, check_shared, repeated, settings
from .surroundings.look import Surroundings
from .surroundings.stand_ins import NewStateError, StandIns
from .surroundings.state import StepEffects, SurroundingsState

if TYPE_CHECKING:
    from .graphs.tracing import WholeNumberMarks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CompileWarning(UserWarning):
    """A step is not compiled, and runs eagerly."""


_WARN_AT = 8  # programs of a step
_MOST_NEW_STATES = 8  # traces of a step that ended because an optimizer made new state


class _Call(NamedTuple):
    """A call of a step: its arguments and its surroundings."""

    arguments: Arguments
    state: SurroundingsState | None
    tensors: list[torch.Tensor]
    """The tensors of both, fixed arguments included."""


@final
class CompiledStep(Generic[_P, _R]):
    """A step with its compiled programs, as :func:`compile` returns it; it is called like the step.

    Args:
        step: the function.
        simulation: simulation around the step; None for plain arithmetic.
        programs: the dictionary of programs, if other steps share them; None for a new one.
        on_eager: called with the reason, in words, if the step is not compiled; None warns of it.
        fixed: the step's first arguments, if every call has the same ones: callers leave them out, and they are
            examined once. The values of their tensors may change, but neither shapes nor types.
        surroundings: surroundings of the step; None if it uses nothing but its arguments.
        roles: whether its backward passes are autograd's, and its optimizers PyTorch's, so that rules about
            roles apply in its trace as in an eager run.

    Attributes:
        step: the function itself.
        simulation: simulation around the step; None for plain arithmetic.
        reason: the reason why it runs eagerly, in words; None if it is compiled.
    """

    def __init__(
        self,
        step: Callable[_P, _R],
        simulation: Simulation | None,
        programs: dict[Any, Any] | None = None,
        on_eager: Callable[[str], None] | None = None,
        fixed: tuple[Any, ...] = (),
        surroundings: Surroundings | None = None,
        *,
        roles: bool = False,
    ) -> None:
        self.step: Callable[..., _R] = step
        self.__wrapped__ = step
        self.simulation = simulation
        self.reason: str | None = None
        self._fixed = Arguments.of(fixed)
        self._surroundings = surroundings
        self._roles = roles
        shared: dict[Any, Any] = {} if programs is None else programs
        self._programs: dict[Any, list[CompiledProgram]] = shared.setdefault(self._fixed.key, {})
        self._programs_by_policy = [(simulation and simulation.policy, self._programs)]
        self._changes = simulation.changes if simulation else 0
        self._stepped: list[torch.optim.Optimizer] = []
        self._new_states = 0
        self._formats: FormatsAsData | None = None
        self._on_eager = on_eager
        self._check_can_compile()

    def _check_can_compile(self) -> None:
        """Gives up if no program can be traced in the simulation, or compiled on this machine."""
        with_rules = self._surroundings is not None
        reason = self.simulation and reason_against_tracing(self.simulation, rules=with_rules, roles=self._roles)
        reason = reason or reason_against_compiling()
        if reason:
            self._give_up(reason, stacklevel=5)

    def _follow_change(self, simulation: Simulation) -> None:
        """Takes over a new policy, or new watchers: programs compute as the simulation did when they were traced."""
        self._changes, self._formats, self.reason = simulation.changes, None, None
        known = [programs for policy, programs in self._programs_by_policy if policy == simulation.policy]
        self._programs = known[0] if known else {}
        if not known:
            self._programs_by_policy.append((simulation.policy, self._programs))
        self._check_can_compile()

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs the step in the simulation, whatever is simulated around it."""
        if self.simulation is not None and self.simulation.changes != self._changes:
            self._follow_change(self.simulation)
        if self.reason:
            return self.run_eagerly(*args, **kwargs)
        if _len_torch_dispatch_stack():
            if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # part of another step being traced
                return self.run_eagerly(*args, **kwargs)
            with _disable_current_modes():  # a simulation around the call would see the program's operations
                return self._run(*args, **kwargs)  # type: ignore[no-any-return]
        return self._run(*args, **kwargs)  # type: ignore[no-any-return]

    def _run(self, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        arguments = Arguments.of((args, kwargs))
        state = None if self._surroundings is None else self._surroundings.look(arguments.holders)
        optimizers = [] if state is None else state.findings.optimizers
        unstepped = [x for x in optimizers if not any(x is optimizer for optimizer in self._stepped)]
        self._stepped += unstepped
        if unstepped:  # they create their state in this call
            return self.run_eagerly(*args, **kwargs)
        tensors = self._fixed.tensors + arguments.tensors + ([] if state is None else state.tensors)
        program_and_inputs = self._find_program(_Call(arguments, state, tensors))
        if program_and_inputs is None:
            return self.run_eagerly(*args, **kwargs)
        program, inputs = program_and_inputs
        program.check(tensors)
        computed = program.run(inputs)
        if self.simulation is not None:
            self.simulation.advance(program.traced.steps, program.traced.draws)
            self._mark(program.traced.whole, tensors, computed)
        results = program.results(computed, tensors)
        if state is None:
            return results
        # The first results are the tensors that the step leaves in its surroundings.
        effects = program.effects
        assert effects is not None
        assert self._surroundings is not None
        state.put(effects, results[: effects.new_count])
        if effects.places:  # other tensors are there now: the known state would put the old ones back
            self._surroundings.forget()
        return results[effects.new_count] if len(results) > effects.new_count else None

    def _mark(self, whole: WholeNumberMarks, tensors: list[torch.Tensor], computed: Any) -> None:
        """Marks the tensors that the program filled with integers, as the eager step does."""
        integers = None if self.simulation is None else self.simulation.whole
        if integers is None or not (integers or any(whole.tensors) or any(whole.results)):
            return
        results = zip(computed or (), whole.results, strict=False)
        for x, is_whole in (*zip(tensors, whole.tensors, strict=True), *results):
            if is_whole != (x in integers):
                integers.mark(x, whole=is_whole)

    def run_eagerly(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs the step in the simulation as it would run without compilation."""
        with self.simulation or nullcontext():
            return self.step(*self._fixed.filled_with(iter(self._fixed.tensors)), *args, **kwargs)

    def _give_up(self, reason: str, *, stacklevel: int) -> None:
        """Makes the step run eagerly from now on, and reports the reason."""
        self.reason = reason
        if self._on_eager:
            self._on_eager(reason)
        else:
            warnings.warn(f"not compiled: {reason}; the step runs eagerly", CompileWarning, stacklevel=stacklevel)

    def _find_program(self, call: _Call) -> tuple[CompiledProgram, list[torch.Tensor]] | None:
        """Finds or compiles the program for a call, and its inputs; None if the step must run eagerly."""
        arguments, state, tensors = call
        if self._formats is None:  # made at the first call, for the dtype and the device of its tensors
            if not tensors:
                raise FormatError("a step to compile takes tensors as arguments, or finds some around it; got none")
            dtypes = [x.dtype for x in tensors if x.dtype in (torch.float32, torch.float64)]
            self._formats = formats_of(self.simulation, dtypes[0] if dtypes else torch.float32, device_of(tensors))
        inputs = tensors
        if self.simulation is not None:
            inputs = [self.simulation.place, *self._formats.tensors, *tensors]
        numbers = [] if state is None else state.numbers()
        # All that a program depends on, but for Python numbers: their branches are checked for each program of a key.
        found = None if state is None else state.key()
        key = (arguments.key, settings(), found, whole_among(self.simulation, tensors), repeated(tensors))
        try:
            programs = self._programs.setdefault(key, [])
        except TypeError as error:
            raise FormatError(
                "arguments of a compiled step are tensors, modules, optimizers, numbers and text, in tuples, lists and"
                f" dicts; {error}"
            ) from error
        if (existing := first_for(programs, inputs, numbers)) is not None:
            return existing
        with compiling:
            if (existing := first_for(programs, inputs, numbers)) is not None:  # compiled by another thread meanwhile
                return existing
            program = self._compile(call, self._formats)
            programs += [] if program is None else [program]
            self._warn_of_many()
            return first_for(programs, inputs, numbers)

    def _warn_of_many(self) -> None:
        """Warns of values around the step that change, if the step has been compiled many times for them."""
        changed = self._surroundings and self._surroundings.changed
        if changed and sum(map(len, self._programs.values())) == _WARN_AT:
            warnings.warn(
                f"the step has been compiled {_WARN_AT} times, last because {changed} has changed: numbers"
                " around a step are constants of its program; pass it as a tensor",
                CompileWarning,
                stacklevel=5,
            )

    def _compile(self, call: _Call, formats: FormatsAsData) -> CompiledProgram | None:
        """Compiles a program for calls like this; None, without side effects, if the step cannot be compiled."""
        from .graphs.tracing import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

        arguments, state, tensors = call
        reason = reason_against_compiling("cuda") if device_of(tensors).type == "cuda" else None
        if reason:
            self._give_up(reason, stacklevel=6)
            return None
        # Lazy tensors are complex, or imaginary parts of complex numbers, which have gaps between several elements.
        perhaps_lazy = [i for i, x in enumerate(tensors) if x.is_complex() or x.numel() == 1 or not x.is_contiguous()]
        check_lazy(tensors, range(len(tensors)))
        numbers = NumberRecord()
        effects: list[StepEffects] = []
        same = repeated(tensors)

        def step(tensors: list[torch.Tensor]) -> Any:
            remaining = iter([tensors[i] for i in same] if same else tensors)
            fixed = self._fixed.filled_with(remaining)
            args, kwargs = arguments.filled_with(remaining)
            if state is None:
                return self.step(*fixed, *args, **kwargs)
            stand_ins = StandIns(state, list(remaining), numbers.give)
            with stand_ins.in_place():
                result = self.step(*fixed, *args, **kwargs)
                step_effects, new_tensors = stand_ins.effects()
            effects[:] = [step_effects]
            return new_tensors if result is None else [*new_tensors, result]

        try:
            whole = whole_among(self.simulation, tensors)
            traced = trace(step, tensors, self.simulation, formats, numbers, whole)
        except NewStateError:
            self._new_states += 1
            if self._new_states > _MOST_NEW_STATES:
                self._give_up("the state of an optimizer has other Python numbers after every step", stacklevel=6)
            return None  # the eager run creates the state
        except FormatError as error:
            if not self._can_run_eagerly(error, state):
                raise
            return None
        check_shared(tensors, traced.written)
        try:
            program = compile_graph(traced)
        except Exception as error:  # noqa: BLE001  a full disk, a mistake of inductor's: no reason to end a training run
            self._give_up(f"PyTorch's compiler failed ({last_words(error)})", stacklevel=6)
            return None
        products = products_of(traced.graph, [self.simulation])
        return CompiledProgram(program, traced, perhaps_lazy, effects[0] if effects else None, products)

    def _can_run_eagerly(self, error: FormatError, state: SurroundingsState | None) -> bool:
        """Whether a step that could not be traced can run eagerly, in this call or from now on."""
        has_numbers = state is not None and bool(state.numbers())
        # An operation on a learning rate that no program can repeat: rates are constants from now on.
        if isinstance(error, NumberError) and has_numbers and self._surroundings is not None:
            self._surroundings.take_numbers_for_constants()
            return True
        if isinstance(error, OtherBitsError):
            self._give_up(f"compiled, it would have other bits: {error}", stacklevel=7)
            return True
        optimizer = optimizer_of(error)
        if optimizer is not None:
            self._give_up(f"torch.optim's {optimizer} cannot be traced ({error})", stacklevel=7)
        return optimizer is not None


def compile(  # noqa: A001  torch's name
    step: Callable[_P, _R],
    simulation: Simulation | None,
    *,
    modules: Sequence[torch.nn.Module] = (),
    optimizers: Sequence[torch.optim.Optimizer] = (),
) -> CompiledStep[_P, _R]:
    """Compiles a training step: the bits of the simulation, at the speed of a compiled program.

    ``fast = roundoff.compile(step, simulation)``, then ``fast(batch)`` instead of ``with simulation: step(batch)``. The
    step is traced under the simulation when it is first called with arguments of certain shapes (forward, backward, the
    step of an optimizer, all it does with tensors) and compiled by PyTorch's inductor; compiled programs are kept on
    disk, and serve every float format of a kind, since the format is data to them. If it uses an optimizer, the first
    call runs eagerly, and the second is traced.

    The results equal the eager simulation's, bit for bit: operations with compiled loops that round differently
    from PyTorch's own kernels (reductions, exponentials, logarithms, square roots) are called as those kernels.

    A step may use its arguments (tensors, modules, optimizers, in any nesting of tuples, lists and dicts), and its
    surroundings: variables of the functions around it, globals, attributes of objects. It may write into tensors, leave
    gradients and other new tensors in its surroundings, and return tensors, or nothing. Python numbers are constants,
    and other values of them are other programs, but for learning rates. It decides by ``torch.where``, not by ``if``.

    Args:
        step: a function of tensors.
        simulation: simulation around the step; None for plain arithmetic. Simulations that observe, accumulate in
            rounded arithmetic, have rules on parameters, inputs or scalars, or primitive granularity, are not traced.
        modules: modules that the step uses, if it cannot be seen where it has them from.
        optimizers: optimizers that the step uses, if it cannot be seen where it has them from.

    Returns:
        A function like ``step``. Without a C++ compiler, in a simulation that cannot be traced, or with an optimizer
        that cannot, it runs the step eagerly, and a :class:`CompileWarning` says so.

    Raises:
        FormatError: when called: the step reads a number from a tensor that it computes, uses a tensor that was not
            found, changes other things than tensors around it, or writes to one of two arguments that share memory.
    """
    for values, kind in ((modules, torch.nn.Module), (optimizers, torch.optim.Optimizer)):
        if not (isinstance(values, (list, tuple)) and all(isinstance(x, kind) for x in values)):
            raise FormatError(f"compile takes a list or tuple of {kind.__name__}s, got {values!r}")
    if not (simulation is None or isinstance(simulation, Simulation)):
        raise FormatError(
            f"compile takes a simulation, such as roundoff.simulate('e5m10'), or None for plain arithmetic, got"
            f" {simulation!r}"
        )
    return CompiledStep(step, simulation, surroundings=Surroundings(step, [*modules, *optimizers]))
