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


_CLIPPING = ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_norm_", "clip_grad_value_")


@final
class Clipping:
    """Gives the functions that clip gradients a role while simulations are entered.

    PyTorch has each of them in a wrapper that turns gradients off; what that wraps is exchanged, so that the function
    has its role by whatever name a program has imported it. Functions without that wrapper stay as they are.

    Args:
        in_role: makes a function run in the role.
    """

    def __init__(self, in_role: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._in_role = in_role
        self._exchanged: list[tuple[Any, Callable[..., Any]]] = []
        self._made: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # of which function, by name

    def begin(self) -> None:
        """Exchanges them."""
        for name in _CLIPPING:
            wrapper: Any = getattr(clip_grad, name, None)
            names = wrapper.__code__.co_freevars if hasattr(wrapper, "__code__") else ()
            if "func" in names:
                cell = wrapper.__closure__[names.index("func")]
                plain = cell.cell_contents
                self._exchanged.append((cell, plain))
                if name not in self._made or self._made[name][0] is not plain:
                    self._made[name] = plain, self._in_role(plain)
                cell.cell_contents = self._made[name][1]

    def end(self) -> None:
        """Puts them back."""
        while self._exchanged:
            cell, plain = self._exchanged.pop()
            cell.cell_contents = plain
