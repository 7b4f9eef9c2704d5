"""Runs any PyTorch computation in simulated arithmetic, through a mode that PyTorch calls for every operation."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import torch
from torch._C import _get_dispatch_mode, _get_dispatch_stack_at, _len_torch_dispatch_stack, _TorchDispatchModeKey
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from roundoff.pytorch.versions import warn_where_unchecked

from ...formats import Format, FormatError
from ..aten.products import reason_against
from ..aten.wrappers import are_plain, are_shapes, go_first
from ..policy.carriers import on_this_gpu
from ..policy.parts import NO_PARTS
from ..policy.places import ModuleTracker, in_role
from ..policy.policy import Policy
from ..policy.rules import OPTIMIZER_STEP, Finfo, Granularity, Islands, Role, Rule
from ..presence.bystanders import Bystander
from ..presence.decorating import decorated
from ..presence.draws import Draws, RepeatedViews
from ..presence.entering import Presence, this_thread
from ..presence.finfo import FinfoAnswers, FormatInfo
from ..presence.generators import Generators
from ..presence.process import ProcessState
from ..presence.torch_compile import is_compiling_operator, unseen
from ..presence.torch_functions import Clipping, FastPath
from ..watching.last_read import LastRead
from ..watching.watcher import Watcher
from .complaints import Float64Notice, PolicyWarning, complaints, unreached_products, unused
from .graph_writer import GraphWriter
from .named_blocks import NamedBlocks
from .narrow_tensors import NARROW, takes_narrow
from .plan import OperationPlan
from .results import names_steps, round_stored
from .running import Runner
from .witness import Witness, cost_counter

if TYPE_CHECKING:
    from ..cost.counter import CostCounter
    from .audit import Audit


_F = TypeVar("_F", bound="Callable[..., Any]")
_DETACH = torch.ops.aten.detach.default
"""Autograd calls the mode with this operation outside of PyTorch's dispatcher. The C++ part, which relies on the
dispatcher's state, would count it for outer simulations."""


