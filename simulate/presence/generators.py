"""Sets the random bits of stochastic rounding back with PyTorch's generators, where activations are recomputed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from .draws import Draws

_GETTER, _SETTER = "get_rng_state", "set_rng_state"


def remembered_generators() -> Callable[[], None]:
    """Returns a function that sets the generators of PyTorch, NumPy and Python back to their state at this call."""
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  the program's generator

    def restore() -> None:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])

    return restore


def seed_generators(seed: int) -> None:
    """Seeds the generators of PyTorch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the program's generator
    random.seed(seed)


@final
class Generators:
    """Puts functions in the place of ``torch.get_rng_state`` and ``set_rng_state`` while simulations are entered.

    A state remembers how many roundings the simulation at work had made. Where the state is set in a backward pass, as
    ``torch.utils.checkpoint`` does before it computes activations again, the simulation goes back there, and returns
    to its position when the checkpoint sets the previous state. States that are set elsewhere, or belong to
    another simulation, do not affect it.

    Args:
        draws: the draws of the simulation that the code of this thread runs in; None outside of simulations.
    """

    def __init__(self, draws: Callable[[], Draws | None]) -> None:
        self._draws = draws
        self._places = WeakIdKeyDictionary()
        self._replacements: dict[tuple[Any, str], tuple[Any, Any]] = {}  # (original, replacement) by module and name

    def begin(self) -> None:
        """Replaces the functions, at the entry of the first simulation of the process."""
        for module in (torch, torch.random):
            for name, make_replacement in ((_GETTER, self._make_getter), (_SETTER, self._make_setter)):
                plain = getattr(module, name)
                if (module, name) not in self._replacements or self._replacements[module, name][0] is not plain:
                    self._replacements[module, name] = plain, make_replacement(plain)
                setattr(module, name, self._replacements[module, name][1])

    def end(self) -> None:
        """Restores the functions, at the end of the last simulation."""
        for (module, name), (plain, replacement) in self._replacements.items():
            if getattr(module, name) is replacement:  # else others have put something in its place
                setattr(module, name, plain)

    def _make_getter(self, plain: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def get_rng_state() -> torch.Tensor:
            state = plain()
            draws = self._draws()
            if draws is not None:
                self._places[state] = draws, draws.mark()
            return state

        return get_rng_state

    def _make_setter(self, plain: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        def set_rng_state(new_state: torch.Tensor) -> None:
            plain(new_state)
            if torch._C._current_graph_task_id() != -1 and new_state in self._places:  # noqa: SLF001  the only access
                earlier_draws, mark = self._places[new_state]
                draws = self._draws()
                if draws is not None and draws is earlier_draws:  # else nothing would restore the position later
                    draws.go_to(mark)

        return set_rng_state
