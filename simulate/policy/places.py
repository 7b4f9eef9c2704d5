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

    def send_to_native(self) -> None:
        """Sends the innermost role to the C++ part."""
        set_role(OPERATION_ROLES.index(Role(self.roles[-1])) if self.roles else -1)


_declared = _DeclaredRoles()


class PlaceFollower(Protocol):
    """Receives the beginnings and ends of modules, parts and steps in each thread: the C++ part."""

    def module_begins(self, path: str, depth: int) -> None:
        """Handles the beginning of a module's forward pass, inside of ``depth`` modules."""

    def module_ends(self, depth: int) -> None:
        """Handles the end of a module's forward pass, inside of ``depth`` modules."""

    def part_begins(self, path: str, depth: int) -> None:
        """Handles the beginning of a part inside of ``depth`` modules; ``path``: of the innermost one in the part."""

    def part_changes(self, path: str, backward_pass: int) -> None:
        """Handles a change of the part: its place as in :meth:`here`, and the backward pass that it began in, or -1."""

    def optimizers_change(self, count: int) -> None:
        """Handles a change of the number of optimizer steps that the thread is in."""

    def forget_threads(self) -> None:
        """Forgets the state of all threads."""


@contextmanager
def in_role(role: Role | str) -> Iterator[None]:
    """Gives the operations in a block a role that PyTorch does not reveal. Also a decorator.

    ``with roundoff.in_role("averages"): ema.lerp_(weight, 0.005)`` gives a moving average its role, so that rules of
    policies, observers and blame can treat it separately. Steps of ``torch.optim`` optimizers have the role
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
        _declared.send_to_native()
        yield
    finally:
        _declared.roles.pop()
        _declared.send_to_native()


class _ProgramPart(NamedTuple):
    """A part of the program that a thread is in."""

    path: str
    depth: int
    """The number of enclosing modules and parts."""
    backward_pass: int
    """The backward pass that it began in; -1: none."""


class _ThreadPlaces(threading.local):
    """The modules, parts and optimizer steps that one thread is in."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        # The backward pass that each of these modules began in; -1: in none.
        self.passes: list[int] = []
        self.parts: list[_ProgramPart] = []
        self.optimizers = 0
        # From autograd's sequence number `starts[i]` on, operations were made by the module `owners[i]`.
        self.starts: list[int] = []
        self.owners: list[str] = []


