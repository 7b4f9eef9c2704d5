"""The fused kernels of transformers, which hide the modules inside from a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch.backends.mha as flags

from roundoff.locks import new_lock


@final
class FastPath:
    """Keeps PyTorch's transformer layers from their fused kernels, in threads with a simulation that has module rules.

    A fused kernel calls no module, so that no rule about one inside would hold. PyTorch asks
    ``torch.backends.mha.get_fastpath_enabled`` in each call; other threads get its own answer.

    Args:
        is_unwanted: whether the simulation at work in the code of this thread has rules about modules.
    """

    def __init__(self, is_unwanted: Callable[[], bool]) -> None:
        self._is_unwanted = is_unwanted
        self._lock = new_lock()
        self._count = 0
        self._found: Any = None

    def enter(self) -> None:
        """A simulation with such rules is entered."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._found = flags.get_fastpath_enabled
                flags.get_fastpath_enabled = self._is_enabled

    def leave(self) -> None:
        """Notes that a simulation with such rules is left."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and flags.get_fastpath_enabled == self._is_enabled:  # else others have replaced it
                flags.get_fastpath_enabled = self._found

    def _is_enabled(self) -> bool:
        return not self._is_unwanted() and bool(self._found())
