"""Running any PyTorch computation in simulated arithmetic: the mode that every operation passes through."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch._C import _get_dispatch_mode, _len_torch_dispatch_stack, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from ...formats import Format, FormatError, RandomBits, Rounding, round
from ...formats.rounding import is_dense
from ..accumulation.run import accumulate as run_accumulated
from ..aten.collectives import settle
from ..aten.products import reason_against
from ..aten.wrappers import are_shapes, go_first, has_memory, is_shape, parts
from ..numbers.host_numbers import recognized
from ..policy.places import Places
from ..policy.policy import OPTIMIZER_STEP, Granularity, Policy, Role, Rule, Scalars
from ..presence.bystanders import Bystander
from ..presence.draws import STEP_BITS, Draws
from ..presence.entering import Presence, SimulationWarning, this_thread
from ..presence.process import Process, is_compiling_operator
from .complaints import complaints, unused
from .handling import Handling
from .operands import Operands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from torch._ops import OpOverload

    from ..accumulation.description import Accumulation
    from ..shadow.shadow import Shadow, ShadowReport
    from ..watching.observer import Observer
    from ..watching.report import Report
    from .audit import Audit
    from .graph_writer import GraphWriter

_CARRIERS = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SINGLE = (torch.float32, torch.complex64)


class PolicyWarning(SimulationWarning):
    """A rule of a policy names an operation or a module that never ran."""


class Simulation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that :func:`simulate` makes; entered with ``with``, and entered again at will.

    Args:
        policy: what is rounded, and how.
        seed: of stochastic rounding.
        observe: whether to count what rounding does.
        shadow: ``"fp64"`` to carry a float64 twin of every value.
        products: ``"plain"`` leaves all matrix products to PyTorch's own choice of a library; see :func:`simulate`.
        warn_unused: whether leaving the block, for the first time, warns of rules that matched nothing, and of matrix
            products and convolutions that no rule or accumulator reached.
        root: the module, or the modules, from which rules name modules; see :func:`simulate`.
        leave_moves: whether exact moves pass on what they get, in whatever precision that was computed.

    Attributes:
        policy: what it was made with.
        products: ``"fast"`` where large matrix products take the faster library of this machine, else ``"plain"``.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        policy: Policy | Format | str,
        *,
        seed: int = 0,
        observe: bool = False,
        shadow: Literal["fp64"] | None = None,
        products: Literal["fast", "plain"] = "fast",
        warn_unused: bool = True,
        root: torch.nn.Module | Sequence[torch.nn.Module] = (),
        leave_moves: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made_with = {
            "policy": policy, "seed": seed, "observe": observe, "shadow": shadow, "products": products,
            "warn_unused": warn_unused, "leave_moves": leave_moves,
        }  # fmt: skip
        self.policy = policy = Policy.of(policy)
        assert isinstance(policy.format, Format)
        self.format = policy.format
        self._random = RandomBits(seed)  # checks that it is an integer
        self._draws = Draws()
        self._observer: Observer | None = None
        if observe:
            from ..watching.observer import Observer  # noqa: PLC0415  pandas costs half a second

            self._observer = Observer(self.format)
        if shadow not in (None, "fp64"):
            raise FormatError(f'shadow must be "fp64" or None, got {shadow!r}')
        self._shadow: Shadow | None = None
        if shadow:
            from ..shadow.shadow import Shadow  # noqa: PLC0415  likewise

            self._shadow = Shadow()
        if products not in ("fast", "plain"):
            raise FormatError(f'products must be "fast" or "plain", got {products!r}')
        watched = observe or shadow is not None
        follows = policy.depends_on_place or watched or _names_steps(policy)
        roots = _modules(root)
        self._places = Places(self._stepped, roots) if follows else None
        self._operands = Operands(tracks_inputs=any(Role.INPUTS in rule.role for rule in policy.rules))
        self._writer: GraphWriter | None = None
        self._does_anything = watched or bool(policy.rules) or str(policy) != "format=fp32"
        fast = products == "fast" and self._does_anything and reason_against() is None
        self.products = "fast" if fast else "plain"
        self._handlings: dict[Any, Handling] = {}
        self._warns_unused = warn_unused and bool(policy.rules or policy.accumulate)
        self._leaves_moves = leave_moves
        self.presence = Presence(self)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Simulation({self.policy}, products={self.products})"

    def __reduce__(self) -> Any:
        """A copy is made as this was, without ``root``; it is at the same step, and has seen nothing."""
        return _remade, (self._made_with, self.step)

    def __enter__(self) -> Self:
        """Starts rounding in this thread; simulations entered before it pause until it is left."""
        # fp32 alone costs nothing; inside another simulation it must be there to pause that one.
        needed = self._does_anything or any(
            isinstance(mode, (Simulation, Bystander)) for mode in _get_current_dispatch_mode_stack()
        )
        if self.presence.is_shared() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise FormatError(
                "on a GPU, where autograd has threads of its own, a simulation cannot be shared by several threads:"
                " make one for each"
            )
        if needed:
            _process.enter()
        self.presence.enter(sys._getframe(1), push=needed)  # noqa: SLF001  the only access there is
        self._draws.enter()
        if self._places:
            self._places.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops rounding, also when an exception leaves the block."""
        if self.presence.leave(sys._getframe(1)):  # noqa: SLF001  likewise
            _process.leave()
        if self._places:
            self._places.leave()
        if self._warns_unused and kind is None and not self.presence.is_inside():
            self._warns_unused = False
            self._warn_of_unused_rules()

    @property
    def step(self) -> int:
        """Number of the step that stochastic rounding draws its bits for, counted by the program; 0 at first.

        Setting it restarts the counting of roundings within the step: a program that sets it at the beginning of
        every training step continues after a restart with the bits it would have drawn.
        """
        return self._draws.step

    @step.setter
    def step(self, number: int) -> None:
        if not isinstance(number, int) or not 0 <= number < 1 << STEP_BITS:
            raise FormatError(f"step of a simulation must be an integer from 0 to 2^32 - 1, got {number!r}")
        self._draws.begin(number)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Asked by dynamo: it may trace what operators such as ``torch.cond`` are given, whose operations come here."""
        return is_compiling_operator()

    @contextmanager
    def writing(self, writer: GraphWriter) -> Iterator[None]:
        """For the block, roundings are written into a graph by ``writer`` instead of being done."""
        self._writer = writer
        try:
            with self:
                yield
        finally:
            self._writer = None

    def reason_against_tracing(self, *, rules: bool = False) -> str | None:
        """Why a program cannot be traced in this simulation, in words; None if it can.

        Args:
            rules: whether it is the very program that is traced, so that its modules, optimizers and operands are
                found in the trace as they are when it runs.
        """
        if self._observer or self._shadow:
            return "an observing simulation looks at numbers, which a traced program does not have"
        if self.policy.settings("accumulate"):
            return "rounded accumulation has loops of its own"
        if Granularity.PRIMITIVE in self.policy.settings("granularity"):
            return "primitive granularity takes operations apart below autograd, which cannot be traced"
        scalars = Scalars.ROUNDED in self.policy.settings("scalars")
        if scalars or (not rules and (self._places or self.policy.settings("operands"))):
            return "the policy has rules about places, operands or scalars, which are followed while a program runs"
        if any(rule.about_operands for rule in self.policy.rules):
            return "the policy has rules about parameters or inputs, which are told apart while a program runs"
        return None

    @property
    def draws(self) -> int:
        """How many stochastic roundings this thread has made in the current step."""
        return self._draws.made()

    def skip_draws(self, count: int) -> None:
        """Counts stochastic roundings that were made elsewhere, by a compiled part of the step."""
        self._draws.skip(count)

    def report(self) -> Report:
        """What an observing simulation has seen so far.

        Raises:
            FormatError: it does not observe.
        """
        return self._watching().report()

    def observer_state(self) -> dict[str, Any]:
        """What an observing simulation has counted, as plain numbers and tensors, for a checkpoint.

        Raises:
            FormatError: it does not observe.
        """
        return self._watching().state_dict()

    def load_observer_state(self, state: dict[str, Any]) -> None:
        """Goes on counting from what :meth:`observer_state` returned.

        Raises:
            FormatError: it does not observe.
        """
        self._watching().load_state_dict(state)

    def _watching(self) -> Observer:
        if self._observer is None:
            raise FormatError("this simulation does not observe; make it with simulate(format, observe=True)")
        return self._observer

    def shadow_report(self) -> ShadowReport:
        """The errors that operations added and inherited, against the float64 twins.

        Raises:
            FormatError: the simulation has no shadow.
        """
        if self._shadow is None:
            raise FormatError('this simulation has no shadow; make it with simulate(format, shadow="fp64")')
        return self._shadow.report()

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        """The float64 twin of a tensor that a simulation with a shadow has seen; else its own values in float64.

        Raises:
            FormatError: the simulation has no shadow.
        """
        if self._shadow is None:
            raise FormatError('this simulation has no shadow; make it with simulate(format, shadow="fp64")')
        return self._shadow.twin(x)

    def audit(self) -> Audit:
        """Every operation that ran, and what became of its results: nothing escapes silently."""
        from .audit import Audit  # noqa: PLC0415  pandas costs half a second

        return Audit.of(self._handlings.values(), self.unused_rules())

    def handlings(self) -> tuple[Handling, ...]:
        """What was done with every operation that ran, at every place."""
        return tuple(self._handlings.values())

    def unused_rules(self) -> list[Rule]:
        """The rules of the policy that name an operation or a module, and have matched nothing so far."""
        return unused(self.policy.rules, self._handlings.values())

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs one ATen operation and rounds what it computed."""
        # The innermost simulation is asked first, and what it calls comes to the outer ones: those pass it on.
        if this_thread.rounding or (Presence.suspendable and self.presence.is_passed_over()):
            return func(*args, **kwargs) if kwargs else func(*args)
        if types:
            if are_shapes(args, kwargs):
                return func(*args, **kwargs) if kwargs else func(*args)
            if go_first(types, args, kwargs):
                return NotImplemented  # its own operations come here, on the tensors that it stands for
        if self._places is None:
            handling = self._handlings.get(func) or self._resolve(func, func, "", "")
        else:
            key = (func, *self._places.here())
            handling = self._handlings.get(key) or self._resolve(key, *key)
        handling.calls += 1
        if handling.decomposition is not None:
            result = self._run_apart(handling, args, kwargs or {})
            if result is not NotImplemented:  # with these arguments the operation is primitive
                handling.taken_apart += 1
                return result
        this_thread.rounding = True
        try:
            return self._run(handling, args, kwargs or {})
        finally:
            this_thread.rounding = False

    def _resolve(self, key: Any, func: OpOverload | None, role: str, module: str) -> Handling:
        with self._lock:
            if key not in self._handlings:  # another thread may have been faster
                fast = self.products == "fast"
                self._handlings[key] = Handling(self.policy, func, role, module, self._draw_apart, fast_products=fast)
            return self._handlings[key]

    def _run_apart(self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs the decomposition, whose operations come back to this mode one by one."""
        assert handling.decomposition is not None
        if not handling.takes_nested and any(isinstance(x, torch.Tensor) and x.is_nested for x in args):
            return NotImplemented
        _push_mode(self)
        try:
            return handling.decomposition(*args, **kwargs)
        finally:
            _pop_mode()

    def _run(self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        func, kernel, observer, shadow = handling.operation, handling.kernel, self._observer, self._shadow
        assert func is not None
        assert kernel is not None
        twins = shadow.before(func, args, kwargs) if shadow else None
        given, given_by_name = args, kwargs
        result: Any = NotImplemented
        if handling.prepares:
            rounder = self._rounder(handling)
            result = self._operands.separate(handling, partial(self._compute, handling), args, kwargs, rounder)
            if result is NotImplemented:
                args, kwargs = self._operands.prepared(handling, args, kwargs, rounder)
        before = observer.before(func, args) if observer else None
        if result is NotImplemented:
            if handling.accumulate or self._writer:
                result = self._compute(handling, args, kwargs)
            else:
                result = kernel(*args, **kwargs) if kwargs else kernel(*args)
        if handling.settles:
            settle(result)
        moved = handling.moves is not None and handling.moves.these(args, kwargs)
        handling.moved += moved
        if (handling.rounds or observer) and not (moved and self._leaves_moves):
            self._round_results(handling, args, kwargs, result)
        if self._operands.tracks_inputs:
            self._operands.computed(result)
        if observer:
            observer.after(handling, before, args, result)
        if shadow:
            shadow.after((handling.role, handling.module, handling.name), func, twins, given, given_by_name, result)
        return result

    def _compute(self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
        """What the operation computes, with sums as the policy says."""
        assert handling.operation is not None
        assert handling.kernel is not None
        if handling.accumulate:
            assert handling.arithmetic.accumulate is not None
            rounding = handling.arithmetic.rounding if handling.rounds else Rounding.NEAREST_EVEN
            how = handling.arithmetic.accumulate, handling.sum_rounding, partial(self._draw, rounding)
            result = run_accumulated(handling.operation, args, kwargs or {}, *how)
            if result is not NotImplemented:
                handling.accumulated += 1
                return result
        if self._writer and handling.exact:  # which computes with numbers in Python
            args, kwargs = recognized(args, kwargs or {})
        return handling.kernel(*args, **(kwargs or {}))

    def _round_results(self, handling: Handling, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        how = handling.treatment
        if how.results:
            if isinstance(result, torch.Tensor):
                self._round(result, handling)
            elif isinstance(result, (tuple, list)):
                # A single returned list (foreach operations) has one entry in `viewing` for all its tensors.
                viewing = how.viewing if len(how.viewing) == len(result) else (False,) * len(result)
                for value, shares_memory in zip(result, viewing, strict=True):
                    if not shares_memory:
                        self._round_all(value, handling)
        for position, name in how.written:
            value = args[position] if position < len(args) else kwargs.get(name)
            self._round_all(value, handling)
        if how.lifts and result.untyped_storage().resizable():
            # torch.tensor(0.1) made new memory; torch.from_numpy(a) shares the caller's, which is not ours to change.
            self._round(result, handling)

    def _round_all(self, value: Any, handling: Handling) -> None:
        """Rounds a tensor, or every tensor of a list; anything else is none of our business."""
        if isinstance(value, torch.Tensor):
            self._round(value, handling)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._round_all(item, handling)

    def _round(self, x: torch.Tensor, handling: Handling) -> None:
        """Rounds ``x`` where it stands."""
        dtype = x.dtype
        if not (dtype.is_floating_point or dtype.is_complex) or x.is_meta or x._is_zerotensor():  # noqa: SLF001  the only test there is
            return  # a zero tensor (a gradient known to vanish) is all zeros, and has no memory; a meta tensor neither
        if type(x) is FakeTensor and is_shape(x):
            return
        if handling.rounds:
            self._check(x, handling)
        elif x.layout is not torch.strided or not has_memory(x):
            return
        handling.rounded += 1
        if dtype.is_complex:
            parts = torch.view_as_real(x.resolve_conj().clone())
            self._round_dense(parts, handling)
            x.copy_(torch.view_as_complex(parts))
        elif is_dense(x):
            self._round_dense(x, handling)
        else:
            rounded = x.clone(memory_format=torch.contiguous_format)
            self._round_dense(rounded, handling)
            x.copy_(rounded)

    def _round_dense(self, x: torch.Tensor, handling: Handling) -> None:
        exact = x.clone() if self._observer else None
        if handling.rounds:
            fmt, rounding = handling.arithmetic.format, handling.arithmetic.rounding
            if self._writer:
                self._writer.round_(x, fmt, rounding, self._draw(rounding))
            elif rounding is Rounding.NEAREST_EVEN:
                fmt.round_into(x, x)
            else:
                fmt.round_into(x, x, rounding, None, self._draw(rounding))
        if self._observer and exact is not None:
            self._observer.rounded(handling, exact, x)

    def _draw(self, rounding: Rounding) -> RandomBits | None:
        """The random bits of the next stochastic rounding: by seed, step, and its number within the step."""
        if rounding is not Rounding.STOCHASTIC:
            return None
        if self._writer is None and _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:
            raise FormatError(
                "random bits of a simulation inside a step that is traced would be the same in every call; compile the"
                " step in that simulation, or leave it as it is and compile parts of it"
            )
        step, number = self._draws.next()
        return RandomBits(self._random.seed, (step << STEP_BITS) + number)

    def _draw_apart(self) -> tuple[RandomBits, torch.Tensor | None]:
        """The random bits of the next rounding that a kernel does itself, and their place in a program to trace."""
        bits = self._draw(Rounding.STOCHASTIC)
        assert bits is not None
        return bits, self._writer and self._writer.place

    def _rounder(self, handling: Handling) -> Callable[[torch.Tensor, Format], torch.Tensor]:
        """How operands are rounded."""
        rounding = handling.arithmetic.rounding

        def rounded(x: torch.Tensor, fmt: Format) -> torch.Tensor:
            random = self._draw(rounding)
            if self._writer:
                return self._writer.rounded(x, fmt, rounding, random)
            return round(x, fmt, rounding=rounding, random=random)

        return rounded

    def _check(self, x: torch.Tensor, handling: Handling) -> None:
        dtype, fmt = x.dtype, handling.arithmetic.format
        if dtype in _SINGLE and fmt.carrier is torch.float64:
            raise FormatError(
                f"{fmt} cannot be simulated exactly in float32 (results would be rounded twice), but"
                f" {handling} computed {dtype}: run the program in float64, for example model.double()"
            )
        if dtype not in _CARRIERS:
            raise FormatError(
                f"inside a simulation tensors must be float32 or float64, but {handling} computed {dtype}:"
                " the simulation narrows them itself, so leave out .half(), .bfloat16() and autocast"
            )
        if x.layout is not torch.strided:
            raise FormatError(
                f"inside a simulation tensors must be dense, but {handling} computed {x.layout}: use dense ones"
                " (sparse=False of an embedding), or have a rule leave what computes with sparse ones in the carrier,"
                " such as Rule(role=['backward', 'optimizer'], format='fp32')"
            )
        if type(x) is not torch.Tensor and not has_memory(x):
            raise FormatError(
                f"{handling} computed a {type(x).__name__}, which stands for other tensors, from plain ones: what it"
                " computed for them was not seen, and cannot be rounded; leave the operation out of the simulation"
            )

    def _stepped(self, optimizer: torch.optim.Optimizer, after: bool) -> None:
        """Rounds gradients before an optimizer's step, parameters and buffers after it, where a rule says so."""
        if _at_work() is not self or this_thread.rounding:
            return
        _, matched = self.policy.arithmetic(OPTIMIZER_STEP, "", Role.OPTIMIZER)
        if not matched:
            return
        key = (OPTIMIZER_STEP, Role.OPTIMIZER.value, "")
        handling = self._handlings.get(key) or self._resolve(key, None, Role.OPTIMIZER.value, "")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if after:
            handling.calls += 1
            states = [optimizer.state.get(p, {}) for p in parameters]
            buffers = [value for state in states for name, value in state.items() if name != "step"]
            stored = [*parameters, *tree_leaves(buffers)]
        else:
            stored = [p.grad for p in parameters if p.grad is not None]
        this_thread.rounding = True
        try:
            with torch.no_grad():
                for tensor in stored:
                    if isinstance(tensor, torch.Tensor):
                        self._round_all(parts(tensor.detach()), handling)
        finally:
            this_thread.rounding = False

    def _warn_of_unused_rules(self) -> None:
        for text in complaints(self.policy, self._handlings.values()):
            warnings.warn(text, PolicyWarning, stacklevel=3)


def _remade(made_with: dict[str, Any], step: int) -> Simulation:
    simulation = Simulation(**made_with)
    simulation.step = step
    return simulation


def is_exact(operation: OpOverload) -> bool:
    """Whether the simulation that the caller runs in rounds the exact results of an operation: once, then."""
    simulation = _at_work()
    if simulation is None:
        return False
    place = simulation._places.here() if simulation._places else ("", "")  # noqa: SLF001  of this file
    key = (operation, *place) if simulation._places else operation  # noqa: SLF001
    return (simulation._handlings.get(key) or simulation._resolve(key, operation, *place)).exact  # noqa: SLF001


def _at_work() -> Simulation | None:
    """The simulation that the code of this thread runs in now."""
    stack = (mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Simulation))
    return next((mode for mode in stack if not mode.presence.is_passed_over()), None)


