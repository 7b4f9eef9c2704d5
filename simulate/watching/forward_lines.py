"""The lines of a program where operations were called, of backward operations the lines that they derive."""

from __future__ import annotations

import torch

from ..policy.rules import Role
from ..presence.user_code import Line, here, text_of
from .watcher import Call

_MOST_LINES = 1 << 16


class ForwardLines:
    """Remembers the lines of forward operations, by autograd's number of the operation."""

    def __init__(self) -> None:
        self._lines: dict[int, Line | None] = {}

    def note(self, call: Call) -> None:
        """Notes the line of an operation that is about to run."""
        if call.place.role == Role.FORWARD and torch.is_grad_enabled():
            # Autograd has numbered the node before the operation runs.
            number = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001  the only access there is
            self._lines[number] = here()
            if len(self._lines) > _MOST_LINES:
                for old in list(self._lines)[: _MOST_LINES // 2]:
                    del self._lines[old]

    def of(self, call: Call) -> str:
        """The line of the operation; of one of the backward pass the line of the forward operation that it derives."""
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        if call.place.role != Role.BACKWARD or node is None:
            return text_of(here())
        derived = self._lines.get(node._sequence_nr())  # noqa: SLF001  the only access there is
        return text_of(here()) if derived is None else f"{text_of(derived)} (its derivative)"
