"""The place of an operation in a program: its role, and the module it belongs to, in a part of the program."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from roundoff.locks import new_lock

from ...formats import FormatError
from ..native.library import set_role
from ..presence.entering import SimulationWarning
from .parts import Parts, follow, inside_of, place_in, split, unfollow
from .rules import OPERATION_ROLES, Role

_MOST_CHANGES = 1 << 17
_NO_FORWARD = (1 << 64) - 1  # sequence number of nodes that accumulate gradients


class _DeclaredRoles(threading.local):
    """The roles of the :func:`in_role` blocks that the code of one thread is in."""

    def __init__(self) -> None:
        self.roles: list[str] = []

    def tell(self) -> None:
        """Tells the C++ of it."""
        set_role(OPERATION_ROLES.index(Role(self.roles[-1])) if self.roles else -1)


_declared = _DeclaredRoles()


class PlaceFollower(Protocol):
    """Follows the modules, parts and steps that begin and end in each thread, alongside Python."""

    def module_begins(self, path: str, around: int) -> None:
        """A module with this path begins its forward pass, inside of this number of modules."""

    def module_ends(self, around: int) -> None:
        """A module has ended its forward pass, inside of this number of modules."""

    def part_begins(self, path: str, around: int) -> None:
        """A part begins inside of this number of modules; the innermost one continues under this path."""

    def part(self, path: str, begun: int) -> None:
        """The thread is in this part, as the path of a module; ``begun``: in this backward pass, or in none, -1."""

    def optimizers(self, count: int) -> None:
        """The thread is in this number of optimizers' steps."""

    def left(self) -> None:
        """Everything told about any thread no longer holds."""


@contextmanager
def in_role(role: Role | str) -> Iterator[None]:
    """Operations in the block have this role, which nothing else could tell of them. Also a decorator.

    ``with roundoff.in_role("averages"): ema.lerp_(weight, 0.005)`` gives a moving average its role, so that rules of
    policies, observers and blame tell it from the forward pass. Steps of ``torch.optim`` optimizers have the role
    ``optimizer`` anyway; work of an optimizer between its steps, such as a change of scale, gets it by this. Of nested
    blocks the innermost one counts. Outside of simulations it does nothing.

    Args:
        role: ``forward``, ``backward``, ``optimizer``, ``averages`` or ``targets``.

    Raises:
        FormatError: the role does not exist.
    """
    if role not in OPERATION_ROLES:
        raise FormatError(f"role must be {', '.join(OPERATION_ROLES)}, got {role!r}")
    _declared.roles.append(Role(role).value)
    try:
        _declared.tell()
        yield
    finally:
        _declared.roles.pop()
        _declared.tell()


class _ProgramPart(NamedTuple):
    """A part of the program that a thread is in."""

    path: str
    around: int
    """The number of modules, and parts, around it."""
    begun: int
    """The backward pass where it began; -1: outside."""