class Simulation(Witness):
    """The mode that :func:`simulate` makes; entered with ``with``, any number of times.

    Args:
        policy: the arithmetic of each operation.
        seed: seed of stochastic rounding.
        observe: whether to count the effects of rounding.
        shadow: ``"fp64"`` to carry a float64 twin of every value.
        cost: whether to count products, bytes and memory.
        products: ``"plain"`` leaves all matrix products to PyTorch, in float32; see :func:`simulate`.
        warn_unused: whether the first end of the block warns of rules that matched nothing, and of matrix products and
            convolutions that no rule or accumulator reached.
        root: the modules where module names in rules begin, one or a list; see :func:`simulate`.
        leave_moves: whether exact moves keep their values unrounded.
        watchers: watchers in addition to ``observe``, ``shadow`` and ``cost``.
        stored: formats that :func:`store` is called with; compiled programs also have these floats as data.

    Attributes:
        policy: the current policy.
        changes: the number of times that the policy or the watchers were set.
        watchers: objects called for every operation.
        places: follows modules and optimizers, where policy or watchers ask for them; else None.
        products: ``"fast"`` where large matrix products take the faster library of this machine, else ``"plain"``.
        last_read: the values that the program has read last, if they were not finite.
        whole: remembers which memory holds integers that are not rounded; None where the policy rounds them all.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        policy: Policy | Format | str,
        *,
        seed: int = 0,
        observe: bool = False,
        shadow: Literal["fp64"] | None = None,
        cost: bool = False,
        products: Literal["fast", "plain"] = "fast",
        warn_unused: bool = True,
        root: torch.nn.Module | Sequence[torch.nn.Module] = (),
        leave_moves: bool = False,
        watchers: Sequence[Watcher] = (),
        stored: Sequence[Format] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        warn_where_unchecked()
        # A pickled copy has the first; modules and watchers belong to this process.
        self._arguments: dict[str, Any] = {
            "policy": policy, "seed": seed, "observe": observe, "shadow": shadow, "cost": cost, "products": products,
            "warn_unused": warn_unused, "leave_moves": leave_moves, "stored": tuple(stored),
        }  # fmt: skip
        self._other_arguments: dict[str, Any] = {"root": root, "watchers": watchers}
        self.last_read = LastRead()
        if products not in ("fast", "plain"):
            raise FormatError(f'products must be "fast" or "plain", got {products!r}')
        policy = Policy.of(policy)
        self._draws = Draws(seed, policy.random_bits)  # stays when the policy changes, as the step does
        assert isinstance(policy.format, Format)
        self._initial_watchers = self.watch(policy.format, watchers, observe=observe, shadow=shadow, cost=cost)
        roots = [root] if isinstance(root, torch.nn.Module) else root
        if not isinstance(roots, (list, tuple)) or not all(isinstance(module, torch.nn.Module) for module in roots):
            raise FormatError(f"root must be a torch.nn.Module, or a list of them, got {root!r}")
        self._roots = roots
        self.changes = 0
        self.presence = Presence(self)
        self._set_policy(policy)
        self._set_warnings(policy)

    def _set_warnings(self, policy: Policy) -> None:
        """Decides which warnings the blocks under a policy can give."""
        islands = Islands.EXACT in policy.settings("islands")
        primitive = policy.granularity == Granularity.PRIMITIVE
        # A policy of only a format applies to everything, so nothing in it can miss.
        has_targets = policy.rules or policy.accumulate or islands or policy.exact_in or policy.only_in or primitive
        self._warns_unused = self._arguments["warn_unused"] and bool(has_targets)
        self._float64_notice = Float64Notice(self) if self._arguments["warn_unused"] and policy.rounds_nothing else None

    def _set_policy(self, policy: Policy) -> None:
        """Creates the objects that a policy needs."""
        assert isinstance(policy.format, Format)
        self.policy, self.format = policy, policy.format
        self._draws.width = policy.random_bits
        self.changes += 1
        self._names_steps = names_steps(policy)
        # Follows modules only where something depends on them, since hooks cost time in every call of a module.
        needs_places = policy.depends_on_place or bool(self._initial_watchers) or self._names_steps
        observed = self._initial_watchers or self._arguments["stored"]
        self._has_effect = bool(observed) or policy != Policy.of("fp32")
        self._rounds_stochastically = "stochastic" in policy.settings("rounding")
        self._narrows_products = self._arguments["products"] == "fast" and self._has_effect
        is_fast = self._narrows_products and reason_against() is None
        self.products = "fast" if is_fast else "plain"
        self._runner = Runner(
            self, policy, self._draws, self._initial_watchers, readers=self._readers,
            fast_products=is_fast, narrow_products=self._narrows_products, leave_moves=self._arguments["leave_moves"],
        )  # fmt: skip
        operands = self._runner.operands
        on_module = self._on_module if operands.follows or self._initial_watchers else None
        self.places = ModuleTracker(self._on_step, self._roots, on_module, policy.within) if needs_places else None
        self._plans, self.whole = self._runner.plans, self._runner.whole
        self.watchers = self._runner.watchers
        functions = policy.exact_in or policy.only_in
        self._named_blocks = NamedBlocks(self, unrounded, at_work) if functions else None

    def change(self, policy: Policy | Format | str) -> None:
        """Replaces the policy by another with the same format of results; it holds from the next entry on.

        The step and the counts are kept. :meth:`plans`, :meth:`audit`, :meth:`unused_rules` describe the new policy.

        Raises:
            FormatError: a thread is inside of its block, or the format of results differs.
        """
        if self.presence.is_inside():
            raise FormatError("a simulation cannot change its policy inside of its block: leave it before")
        new_policy = Policy.of(policy)
        if new_policy.format != self.format:
            raise FormatError(f"a simulation in {self.format} cannot change to {new_policy.format}: make another one")
        self._arguments["policy"] = new_policy
        self._set_policy(new_policy)
        self._set_warnings(new_policy)

    def __repr__(self) -> str:
        dtypes = [str(dtype).removeprefix("torch.") for dtype in self.narrow_products]
        on_gpu = f", on this GPU in {' or '.join(dtypes)}" if dtypes else ""
        return f"Simulation({self.policy}, products={self.products}{on_gpu})"

    @property
    def formats(self) -> list[Format]:
        """The formats of results, wherever they are computed, and of stored values, each once."""
        return list(dict.fromkeys(self.named_formats))

    @property
    def named_formats(self) -> list[Format]:
        """The formats of results and of stored values, in the order of the settings and with duplicates."""
        results = (self.policy.format, *(rule.format for rule in self.policy.rules))
        return [*(fmt for fmt in results if isinstance(fmt, Format)), *self._arguments["stored"]]

    @property
    def narrow_products(self) -> tuple[torch.dtype, ...]:
        """The dtypes that this machine's GPU uses to multiply operands rounded to narrow formats; see :func:`simulate`.

        Empty without a GPU, where the policy rounds no operands, and with ``products="plain"``.
        """
        return on_this_gpu(self.policy) if self._narrows_products else ()

    def __reduce__(self) -> Any:
        """Describes a copy: the same arguments and step, without ``root``, ``watchers`` and any counts."""
        return _remade, (self._arguments, self.step)

    def __enter__(self) -> Self:
        """Starts rounding in this thread; simulations entered before it pause until it is left."""
        # The caller's frame tells blocks in generators and coroutines, which can be suspended, from others.
        (self._named_blocks.enter if self._named_blocks else self.enter_block)(sys._getframe(1))  # noqa: SLF001  the only access
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops rounding, also when an exception leaves the block."""
        (self._named_blocks.leave if self._named_blocks else self.leave_block)(sys._getframe(1))  # noqa: SLF001  the only access
        if self._warns_unused and kind is None and not self.presence.is_inside():
            self._warns_unused = False
            names, parts = (self.places.module_paths, self.places.parts) if self.places else ((), NO_PARTS)
            called_functions = self._named_blocks.called if self._named_blocks else ()
            for text in complaints(self.policy, self._runner.counted_plans(), names, called_functions, parts):
                warnings.warn(text, PolicyWarning, stacklevel=2)

    def enter_block(self, frame: FrameType) -> None:
        """Starts rounding in this thread, in the block that ``frame`` enters, whatever functions the policy names."""
        # fp32 has no effect, except inside of another simulation, which it pauses.
        needed = self._has_effect or any(
            isinstance(mode, (Simulation, Bystander)) for mode in _get_current_dispatch_mode_stack()
        )
        if self.watchers and _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None:
            raise FormatError(
                "a simulation inside a step that is traced cannot observe, count or carry twins: a program would not"
                " repeat it; leave out observe, shadow, cost and watchers"
            )
        if self.presence.is_shared() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise FormatError(
                "on a GPU, where autograd has threads of its own, a simulation cannot be shared by several threads:"
                " make one for each"
            )
        if needed:
            self._runner.take_shortcut(self.places)
        if self.places:
            self.places.enter()  # first, since it may raise, and then nothing else is to be undone
        if needed:
            _process.enter()
            if self.policy.finfo == Finfo.FORMAT:
                _finfo.enter()
            if self.policy.names_modules:
                _fast_path.enter()
            _repeated_views.enter(stochastic=self._rounds_stochastically)
        self.presence.enter(frame, push=needed)
        self._draws.enter()
        if self._float64_notice:
            self._float64_notice.enter()

    def leave_block(self, frame: FrameType) -> None:
        """Undoes :meth:`enter_block`."""
        if self._float64_notice:
            self._float64_notice.leave()
        if self.presence.leave(frame):  # whether it was needed when the block was entered
            _process.leave()
            if self.policy.finfo == Finfo.FORMAT:
                _finfo.leave()
            if self.policy.names_modules:
                _fast_path.leave()
            _repeated_views.leave()
        if self.places:
            self.places.leave()

    def __call__(self, function: _F) -> _F:
        """Wraps ``function``: each call runs in a new simulation with the settings of this one, at step 0.

        It is meant for ``@roundoff.simulate("e5m10")``. Stochastic rounding draws the same bits in every call. A
        generator or coroutine is simulated while it runs, and does not affect its caller while it is suspended.

        Raises:
            FormatError: it is a class, or an asynchronous generator; or this simulation counts or carries twins, and
                their reports would be inaccessible.
        """
        if requested := self.requested_reports():
            raise FormatError(
                f"a decorated function makes a simulation for each call, so that nobody could ask for the report of"
                f" {' and '.join(requested)}: write `with roundoff.simulate(...) as simulation:` around the call"
            )
        return decorated(function, self._new_simulation, "roundoff.simulate(...)")

    def _new_simulation(self) -> Simulation:
        """Makes a simulation with the same settings and no counts; only the first one warns of unused rules."""
        simulation = Simulation(**self._arguments, **self._other_arguments)
        simulation.presence.warned_of_generators = True  # suspended generators are intended here
        simulation._warns_unused, self._warns_unused = self._warns_unused, False
        return simulation

    @property
    def step(self) -> int:
        """The number of the step that stochastic rounding draws its bits for, set by the program; 0 at first.

        Setting it restarts the counting of roundings within the step: a program that sets it at the beginning of
        every training step continues after a restart with the bits it would have drawn.
        """
        return self._draws.step

    @step.setter
    def step(self, number: int) -> None:
        self._draws.begin(number)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells dynamo that it may trace functions, of operators such as ``torch.cond`` or for a watcher's backend."""
        return is_compiling_operator() or _backend() is not None

    @contextmanager
    def writing(self, writer: GraphWriter) -> Iterator[None]:
        """Within the block, ``writer`` writes roundings into a graph instead of computing them.

        The block begins at step 0, before any stochastic rounding; its end restores the step and the number of draws.
        """
        step, draws = self.step, self.draws
        self._runner.results.writer = writer
        try:
            self.step = 0
            with self, self._runner.without_shortcut():
                yield
        finally:
            self._runner.results.writer = None
            self.step = step
            self.advance(draws=draws)

    @property
    def draws(self) -> int:
        """The number of stochastic roundings that this thread has made in the current step."""
        return self._draws.made()

    @property
    def place(self) -> torch.Tensor:
        """This thread's place in the random bits of stochastic rounding, for compiled programs: ``Draws.place``."""
        self._draws.enter()  # as an eager step does
        return self._draws.place

    def advance(self, steps: int = 0, draws: int = 0) -> None:
        """Counts the steps that a compiled program has begun, and its stochastic roundings in the last of them."""
        if steps:
            self.step += steps
        self._draws.skip(draws)

    def count_cost(self) -> CostCounter:
        """Counts costs from the next entry on, as ``cost=True`` does from the beginning.

        Returns:
            The counter, which can be configured further, and reset.

        Raises:
            FormatError: a thread is inside of its block.
        """
        if self.presence.is_inside():
            raise FormatError("a simulation cannot begin to count inside of its block: say so before")
        if self.counter is None:
            self.counter = cost_counter()
            self._initial_watchers = [*self._initial_watchers, self.counter]
            self._set_policy(self.policy)
        return self.counter

    def audit(self) -> Audit:
        """Returns a table of every operation that ran and the treatment of its results."""
        from .audit import Audit  # noqa: PLC0415  pandas costs half a second

        plans = self._runner.counted_plans()
        return Audit.of(plans, self.unused_rules(), unreached_products(self.policy, plans))

    def plans(self) -> tuple[OperationPlan, ...]:
        """Returns the plans of all operations that ran, at every place."""
        return self._runner.counted_plans()

    def unused_rules(self) -> list[Rule]:
        """Returns the rules of the policy that name an operation or a module, and have matched nothing so far."""
        return unused(self.policy.rules, self._runner.counted_plans())

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs one ATen operation and rounds its results."""
        # PyTorch calls the innermost simulation first. Its operations reach the outer ones, which do not round them
        # (`rounding`). A suspended generator's simulation is passed over.
        if this_thread.rounding or (Presence.suspendable and self.presence.is_passed_over()):
            return func(*args, **(kwargs or {}))
        if types and not are_plain(types):
            if are_shapes(args, kwargs):
                return func(*args, **(kwargs or {}))
            if go_first(types, args, kwargs):
                return NotImplemented  # the wrapper's operations on its inner tensors call this mode again
        # Looks up the plan for the operation at its place
        if self.places is None:
            plan = self._plans.get(func) or self._runner.resolve(func, func, "", "")
        else:
            key = (func, *self.places.here())
            plan = self._plans.get(key) or self._runner.resolve(key, *key)
        # Runs it, with float16 and bfloat16 tensors in float32
        if plan.widens and takes_narrow(args, kwargs or {}):
            return self._runner.run_widened(plan, args, kwargs or {})
        if plan.spares and not this_thread.carrying:  # islands: no narrow tensor takes part
            plan = self._runner.island_plan(plan)
        if func is _DETACH and _len_torch_dispatch_stack():
            return self._runner.run_detach(plan, args, kwargs or {})
        return self._runner.run(plan, args, kwargs or {})

    def _readers(self) -> list[LastRead]:
        """Returns the recorders of read values of all active simulations: the program also reads inside ``exact()``."""
        modes = (mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Simulation))
        return [self.last_read, *(mode.last_read for mode in modes if mode is not self)]

    def _on_step(self, optimizer: torch.optim.Optimizer, after: bool) -> None:
        """Rounds what a step of an optimizer stores, if a rule says so; called before and after each step."""
        if at_work() is not self or this_thread.rounding:  # hooks of optimizers are global
            return
        if after:
            for watcher in self.watchers:
                watcher.optimizer_stepped(optimizer)
        if not self._names_steps:
            return
        # A whole step has a plan like an operation, so that rules, counts and the audit treat it alike.
        role = Role.OPTIMIZER.value
        key = (OPTIMIZER_STEP, role, self.places.place_outside_modules if self.places else "")
        plan = self._runner.resolve(key, None, *key[1:])
        plan.outcome.calls += after
        round_stored(optimizer, plan, self._runner.results, self.watchers, after=after)

    def _on_module(self, module: torch.nn.Module) -> None:
        """Passes a module that begins its forward pass on to the operands and the watchers."""
        operands = self._runner.operands
        if operands.follows:
            operands.note_module(module)
        for watcher in self.watchers:
            watcher.module_begins(module)


Simulation.__torch_dispatch__ = unseen(Simulation.__torch_dispatch__)  # type: ignore[method-assign]


def _remade(arguments: dict[str, Any], step: int) -> Simulation:
    simulation = Simulation(**arguments)
    simulation.step = step
    return simulation


def unrounded() -> Simulation:
    """Makes a simulation that pauses all others, and does not warn of suspended generators."""
    simulation = Simulation("fp32", warn_unused=False)
    simulation.presence.warned_of_generators = True
    return simulation


def at_work() -> Simulation | None:
    """Returns the simulation that the current code of this thread runs in."""
    for index in range(_len_torch_dispatch_stack() - 1, -1, -1):  # from the innermost mode
        mode = _get_dispatch_stack_at(index)
        if isinstance(mode, Simulation) and not (Presence.suspendable and mode.presence.is_passed_over()):
            return mode
    return None


def _is_inside() -> bool:
    """Whether a simulation is entered in this thread; dynamo calls this four times in ``Optimizer.zero_grad``."""
    for index in range(_len_torch_dispatch_stack()):  # noqa: SIM110  any() takes twice as long
        if isinstance(_get_dispatch_stack_at(index), Simulation):
            return True
    return False


def _backend() -> Any:
    """Returns the backend that a watcher of the active simulation compiles with, if any, and if nothing is rounded."""
    simulation = at_work()
    if simulation is None or not simulation.watchers:  # asked several times in a step: the usual answer comes first
        return None
    backend = next((watcher.backend for watcher in simulation.watchers if watcher.backend), None)
    return backend if simulation.policy.rounds_nothing else None


def _presence_at_work() -> Presence | None:
    simulation = at_work()
    return None if simulation is None else simulation.presence


def _before_step(optimizer: torch.optim.Optimizer) -> None:
    """Marks an optimizer's step counts as integers in the active simulation; they may come from outside of it."""
    simulation = None if this_thread.rounding else at_work()
    if simulation is not None and simulation.whole is not None:
        simulation.whole.note_steps(optimizer)


