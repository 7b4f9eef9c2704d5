"""Whether an algorithm still computes with numbers: its weights, its outputs, and what it raised."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def damaged_weight(weights: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the first of the weights in which a number is not finite; None if all are."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def nan_among_locals(error: BaseException) -> str | None:
    """The innermost variable that held NaN where ``error`` was raised, as ``logits in forward``; None if none did.

    So an exception that a library raises because of NaN is told from any other, whatever it is called.
    """
    found = None
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            found = next(
                (f"{name} in {frame.f_code.co_name}" for name, x in frame.f_locals.items() if _is_nan(x)), found
            )
            trace = trace.tb_next
        seen = seen.__cause__ or seen.__context__
    return found


def _is_nan(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.is_floating_point() and bool(torch.isnan(x.detach()).any())
    if isinstance(x, np.ndarray):
        return bool(np.issubdtype(x.dtype, np.floating) and np.isnan(x).any())
    return isinstance(x, float) and math.isnan(x)


@final
class LastOutput:
    """The last tensor that any layer of a network has returned: what an action was chosen by.

    Args:
        network: whose layers are listened to.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        self._last: torch.Tensor | None = None
        self._hooks = [
            layer.register_forward_hook(self._note) for layer in network.modules() if not list(layer.children())
        ]

    def is_finite(self) -> bool:
        """Whether all its numbers are; an action can be chosen by NaN without being NaN."""
        return self._last is None or bool(torch.isfinite(self._last).all())

    def remove(self) -> None:
        """Listens no more."""
        for hook in self._hooks:
            hook.remove()

    def _note(self, _layer: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            self._last = output.detach()
