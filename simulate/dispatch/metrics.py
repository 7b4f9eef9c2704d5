"""A word on numbers that a program reads inside a simulation, which are rounded like all results."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ...formats import round
from ..presence.entering import SimulationWarning
from ..presence.user_code import user_level

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch._ops import OpOverload

    from ...formats import Format

_said: set[str] = set()


def reading(operation: OpOverload, fmt: Format) -> Callable[[torch.Tensor], Any]:
    """The kernel of ``operation``, which reads a number (``.item()``), with a word, once per process, on metrics.

    Of whole numbers, which count steps or hits, and of numbers that are not of the format nothing is said.

    Args:
        operation: the one.
        fmt: of results.
    """

    def read(x: torch.Tensor) -> Any:
        number = operation(x)
        if isinstance(number, float) and number % 1 and "metrics" not in _said and float(round(x, fmt)) == number:
            level, module = user_level()
            if not module.startswith("roundoff."):  # our own agents know
                _said.add("metrics")
                warnings.warn(
                    f"the number {number:.6g} is read inside a simulation, where losses, metrics and averages of them"
                    f" are rounded to {fmt} like all results; compute what you report outside of the block (said once)",
                    SimulationWarning,
                    stacklevel=level,
                )
        return number

    return read
