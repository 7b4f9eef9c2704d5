"""Functions of PyTorch that are replaced while simulations are entered: fused transformers, gradient clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch.backends.mha as flags
from torch.nn.utils import clip_grad

from roundoff.locks import new_lock


@final
class FastPath:
    """Keeps PyTorch's transformer layers from their fused kernels, in threads with a simulation that has module rules.

    A fused kernel calls no module, so that rules about inner modules would have no effect. PyTorch calls
    ``torch.backends.mha.get_fastpath_enabled`` in each call of a layer; other threads get its own answer.

    Args:
        is_unwanted: whether the simulation at work in the code of this thread has rules about modules.
    """

    def __init__(self, is_unwanted: Callable[[], bool]) -> None:
        self._is_unwanted = is_unwanted
        self._lock = new_lock()
        self._count = 0
        self._original: Any = None

    def enter(self) -> None:
        """Counts a simulation with such rules that is entered; the first one replaces PyTorch's answer."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._original = flags.get_fastpath_enabled
                flags.get_fastpath_enabled = self._is_enabled

    def leave(self) -> None:
        """Counts a simulation with such rules that is left; the last one restores PyTorch's answer."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and flags.get_fastpath_enabled == self._is_enabled:  # else others have replaced it
                flags.get_fastpath_enabled = self._original

    def _is_enabled(self) -> bool:
        return not self._is_unwanted() and bool(self._original())


_CLIPPING = ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_norm_", "clip_grad_value_")


@final
class Clipping:
    """Gives the functions that clip gradients a role while simulations are entered.

    PyTorch wraps each of them in a function that disables gradients. This class replaces the wrapped function, so that
    the role holds under whatever name a program has imported it. Functions without that wrapper are unchanged.

    Args:
        in_role: makes a function run in the role.
    """

    def __init__(self, in_role: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._in_role = in_role
        self._exchanged: list[tuple[Any, Callable[..., Any]]] = []
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # (original, wrapped) by name

    def begin(self) -> None:
        """Replaces the functions."""
        for name in _CLIPPING:
            wrapper: Any = getattr(clip_grad, name, None)
            names = wrapper.__code__.co_freevars if hasattr(wrapper, "__code__") else ()
            if "func" in names:
                cell = wrapper.__closure__[names.index("func")]  # the wrapper calls the function in this variable
                plain = cell.cell_contents
                self._exchanged.append((cell, plain))
                if name not in self._wrapped or self._wrapped[name][0] is not plain:
                    self._wrapped[name] = plain, self._in_role(plain)
                cell.cell_contents = self._wrapped[name][1]

    def end(self) -> None:
        """Restores the functions."""
        while self._exchanged:
            cell, plain = self._exchanged.pop()
            cell.cell_contents = plain
