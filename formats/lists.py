"""Rounding the tensors of a list, as optimizers have them: on a device by one rounding for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .base.modes import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .base.format import Format
    from .base.modes import RandomBits

# Above it, the two copies cost more than the launches that they save.
_MOST_ELEMENTS = 1 << 22


def round_list(
    tensors: Sequence[torch.Tensor],
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    draw: Callable[[], RandomBits | None] | None = None,
) -> None:
    """Rounds every tensor where it stands; the same bits as one by one, with few launches on a device.

    Tensors on a device become one, which is rounded and copied back, if no number's rounding depends on its neighbours
    or on its place: in an elementwise format, not stochastically; up to 4 million numbers. Else each is rounded by
    itself.

    Args:
        tensors: of one dtype and device, each what :meth:`.Format.round_into` takes.
        fmt: the format.
        rounding: the mode.
        draw: called for each tensor, in order: the random bits of stochastic rounding; None for the other modes.
    """
    count = sum(x.numel() for x in tensors)
    apart = len(tensors) < 2 or tensors[0].is_cpu or not fmt.elementwise or draw is not None
    if apart or not 0 < count <= _MOST_ELEMENTS:
        for x in tensors:
            fmt.round_into(x, x, rounding, None, draw and draw())
        return
    together = torch.cat([x.reshape(-1) for x in tensors])
    fmt.round_into(together, together, rounding)
    parts = torch.split(together, [x.numel() for x in tensors])
    torch._foreach_copy_(list(tensors), [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)])
