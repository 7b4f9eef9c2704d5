"""Numeric coercion: replaces values that are not finite by finite ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch


@torch.no_grad()
def coerce_(tensors: Iterable[torch.Tensor], largest: float) -> None:
    """Replaces NaN by 0, infinity by ``largest`` and -infinity by ``-largest``, in place; all else stays as it is.

    Args:
        tensors: any floating-point type, any shape.
        largest: the largest finite number of the format.

    Source:
        Low-precision SAC, Section 4.3, "Numeric coercion".
    """
    for x in tensors:
        torch.nan_to_num_(x, nan=0.0, posinf=largest, neginf=-largest)
