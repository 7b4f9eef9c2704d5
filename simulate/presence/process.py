"""Process-wide changes while any simulation is active, made on the first entry and undone on the last exit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks as _step_hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils.hooks import RemovableHandle

from roundoff.locks import new_lock

from .bystanders import watched
from .entering import Presence
from .generators import Generators
from .torch_compile import EagerInside, is_compiling
from .torch_functions import Clipping


class _Flags(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that keeps PyTorch's flags set while any simulation is entered; it is on no stack."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))  # pragma: no cover

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # the stance tells dynamo what to run eagerly


@final
class ProcessState:
    """The process-wide settings of PyTorch and Python, set while any simulation is entered.

    - PyTorch's flags for whether modes exist. Each mode restores the state at its entry, so that they would stay set
      forever after modes that were left in another order than they were entered.
    - The stance of ``torch.compile``.
    - The start of threads: with a :class:`Bystander` if a simulation is active.
    - A hook before the steps of optimizers.
    - The states of random generators, which also record the position of the simulation's random bits.
    - The role of gradient clipping.

    Args:
        at_work: returns the presence of the simulation that is active in this thread, if any.
        is_inside: whether a simulation is entered in this thread, active or not.
        recording: returns the backend that a watcher of the active simulation compiles with, if any.
        before_step: called with an optimizer before each of its steps, in any thread.
        generators: the handling of random number generators.
        clipping: the handling of gradient clipping.
    """

    def __init__(
        self,
        at_work: Callable[[], Presence | None],
        is_inside: Callable[[], bool],
        recording: Callable[[], Any],
        before_step: Callable[[torch.optim.Optimizer], None],
        generators: Generators,
        clipping: Clipping,
    ) -> None:
        self._generators, self._clipping = generators, clipping
        self._at_work = at_work
        self._before_step = before_step
        self._hook: RemovableHandle | None = None
        self._stance = EagerInside(is_inside, recording)
        self._lock = new_lock()
        self._count = 0
        self._flags = _Flags()  # type: ignore[no-untyped-call]
        self._original_start = threading.Thread.start
        self._watched_start: Any = None

    def enter(self) -> None:
        """Counts a simulation that is entered; the first one makes the changes."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                (self._begin_without_dynamo if is_compiling() else self._begin)()

    def _on_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._before_step(optimizer)

    def leave(self) -> None:
        """Counts a simulation that is left; the last one undoes the changes."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and not sys.is_finalizing():
                (self._end_without_dynamo if is_compiling() else self._end)()

    # While torch.compile runs a partly compiled function, it refuses a change of its stance unless dynamo is disabled;
    # elsewhere disabling dynamo would double the time of entering.
    @torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001  torch.compiler's imports it at once
    def _begin_without_dynamo(self) -> None:
        self._begin()

    @torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001  the only access there is
    def _end_without_dynamo(self) -> None:
        self._end()

    def _begin(self) -> None:
        self._flags.__enter__()  # type: ignore[no-untyped-call]
        _pop_mode()  # the flags stay set without the mode on the stack
        self._stance.begin()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._on_step)
        else:
            _step_hooks[self._hook.id] = self._on_step
        if self._watched_start is None or self._original_start is not threading.Thread.start:
            self._original_start = threading.Thread.start
            self._watched_start = watched(self._original_start, self._at_work)
        threading.Thread.start = self._watched_start  # type: ignore[method-assign]
        self._generators.begin()
        self._clipping.begin()

    def _end(self) -> None:
        self._generators.end()
        self._clipping.end()
        if self._hook is not None:
            self._hook.remove()
        if threading.Thread.start is self._watched_start:  # else others have wrapped it
            threading.Thread.start = self._original_start  # type: ignore[method-assign]
        self._stance.end()
        _push_mode(self._flags)
        self._flags.__exit__(None, None, None)  # type: ignore[no-untyped-call]
