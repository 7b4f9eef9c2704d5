"""Tensors in memory: their format, and numeric coercion, which replaces values that are not finite by finite ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch

from ..formats import Format, Rounding
from ..simulate import store

if TYPE_CHECKING:
    from .config.storage import Stored


@final
@dataclass(frozen=True)
class Kept:
    """A format of tensors in memory, and the rounding to it.

    Attributes:
        format: any.
        rounding: stochastic rounding draws the random bits of the simulation.
    """

    format: Format
    rounding: Rounding = Rounding.NEAREST_EVEN

    @classmethod
    def of(cls, stored: Stored | str) -> Self:
        """Converts a value of a config, or the name of a format, with rounding to the nearest."""
        if isinstance(stored, str):
            return cls(Format.parse(stored))
        return cls(Format.parse(stored.format), Rounding.parse(stored.rounding))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the values of ``x`` after storage."""
        return store(x, self.format, self.rounding)


@torch.no_grad()
def coerce_(tensors: Iterable[torch.Tensor], largest: float) -> None:
    """Replaces NaN by 0, infinity by ``largest`` and -infinity by ``-largest``, in place; other values do not change.

    Args:
        tensors: any floating-point type, any shape.
        largest: the largest finite number of the format.

    Source:
        Low-precision SAC, Section 4.3, "Numeric coercion".
    """
    for x in tensors:
        torch.nan_to_num_(x, nan=0.0, posinf=largest, neginf=-largest)
