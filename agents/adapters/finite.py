"""Whether a network still computes with numbers."""

from __future__ import annotations

from typing import Any, final

import torch


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