class _Thread(threading.local):
    """The modules, parts and optimizers at work in one thread."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        # The backward pass in which each of these modules began; -1: in none.
        self.passes: list[int] = []
        self.parts: list[_ProgramPart] = []
        self.optimizers = 0
        # From autograd's sequence number `starts[i]` on, operations were made by the module `owners[i]`.
        self.starts: list[int] = []
        self.owners: list[str] = []


# Modules that stand around another one, under this name, and do what it does.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_REPLICATING = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class ModuleTracker:
    """Follows modules and optimizers through PyTorch's global hooks, between :meth:`enter` and :meth:`leave`.

    A module's path begins at the outermost module that was called around it, or at one of ``roots``. It skips
    wrappers such as ``torch.compile``'s.

    Args:
        on_step: called with an optimizer before its step, or after the closure that the step calls (False), and after
            the step (True).
        roots: modules where the names of their parts begin, whatever is called first.
        on_module: called with each module that begins its forward pass.
        within: patterns of functions that are parts of the program; see :func:`.parts.part`.

    Attributes:
        parts: parts that the program was in.
    """

    def __init__(
        self,
        on_step: Callable[[torch.optim.Optimizer, bool], None] | None = None,
        roots: Sequence[torch.nn.Module] = (),
        on_module: Callable[[torch.nn.Module], None] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self._on_step = on_step
        self._on_module = on_module
        self._within = within
        self.parts = Parts(set(), set())
        self._names: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        # Of modules that were called before anything around them: which one their path begins at.
        self._begins: WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = WeakKeyDictionary()
        for root in roots:
            self._name(root, "", for_good=True)
        self._handles: list[RemovableHandle] = []
        self._inside = 0
        self._lock = new_lock()
        self._thread = _Thread()
        self._latest: tuple[list[int], list[str]] = ([], [])
        self._follower: PlaceFollower | None = None

    @property
    def part(self) -> str:
        """The part of the program that this thread is in."""
        return self._thread.parts[-1].path if self._thread.parts else ""

    @property
    def alone(self) -> str:
        """The place outside of modules that this thread is in: the part, if any."""
        return place_in(self.part, "")

    @property
    def known(self) -> list[str]:
        """The paths of the modules that it has a name for, whether they were called or not."""
        return sorted(set(self._names.values()))

    def be_followed(self, follower: PlaceFollower) -> None:
        """Makes ``follower`` receive all beginnings and ends from now on; before it is entered."""
        self._follower = follower

    def is_entered(self) -> bool:
        """Whether it follows what some thread does."""
        return self._inside > 0

    def enter(self) -> None:
        """Begins to follow modules and optimizers."""
        _declared.tell()  # the C++ may have been loaded inside of a block
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._handles = [
                    register_module_forward_pre_hook(self._module_begins),
                    # also when forward raises, so that a failed call does not leave its module behind
                    register_module_forward_hook(self._module_ends, always_call=True),
                    register_optimizer_step_pre_hook(self._optimizer_begins),
                    register_optimizer_step_post_hook(self._optimizer_ends),
                ]
        try:
            follow(self, self._within)
        except BaseException:
            self._leave()
            raise

    def leave(self) -> None:
        """Ends what :meth:`enter` began."""
        if not unfollow(self):
            warnings.warn(
                "another profiler has begun inside of the simulation, and has ended what follows calls of functions:"
                " rules within functions held until then",
                SimulationWarning,
                stacklevel=4,
            )
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for handle in self._handles:
                    handle.remove()
                self._thread = _Thread()
                if self._follower:
                    self._follower.left()

    def here(self) -> tuple[str, str]:
        """The role and the path of the innermost module of the operation that runs now.

        The path begins with the class of the outermost module; it is empty outside of modules, in optimizers and where
        the program says the role. A closure that a step calls is a forward and a backward pass, as everywhere.
        An operation of the backward pass belongs to the module of the operation that it derives, and to its part, if
        no part has begun in this pass. Operations that a checkpoint repeats in a module are part of the forward pass.
        """
        thread = self._thread
        alone = self.alone if thread.parts else ""
        if _declared.roles:
            return _declared.roles[-1], alone
        if thread.optimizers:
            return Role.OPTIMIZER.value, alone
        inside = thread.modules[-1] if thread.modules else ""
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  -1 outside of the autograd engine
        if backward == -1 or (thread.passes and thread.passes[-1] == backward):
            # Outside of the backward pass, or in a module that a checkpoint calls again in this one.
            return Role.FORWARD.value, inside
        if inside != alone:
            return Role.BACKWARD.value, inside
        owner = self._owner(alone)
        if thread.parts and thread.parts[-1].begun == backward:
            owner = place_in(self.part, split(owner)[1])
        return Role.BACKWARD.value, owner

    def _owner(self, otherwise: str) -> str:
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        number = _NO_FORWARD if node is None else node._sequence_nr()  # noqa: SLF001  the only access there is
        if number == _NO_FORWARD:
            return otherwise
        # On a GPU, autograd works in threads of its own, for the thread that ran the forward pass.
        starts, owners = (self._thread.starts, self._thread.owners) if self._thread.starts else self._latest
        position = bisect_right(starts, number) - 1
        return owners[position] if position >= 0 else otherwise

    def _owner_changes(self) -> None:
        thread = self._thread
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # noqa: SLF001  the only access
        owner = thread.modules[-1] if thread.modules else ""
        self._latest = (thread.starts, thread.owners)
        if thread.starts and thread.starts[-1] == number:
            thread.owners[-1] = owner  # the one before made nothing that can be derived
            return
        thread.starts.append(number)
        thread.owners.append(owner)
        if len(thread.starts) > _MOST_CHANGES:
            # Graphs older than so many calls are forgotten: their operations will belong to no module.
            del thread.starts[: _MOST_CHANGES // 2], thread.owners[: _MOST_CHANGES // 2]

    def _module_begins(self, module: torch.nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return  # dynamo leaves the hook out of the program
        modules = self._thread.modules
        if self._thread.optimizers and not _in_a_step():
            self._thread.optimizers = 0  # an exception has ended the step, of which no hook is told
            self._tell_optimizers()
        if module not in self._names:
            self._name(module, split(modules[-1])[1] if modules else "")
        modules.append(place_in(self.part, self._names[module]))
        self._thread.passes.append(torch._C._current_graph_task_id())  # noqa: SLF001  the only access there is
        if self._on_module:
            self._on_module(module)
        self._owner_changes()
        if self._follower:
            self._follower.module_begins(modules[-1], len(modules) - 1)

    def _name(self, module: torch.nn.Module, around: str, *, for_good: bool = False) -> None:
        """Names a module and its contents, also submodules that were named from a part called earlier."""
        prefix = "module." if isinstance(module, _REPLICATING) else ""
        root = around or type(_inner_module(module)).__name__
        members = dict(module.named_modules())
        inside = set(members.values())
        for name, child in members.items():
            begins = self._begins.get(child)
            if child in self._names and (begins is None or begins() not in inside):
                continue  # the part of another root
            path = ".".join(part for part in name.removeprefix(prefix).split(".") if part and part not in _WRAPPED)
            if prefix and name == prefix[:-1]:
                path = ""
            self._names[child] = f"{root}.{path}" if path else root
            if not for_good and not around:
                self._begins[child] = weakref.ref(module)
            else:
                self._begins.pop(child, None)

    def _module_ends(self, _module: torch.nn.Module, _arguments: Any, _result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        thread = self._thread
        in_part = thread.parts[-1].around + 1 if thread.parts else 0
        if len(thread.modules) > in_part:  # else entered inside of this module
            thread.modules.pop()
            thread.passes.pop()
            self._owner_changes()
            if self._follower:
                self._follower.module_ends(len(thread.modules))

    def part_begins(self, name: str) -> None:
        """A part of the program begins, in this thread: the module around it continues in the part."""
        thread, around = self._thread, len(self._thread.modules)
        part = inside_of(self.part, name)
        thread.parts.append(_ProgramPart(part, around, torch._C._current_graph_task_id()))  # noqa: SLF001  the only access
        thread.modules.append(place_in(part, split(thread.modules[-1])[1] if thread.modules else ""))
        thread.passes.append(thread.passes[-1] if thread.passes else -1)
        self._owner_changes()
        if self._follower:
            self._follower.part_begins(thread.modules[-1], around)
            self._tell_part(self._follower)

    def part_ends(self) -> None:
        """The part that began last in this thread ends."""
        thread = self._thread
        around = thread.parts.pop().around
        del thread.modules[around:], thread.passes[around:]
        self._owner_changes()
        if self._follower:
            self._follower.module_ends(around)
            self._tell_part(self._follower)

    def _tell_part(self, follower: PlaceFollower) -> None:
        parts = self._thread.parts
        follower.part(self.alone, parts[-1].begun if parts else -1)

    def _optimizer_begins(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step begins; returns its arguments, if one of them is a closure."""
        changed = None
        if _is_closure(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": self._outside_of_steps(optimizer, kwargs["closure"])}
        elif len(args) > 1 and _is_closure(args[1]):  # behind the optimizer itself
            changed = (args[0], self._outside_of_steps(optimizer, args[1]), *args[2:]), kwargs
        elif self._on_step:
            self._on_step(optimizer, False)
        self._thread.optimizers += 1
        self._tell_optimizers()
        return changed

    def _outside_of_steps(self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure that a step calls; its operations do not belong to the step: a forward pass and a backward pass.

        The gradients that it has computed are those before the step. Where it raises an exception, the step is over.
        """

        @wraps(closure)
        def called(*args: Any, **kwargs: Any) -> Any:
            around, self._thread.optimizers = self._thread.optimizers, 0
            self._tell_optimizers()
            result = closure(*args, **kwargs)
            if self._on_step:
                self._on_step(optimizer, False)
            self._thread.optimizers = around
            self._tell_optimizers()
            return result

        return called

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._thread.optimizers = max(0, self._thread.optimizers - 1)
        self._tell_optimizers()
        if self._on_step:
            self._on_step(optimizer, True)

    def _tell_optimizers(self) -> None:
        if self._follower:
            self._follower.optimizers(self._thread.optimizers)


_STEP = torch.optim.Optimizer.profile_hook_step(len).__code__  # that of what stands around the step of each optimizer


def _in_a_step() -> bool:
    """Whether this thread is in the step of an optimizer now."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the way to the stack that costs least
    while frame and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame is not None


def _is_closure(argument: Any) -> bool:
    """Whether an argument of a step is a function that computes the loss and the gradients again."""
    return callable(argument) and not isinstance(argument, (torch.nn.Module, type))


def _inner_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of its wrappers."""
    names = (*_WRAPPED, "module") if isinstance(module, _REPLICATING) else _WRAPPED
    inner = next((getattr(module, name) for name in names if name in module._modules), None)  # noqa: SLF001  the only access
    return module if inner is None else _inner_module(inner)