# The attributes where wrappers keep the module that they call
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_REPLICATORS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class ModuleTracker:
    """Follows modules and optimizers through PyTorch's global hooks, between :meth:`enter` and :meth:`leave`.

    A module's path begins at the outermost module that is being called, or at one of ``roots``. It skips
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
        # The module that a path begins at, if it is not a root: replaced when an enclosing module is called.
        self._path_starts: WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = WeakKeyDictionary()
        for root in roots:
            self._name(root, "", permanent=True)
        self._handles: list[RemovableHandle] = []
        self._entry_count = 0
        self._lock = new_lock()
        self._thread = _ThreadPlaces()
        self._latest_owners: tuple[list[int], list[str]] = ([], [])
        self._follower: PlaceFollower | None = None

    @property
    def part(self) -> str:
        """The part of the program that this thread is in."""
        return self._thread.parts[-1].path if self._thread.parts else ""

    @property
    def place_outside_modules(self) -> str:
        """The place of operations outside of modules: the part that this thread is in, if any."""
        return place_in(self.part, "")

    @property
    def module_paths(self) -> list[str]:
        """The paths of all named modules, called or not."""
        return sorted(set(self._names.values()))

    def set_follower(self, follower: PlaceFollower) -> None:
        """Sets the follower, which receives all beginnings and ends; to be called before it is entered."""
        self._follower = follower

    def is_entered(self) -> bool:
        """Whether any thread has entered it."""
        return self._entry_count > 0

    def enter(self) -> None:
        """Starts following modules and optimizers."""
        _declared.send_to_native()  # the C++ part may have been loaded within a block
        with self._lock:
            self._entry_count += 1
            if self._entry_count == 1:
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
        """Undoes :meth:`enter`."""
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
            self._entry_count -= 1
            if self._entry_count == 0:
                for handle in self._handles:
                    handle.remove()
                self._thread = _ThreadPlaces()
                if self._follower:
                    self._follower.forget_threads()

    def here(self) -> tuple[str, str]:
        """Returns the role and the path of the innermost module of the current operation.

        The path begins with the class of the outermost module. Outside of modules, in optimizers and in blocks
        :func:`in_role` it is the part's place, empty outside of parts. A closure that a step calls is a forward and a
        backward pass, as everywhere.
        An operation of the backward pass belongs to the module of its forward operation, and to its part, if no part
        has begun in this pass. Operations that a checkpoint repeats in a module are part of the forward pass.
        """
        thread = self._thread
        outside = self.place_outside_modules if thread.parts else ""
        if _declared.roles:
            return _declared.roles[-1], outside
        if thread.optimizers:
            return Role.OPTIMIZER.value, outside
        module = thread.modules[-1] if thread.modules else ""
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  -1 outside of the autograd engine
        if backward == -1 or (thread.passes and thread.passes[-1] == backward):
            # Outside of the backward pass, or in a module that a checkpoint calls again in this one.
            return Role.FORWARD.value, module
        if module != outside:
            return Role.BACKWARD.value, module
        owner = self._owner(outside)
        if thread.parts and thread.parts[-1].backward_pass == backward:
            owner = place_in(self.part, split(owner)[1])
        return Role.BACKWARD.value, owner

    def _owner(self, default: str) -> str:
        """Returns the path of the module that ran the forward operation of the current backward operation."""
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        number = _NO_FORWARD if node is None else node._sequence_nr()  # noqa: SLF001  the only access there is
        if number == _NO_FORWARD:
            return default
        # On a GPU, autograd has its own threads; they use the records of the thread that ran the forward pass.
        starts, owners = (self._thread.starts, self._thread.owners) if self._thread.starts else self._latest_owners
        position = bisect_right(starts, number) - 1
        return owners[position] if position >= 0 else default

    def _record_owner(self) -> None:
        """Records that the innermost module makes the operations from autograd's next sequence number on."""
        thread = self._thread
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # noqa: SLF001  the only access
        owner = thread.modules[-1] if thread.modules else ""
        self._latest_owners = (thread.starts, thread.owners)
        if thread.starts and thread.starts[-1] == number:
            thread.owners[-1] = owner  # the previous owner has made no differentiable operation
            return
        thread.starts.append(number)
        thread.owners.append(owner)
        if len(thread.starts) > _MOST_CHANGES:
            # Forgets the oldest half; operations of such old graphs belong to no module.
            del thread.starts[: _MOST_CHANGES // 2], thread.owners[: _MOST_CHANGES // 2]

    def _module_begins(self, module: torch.nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return  # dynamo leaves the hook out of the program
        modules = self._thread.modules
        if self._thread.optimizers and not _is_in_step():
            self._thread.optimizers = 0  # an exception has ended the step, which calls no hook
            self._report_optimizers()
        if module not in self._names:
            self._name(module, split(modules[-1])[1] if modules else "")
        modules.append(place_in(self.part, self._names[module]))
        self._thread.passes.append(torch._C._current_graph_task_id())  # noqa: SLF001  the only access there is
        if self._on_module:
            self._on_module(module)
        self._record_owner()
        if self._follower:
            self._follower.module_begins(modules[-1], len(modules) - 1)

    def _name(self, module: torch.nn.Module, enclosing: str, *, permanent: bool = False) -> None:
        """Names a module and its submodules, also the ones that were called and named before it."""
        prefix = "module." if isinstance(module, _REPLICATORS) else ""
        root = enclosing or type(_inner_module(module)).__name__
        members = dict(module.named_modules())
        contents = set(members.values())
        for name, child in members.items():
            start = self._path_starts.get(child)
            if child in self._names and (start is None or start() not in contents):
                continue  # named from another root
            path = ".".join(part for part in name.removeprefix(prefix).split(".") if part and part not in _WRAPPERS)
            if prefix and name == prefix[:-1]:
                path = ""
            self._names[child] = f"{root}.{path}" if path else root
            if not permanent and not enclosing:
                self._path_starts[child] = weakref.ref(module)
            else:
                self._path_starts.pop(child, None)

    def _module_ends(self, _module: torch.nn.Module, _arguments: Any, _result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        thread = self._thread
        in_part = thread.parts[-1].depth + 1 if thread.parts else 0
        if len(thread.modules) > in_part:  # else the simulation was entered inside of this module
            thread.modules.pop()
            thread.passes.pop()
            self._record_owner()
            if self._follower:
                self._follower.module_ends(len(thread.modules))

    def part_begins(self, name: str) -> None:
        """Begins a part of the program in this thread, which the innermost module continues in."""
        thread, depth = self._thread, len(self._thread.modules)
        part = inside_of(self.part, name)
        thread.parts.append(_ProgramPart(part, depth, torch._C._current_graph_task_id()))  # noqa: SLF001  the only access
        thread.modules.append(place_in(part, split(thread.modules[-1])[1] if thread.modules else ""))
        thread.passes.append(thread.passes[-1] if thread.passes else -1)
        self._record_owner()
        if self._follower:
            self._follower.part_begins(thread.modules[-1], depth)
            self._report_part(self._follower)

    def part_ends(self) -> None:
        """Ends the part that began last in this thread."""
        thread = self._thread
        depth = thread.parts.pop().depth
        del thread.modules[depth:], thread.passes[depth:]
        self._record_owner()
        if self._follower:
            self._follower.module_ends(depth)
            self._report_part(self._follower)

    def _report_part(self, follower: PlaceFollower) -> None:
        parts = self._thread.parts
        follower.part_changes(self.place_outside_modules, parts[-1].backward_pass if parts else -1)

    def _optimizer_begins(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Handles the beginning of a step; returns its arguments with the closure wrapped, if it has one."""
        changed = None
        if _is_closure(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": self._wrap_closure(optimizer, kwargs["closure"])}
        elif len(args) > 1 and _is_closure(args[1]):  # behind the optimizer itself
            changed = (args[0], self._wrap_closure(optimizer, args[1]), *args[2:]), kwargs
        elif self._on_step:
            self._on_step(optimizer, False)
        self._thread.optimizers += 1
        self._report_optimizers()
        return changed

    def _wrap_closure(self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a closure that a step calls, so that its operations belong to no step but to the passes that it runs.

        ``on_step`` sees its gradients before the step. An exception in it ends the step.
        """

        @wraps(closure)
        def call_outside(*args: Any, **kwargs: Any) -> Any:
            count, self._thread.optimizers = self._thread.optimizers, 0
            self._report_optimizers()
            result = closure(*args, **kwargs)
            if self._on_step:
                self._on_step(optimizer, False)
            self._thread.optimizers = count
            self._report_optimizers()
            return result

        return call_outside

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._thread.optimizers = max(0, self._thread.optimizers - 1)
        self._report_optimizers()
        if self._on_step:
            self._on_step(optimizer, True)

    def _report_optimizers(self) -> None:
        if self._follower:
            self._follower.optimizers_change(self._thread.optimizers)


_STEP_CODE = torch.optim.Optimizer.profile_hook_step(len).__code__  # of PyTorch's wrapper of every optimizer step


def _is_in_step() -> bool:
    """Whether this thread is in the step of an optimizer now."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the fastest access to the stack
    while frame and frame.f_code is not _STEP_CODE:
        frame = frame.f_back
    return frame is not None


def _is_closure(argument: Any) -> bool:
    """Whether an argument of a step is a function that recomputes the loss and the gradients."""
    return callable(argument) and not isinstance(argument, (torch.nn.Module, type))


def _inner_module(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module inside of its wrappers."""
    names = (*_WRAPPERS, "module") if isinstance(module, _REPLICATORS) else _WRAPPERS
    inner = next((getattr(module, name) for name in names if name in module._modules), None)  # noqa: SLF001  the only access
    return module if inner is None else _inner_module(inner)
