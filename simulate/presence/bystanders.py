"""Threads that are started inside a simulation, which does not reach into them: a warning where one computes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves

from ..aten.moves import moves_of
from ..aten.outputs import outputs
from ..native.library import bystander
from .entering import Presence, SimulationWarning, this_thread

_COPIES = ("_pin_memory", "_to_copy")


@final
class Bystander(TorchDispatchMode):
    """A mode for threads that were started inside a simulation: warns if they compute, and changes nothing.

    Args:
        presence: presence of the simulation.
    """

    supports_higher_order_operators = True

    def __init__(self, presence: Presence) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._presence = presence

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Functions of ``torch.compile`` are compiled in this thread as in any."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operation; warns at the first that computes while another thread is in the simulation."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        presence = self._presence
        if presence.warned_of_threads or this_thread.rounding or not presence.is_inside() or not _computes(func):
            return result
        if any(isinstance(x, torch.Tensor) and x.dtype.is_floating_point for x in tree_leaves(result)):
            presence.warned_of_threads = True
            warnings.warn(
                f"the thread {threading.current_thread().name} was started inside {presence}, and computes"
                f" ({func.name()}) without it: a simulation belongs to the thread that enters it; enter it in the"
                " function that the thread runs, with the same object if you like",
                SimulationWarning,
                stacklevel=3,
            )
        return result


@cache
def _computes(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001  the type of an operation
        return False
    produced = outputs(func)
    is_move = moves_of(func) is not None or func.overloadpacket.__name__ in _COPIES
    return bool(produced.results or produced.written) and not is_move


def watched(
    start: Callable[[threading.Thread], None], at_work: Callable[[], Presence | None]
) -> Callable[[threading.Thread], None]:
    """Returns a ``Thread.start`` that gives threads a :class:`Bystander` where ``at_work`` finds a simulation."""

    @wraps(start)
    def start_watched(thread: threading.Thread) -> None:
        presence = at_work()
        if presence is not None:
            _accompany(thread, Bystander(presence))
        start(thread)

    return start_watched


def _accompany(thread: threading.Thread, mode: Bystander) -> None:
    run = thread.run

    def accompanied() -> None:
        del thread.run  # the class has it
        _push_mode(mode)
        try:
            with bystander(mode):
                run()
        finally:
            _pop_mode()

    thread.run = accompanied  # type: ignore[method-assign]