def _is_inside() -> bool:
    # PyTorch asks at every operation, when the mode that sees it is off the stack: which is empty then, nearly always.
    return _len_torch_dispatch_stack() > 0 and any(
        isinstance(mode, Simulation) for mode in _get_current_dispatch_mode_stack()
    )


def _presence_at_work() -> Presence | None:
    simulation = _at_work()
    return None if simulation is None else simulation.presence


_process = Process(_presence_at_work, _is_inside)


def _modules(root: torch.nn.Module | Sequence[torch.nn.Module]) -> Sequence[torch.nn.Module]:
    roots = [root] if isinstance(root, torch.nn.Module) else root
    if not isinstance(roots, (list, tuple)) or not all(isinstance(module, torch.nn.Module) for module in roots):
        raise FormatError(f"root must be a torch.nn.Module, or a list of them, got {root!r}")
    return roots


def _names_steps(policy: Policy) -> bool:
    return any(rule.matches(OPTIMIZER_STEP, "", Role.OPTIMIZER) for rule in policy.rules)


def simulate(
    format: Format | str | Policy,
    *,
    rounding: Rounding | str | None = None,
    accumulate: Accumulation | str | None = None,
    granularity: str | None = None,
    scalars: str | None = None,
    seed: int = 0,
    observe: bool = False,
    shadow: Literal["fp64"] | None = None,
    products: Literal["fast", "plain"] = "fast",
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
) -> Simulation:
    """Rounds every floating-point result of every PyTorch operation in a ``with`` block to ``format``.

    ``with simulate("e5m10"): loss = model(x).sum(); loss.backward(); optimizer.step()`` runs unmodified code as
    hardware with that format would: forward, backward, optimizer, in-place, ``out=`` and foreach operations. Values
    live in their float32 or float64 tensors (the carrier). By default each ATen operation computes in its carrier and
    its results are rounded once, to nearest-even, as PyTorch's own half-precision kernels do; sums and products are
    accumulated in the carrier, and Python scalars stay exact. See :func:`roundoff.round` for infinities, NaN,
    signed zero, overflow and underflow; real and imaginary parts are rounded each on its own. A :class:`Policy`
    chooses the arithmetic by operation, module and role.

    Views are left alone, as is what came from outside (parameters, data) until an operation computes with it; use
    ``roundoff.round`` to start from values of the format. Backward must be called inside the block to be rounded.
    Simulations nest: the innermost wins. ``simulate("fp32")`` runs the program as it is, bit for bit, whatever its
    dtypes.

    Args:
        format: a format or its name, or a policy. Formats with more than 10 significand bits need a float64 program.
        rounding: the mode; ``"stochastic"`` draws its bits from ``seed``, the step (:attr:`Simulation.step`), the
            number of the rounding within the step and the element: the same on every device, for any number of threads.
        accumulate: the accumulator of matrix products, convolutions and sums, such as ``"e5m10/32"``; see
            :class:`Accumulation`.
        granularity: ``"primitive"`` takes composite kernels (softplus, layer norm, softmax, addcdiv, fused optimizers)
            apart and rounds each step of them; ``"kernel"`` is the default.
        scalars: ``"rounded"``: Python numbers that meet tensors are rounded too; ``"exact"`` is the default.
        seed: of stochastic rounding.
        observe: count, per operation, module and role, what rounding does; see :meth:`Simulation.report`. About
            doubles the time.
        shadow: ``"fp64"``: carry a float64 twin of every value; see :meth:`Simulation.shadow_report`. Ten to
            fifty times slower than the plain program.
        products: ``"fast"``: large float32 matrix products are computed by the faster library of this machine
            (:mod:`.products`), which sums them in its own order; ``"plain"``: by PyTorch's choice.
        root: the module, or a list of modules, from which rules and reports name modules. Without it names begin at the
            outermost module that is called, which is not the whole network where a program calls parts of it
            (``vae.encode(x)``).

    Returns:
        A context manager, which may be entered again.

    Raises:
        FormatError: there is no such format or setting; inside the block, an operation computed a tensor that cannot
            carry the format (float32 for a wide format), half-precision, or sparse numbers.
    """
    settings = {"rounding": rounding, "accumulate": accumulate, "granularity": granularity, "scalars": scalars}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    return Simulation(
        replace(Policy.of(format), **given), seed=seed, observe=observe, shadow=shadow, products=products, root=root
    )
