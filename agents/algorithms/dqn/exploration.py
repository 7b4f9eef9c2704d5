"""Random actions: how many, and which."""

from __future__ import annotations

from typing import Any

import torch

_RESOLUTION = 1 << 53


def share_of_random_actions(acted: int, start: float, end: float, steps: int) -> float:
    """Falls linearly from ``start`` to ``end`` in so many steps, and stays there."""
    return end if acted >= steps else start + (end - start) * (acted / steps)


def random_actions(
    count: int, action_size: int, share: float, generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    """Rows with a one in the place of a random action, or zeros where none is to be taken; (count, action).

    They are drawn as integers, which no simulation rounds: exploration is the same in every format, and no action is
    drawn more often than another one because of rounding.

    Args:
        count: rows.
        action_size: actions to choose from.
        share: of rows with a random action, in [0, 1].
        generator: also says on which device.
        dtype: of the rows.
    """
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    explores = torch.randint(_RESOLUTION, (count, 1), **options) < int(share * _RESOLUTION)
    return rows_of(torch.randint(action_size, (count, 1), **options), action_size, dtype) * explores


def rows_of(actions: torch.Tensor, action_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Actions (n, 1), by number, as rows with a one in their place."""
    return (torch.arange(action_size, device=actions.device) == actions).to(dtype)
