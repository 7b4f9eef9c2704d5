"""Gradient clipping, which is part of the optimizer: ``torch.nn.utils.clip_grad_norm_`` and its relatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch.nn.utils import clip_grad

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
