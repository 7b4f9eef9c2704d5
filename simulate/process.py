"""What entering simulations changes for the whole process, from the first that is entered to the last that is left."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from roundoff.simulate.bystanders import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.simulate.mode import Simulation


class _Flags(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Entered once for all simulations of the process; sees no operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))  # pragma: no cover


@final
class Process:
    """What PyTorch and Python keep per process: set while any simulation is entered.

    - PyTorch's flags that say whether there are modes. Each mode restores what it found, so that they would stay set
      for good after modes that were left in another order than they were entered.
    - The stance of ``torch.compile``: its functions run eagerly. Those that ran inside of a mode would never be
      compiled again, and those with ``fullgraph=True`` would raise.
    - How threads are started: with a :class:`Bystander` where a simulation is at work.

    Args:
        at_work: the simulation that the code of this thread runs in, if any.
    """

    def __init__(self, at_work: Callable[[], Simulation | None]) -> None:
        self._at_work = at_work
        self._lock = threading.Lock()
        self._count = 0
        self._flags = _Flags()  # type: ignore[no-untyped-call]
        self._stance: Any = None
        self._start: Any = None

    def enter(self) -> None:
        """A simulation is entered."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._begin()

    def leave(self) -> None:
        """A simulation is left."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and not sys.is_finalizing():
                self._end()

    # Where torch.compile runs a function of which parts are compiled, it would refuse to be set.
    @torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001  torch.compiler's imports it at once
    def _begin(self) -> None:
        self._flags.__enter__()  # type: ignore[no-untyped-call]
        _pop_mode()
        self._stance = torch.compiler.set_stance("force_eager")
        self._plain = threading.Thread.start
        self._start = watched(self._plain, self._at_work)
        threading.Thread.start = self._start  # type: ignore[method-assign]

    @torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001  likewise
    def _end(self) -> None:
        if threading.Thread.start is self._start:  # else others have wrapped it
            threading.Thread.start = self._plain  # type: ignore[method-assign]
        self._stance.__exit__(None, None, None)
        _push_mode(self._flags)
        self._flags.__exit__(None, None, None)  # type: ignore[no-untyped-call]