def _draws_at_work() -> Draws | None:
    simulation = at_work()
    return None if simulation is None else simulation._draws  # noqa: SLF001  of this class's own module


# One for the process: each replaces functions of PyTorch while some thread is inside of a simulation.
_clipping = Clipping(in_role(Role.OPTIMIZER))
_process = ProcessState(_presence_at_work, _is_inside, _backend, _before_step, Generators(_draws_at_work), _clipping)


def _finfo_at_work(dtype: torch.dtype) -> FormatInfo | None:
    """Returns the ``torch.finfo`` of the active simulation for a dtype; None if PyTorch's own applies."""
    simulation = None if this_thread.rounding else at_work()
    if simulation is None or simulation.policy.finfo != Finfo.FORMAT or simulation.format.native:
        return None
    if simulation.policy.islands == Islands.EXACT and dtype not in NARROW:  # float32 is not simulated there
        return None
    return FormatInfo.of(simulation.format, dtype)


_finfo = FinfoAnswers(_finfo_at_work)


def _names_modules() -> bool:
    """Whether the simulation that the code of this thread runs in has rules about modules."""
    simulation = None if this_thread.rounding else at_work()
    return simulation is not None and simulation.policy.names_modules


_fast_path = FastPath(_names_modules)
_repeated_views = RepeatedViews()
