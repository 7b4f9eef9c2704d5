"""First weights a little beside those that were drawn: what a run is like that differs by chance alone."""

from __future__ import annotations

import torch


def move_by_ulps(weights: torch.Tensor, ulps: int, generator: torch.Generator) -> None:
    """Moves each weight by units in its last place, away from 0 or towards it as a coin says, in place.

    A weight of 0 stays, and so do infinities and NaN. One that is next to another binade moves by units of the binade
    it goes through; one may go through subnormals, and stops at 0.

    Args:
        weights: float32, contiguous, any shape.
        ulps: how many units, at most 2^20.
        generator: of the coins, on the CPU; it draws one for each weight.
    """
    away = torch.randint(2, weights.shape, generator=generator, dtype=torch.int32).to(weights.device)
    bits = weights.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    moved = (magnitude + ulps * (2 * away - 1)).clamp_(min=0)
    moved = torch.where((magnitude == 0) | ~weights.isfinite(), magnitude, moved)
    bits.copy_(moved | (bits & -0x80000000))
