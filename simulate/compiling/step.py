"""``compile``: a training step traced under a simulation and compiled, with the same bits as when it runs eagerly."""

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
from .surroundings.arguments import Arguments, check_lazy, check_shared, settings
from .surroundings.look import Surroundings
from .surroundings.stand_ins import NewStateError, StandIns
from .surroundings.state import StepEffects, SurroundingsState

if TYPE_CHECKING:
    from .graphs.tracing import WholeNumberMarks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CompileWarning(UserWarning):
    """A step is not compiled, and runs eagerly."""


_MANY = 8
_MOST_NEW_STATES = 8


class _Call(NamedTuple):
    """One call of a step: its arguments and its surroundings."""

    given: Arguments
    state: SurroundingsState | None
    tensors: list[torch.Tensor]
    """All of both."""


@final
class CompiledStep(Generic[_P, _R]):
    """The callable that :func:`compile` returns; it is called like the step.

    Args:
        step: the function.
        simulation: simulation around the step; None for plain arithmetic.
        programs: where to keep programs; given by callers that know that other steps have the same ones.
        on_eager: called with the reason, in words, if the step is not compiled; None warns of it.
        fixed: the step's first arguments, if every call has the same ones: they are not given, and looked at once. What
            is in the tensors may change, but neither their shapes nor types.
        surroundings: surroundings of the step; None if it uses nothing but its arguments.
        roles: whether its backward passes are autograd's, and its optimizers PyTorch's, so that rules about
            roles hold in its trace as they do when it runs.

    Attributes:
        step: the function itself.
        simulation: simulation around the step; None for plain arithmetic.
        reason: why it runs eagerly, in words; None if it is compiled.
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
        shared: dict[Any, Any] = {} if programs is None else programs
        self._programs: dict[Any, list[CompiledProgram]] = shared.setdefault(self._fixed.key, {})
        self._stepped: list[torch.optim.Optimizer] = []
        self._new_states = 0
        self._formats: FormatsAsData | None = None
        self._on_eager = on_eager
        reason = simulation and reason_against_tracing(simulation, rules=surroundings is not None, roles=roles)
        reason = reason or reason_against_compiling()
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
        given = Arguments.of((args, kwargs))
        state = None if self._surroundings is None else self._surroundings.look(given.holders)
        if state is not None and not self._have_stepped(state):
            return self.run_eagerly(*args, **kwargs)
        tensors = self._fixed.tensors + given.tensors + ([] if state is None else state.tensors)
        found = self._program_for(_Call(given, state, tensors))
        if found is None:
            return self.run_eagerly(*args, **kwargs)
        program, inputs = found
        program.check(tensors)
        computed = program.run(inputs)
        if self.simulation is not None:
            self.simulation.advance(program.traced.steps, program.traced.draws)
            self._mark(program.traced.whole, tensors, computed)
        results = program.results(computed, tensors)
        return results if state is None else self._leave(program.effects, state, results)

    def _mark(self, whole: WholeNumberMarks, tensors: list[torch.Tensor], computed: Any) -> None:
        """Notes where the program has left integers, as its step would have."""
        known = None if self.simulation is None else self.simulation.whole
        if known is None or not (known or any(whole.tensors) or any(whole.results)):
            return
        made = zip(computed or (), whole.results, strict=False)
        for x, is_whole in (*zip(tensors, whole.tensors, strict=True), *made):
            if is_whole != (x in known):
                known.mark(x, whole=is_whole)

    def _have_stepped(self, state: SurroundingsState) -> bool:
        """Whether all optimizers have run in an earlier call: in their first step they make their state."""
        new = [x for x in state.found.optimizers if not any(x is known for known in self._stepped)]
        self._stepped += new
        return not new

    def _leave(self, effects: StepEffects | None, state: SurroundingsState, results: list[Any]) -> Any:
        """Stores the tensors that the step has made where they belong, and returns the step's results."""
        assert effects is not None
        assert self._surroundings is not None
        state.put(effects, results[: effects.made])
        if effects.places:
            self._surroundings.forget()
        return results[effects.made] if len(results) > effects.made else None

    def run_eagerly(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs the step in the simulation as it would run without compilation."""
        with self.simulation or nullcontext():
            return self.step(*self._fixed.filled_with(iter(self._fixed.tensors)), *args, **kwargs)

    def _give_up(self, reason: str, *, stacklevel: int) -> None:
        """Runs the step eagerly from now on."""
        self.reason = reason
        if self._on_eager:
            self._on_eager(reason)
        else:
            warnings.warn(f"not compiled: {reason}; the step runs eagerly", CompileWarning, stacklevel=stacklevel)

    def _program_for(self, call: _Call) -> tuple[CompiledProgram, list[torch.Tensor]] | None:
        """The program for a call, and its inputs; None if the step must run eagerly."""
        given, state, tensors = call
        if self._formats is None:
            if not tensors:
                raise FormatError("a step to compile takes tensors as arguments, or finds some around it; got none")
            dtypes = [x.dtype for x in tensors if x.dtype in (torch.float32, torch.float64)]
            self._formats = formats_of(self.simulation, dtypes[0] if dtypes else torch.float32, device_of(tensors))
        inputs = tensors
        if self.simulation is not None:
            inputs = [self.simulation.place, *self._formats.tensors, *tensors]
        numbers = [] if state is None else state.numbers()
        key = (given.key, settings(), None if state is None else state.key(), whole_among(self.simulation, tensors))
        try:
            programs = self._programs.setdefault(key, [])
        except TypeError as error:
            raise FormatError(
                "arguments of a compiled step are tensors, modules, optimizers, numbers and text, in tuples, lists and"
                f" dicts; {error}"
            ) from error
        found = first_for(programs, inputs, numbers)
        if found is not None:
            return found
        with compiling:
            found = first_for(programs, inputs, numbers)
            if found is not None:
                return found
            program = self._compile(call, self._formats)
            programs += [] if program is None else [program]
            self._warn_of_many()
            return first_for(programs, inputs, numbers)

    def _warn_of_many(self) -> None:
        """Reports the dependencies of the step, if they take ever more programs."""
        changed = self._surroundings and self._surroundings.changed
        if changed and sum(map(len, self._programs.values())) == _MANY:
            warnings.warn(
                f"the step has been compiled {_MANY} times, last because {changed} is not what it was: numbers around a"
                " step are constants of its program; pass it as a tensor",
                CompileWarning,
                stacklevel=5,
            )

    def _compile(self, call: _Call, formats: FormatsAsData) -> CompiledProgram | None:
        """The program for calls like this; None if the step cannot be compiled, and then nothing has changed."""
        from .graphs.tracing import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

        given, state, tensors = call
        reason = reason_against_compiling("cuda") if device_of(tensors).type == "cuda" else None
        if reason:
            self._give_up(reason, stacklevel=6)
            return None
        perhaps_lazy = [i for i, x in enumerate(tensors) if x.is_complex() or not x.is_contiguous()]
        check_lazy(tensors, range(len(tensors)))
        numbers = NumberRecord()
        effects: list[StepEffects] = []

        def step(tensors: list[torch.Tensor]) -> Any:
            rest = iter(tensors)
            fixed = self._fixed.filled_with(rest)
            args, kwargs = given.filled_with(rest)
            if state is None:
                return self.step(*fixed, *args, **kwargs)
            stand_ins = StandIns(state, list(rest), numbers.give)
            with stand_ins.in_place():
                result = self.step(*fixed, *args, **kwargs)
                left, made = stand_ins.left()
            effects[:] = [left]
            return made if result is None else [*made, result]

        try:
            whole = whole_among(self.simulation, tensors)
            traced = trace(step, tensors, self.simulation, formats, numbers, whole)
        except NewStateError:
            self._new_states += 1
            if self._new_states > _MOST_NEW_STATES:
                self._give_up("an optimizer has other numbers in its state after every step", stacklevel=6)
            return None  # there will be state when the step has run eagerly
        except FormatError as error:
            if not self._goes_on_without(error, state):
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

    def _goes_on_without(self, error: FormatError, state: SurroundingsState | None) -> bool:
        """Whether the step can run eagerly, this time or from now on, where it could not be traced."""
        has_numbers = state is not None and bool(state.numbers())
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
    """A training step as a compiled program: the bits of the simulation, at the speed of a compiled program.

    ``fast = roundoff.compile(step, simulation)``, then ``fast(batch)`` instead of ``with simulation: step(batch)``. The
    step is traced under the simulation when it is first called with arguments of certain shapes (forward, backward, the
    step of an optimizer, all it does with tensors) and compiled by PyTorch's inductor; compiled programs are kept on
    disk, and serve every float format of a kind, since the format is data to them. If it uses an optimizer, the first
    call runs eagerly, and the second is traced.

    The results equal the eager simulation's, bit for bit: operations with compiled loops that round differently
    from PyTorch's own kernels (reductions, exponentials, logarithms, square roots) are called as those kernels.

    What a step may do: it uses its arguments (tensors, modules, optimizers, in any nesting of tuples, lists and dicts),
    and what its code finds around it: in variables of the functions around it, globals, attributes of objects. It may
    write into tensors, leave gradients and other new tensors there, and returns tensors, or nothing. Python numbers are
    constants, and other values of them are other programs, but for learning rates. It decides by ``torch.where``, not
    by ``if``.

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
            found, changes something else than tensors around it, or takes two arguments that share memory and writes to
            one of them.
    """
    for given, kind in ((modules, torch.nn.Module), (optimizers, torch.optim.Optimizer)):
        if not all(isinstance(x, kind) for x in given):
            raise FormatError(f"compile takes a list of {kind.__name__}s, got {given!r}")
    if not (simulation is None or isinstance(simulation, Simulation)):
        raise FormatError(
            f"compile takes a simulation, such as roundoff.simulate('e5m10'), or None for plain arithmetic, got"
            f" {simulation!r}"
        )
    return CompiledStep(step, simulation, surroundings=Surroundings(step, [*modules, *optimizers]))
