"""The origin of the first number that is not finite: a result of finite operands, or what a program put in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils._pytree import tree_leaves

from ..aten.outputs import writes_of
from ..policy.rules import Role
from ..presence.user_code import Line, here, text_of
from .report import Birth

if TYPE_CHECKING:
    from .watcher import Call

_MOST_LINES = 1 << 16
_MOST_GIVEN = 5


@final
class Births:
    """Finds the first result that is not finite although all operands are.

    Attributes:
        first: it; None so far.
        given: where a program itself put in numbers that are not finite, the first few: constants, masks, data.
    """

    def __init__(self) -> None:
        self.first: Birth | None = None
        self.given: list[Birth] = []
        self._forward: dict[int, Line | None] = {}  # by autograd's number of the operation

    def before(self, call: Call) -> bool:
        """Notes where the operation stands; whether what it will write over is finite."""
        if self.first is not None or call.operation is None:
            return True
        if call.place.role == Role.FORWARD and torch.is_grad_enabled():
            # Autograd has numbered the node before the operation runs.
            number = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001  the only access there is
            self._forward[number] = here()
            if len(self._forward) > _MOST_LINES:
                for old in list(self._forward)[: _MOST_LINES // 2]:
                    del self._forward[old]
        return _are_finite(_written(call))

    def look_at(self, call: Call, exact: torch.Tensor, x: torch.Tensor, *, were_finite: bool) -> None:
        """Looks at a result of which some number is not finite.

        Args:
            call: the operation.
            exact: its result before rounding.
            x: its result.
            were_finite: whether what it has written over was finite.
        """
        if self.first is not None or bool(x.isfinite().all()):
            return
        what = "NaN" if bool(x.isnan().any()) else "infinity"
        if bool((exact.isfinite() & ~x.isfinite()).any()):
            what = "overflow"
        elif (origin := _origin(call, were_finite=were_finite)) is not None:
            self._give(call, origin)
            return
        self.first = Birth(*call.place, what, self._line(call))

    def _give(self, call: Call, what: str) -> None:
        given = Birth(*call.place, what, text_of(here()))
        if len(self.given) < _MOST_GIVEN and given not in self.given and not (what == _OPERANDS and self.given):
            self.given.append(given)

    def _line(self, call: Call) -> str:
        """The line of the operation; of one of the backward pass the line of the forward operation that it derives."""
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        if call.place.role != Role.BACKWARD or node is None:
            return text_of(here())
        derived = self._forward.get(node._sequence_nr())  # noqa: SLF001  the only access there is
        return text_of(here()) if derived is None else f"{text_of(derived)} (its derivative)"


_OPERANDS = "among its operands"


def _origin(call: Call, *, were_finite: bool) -> str | None:
    """What of a call brought numbers that are not finite, in words; None if all that it was given was finite."""
    given = tree_leaves((call.args, call.kwargs))
    numbers = [number for number in given if isinstance(number, float) and not math.isfinite(number)]
    if numbers:
        return str(numbers[0])
    written = {id(x) for x in tree_leaves(_written(call))}  # operations on lists write each tensor
    read = [x for x in given if id(x) not in written]
    return None if were_finite and _are_finite(read) else _OPERANDS


def _written(call: Call) -> list[Any]:
    assert call.operation is not None
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in writes_of(call.operation)]


def _are_finite(values: list[Any]) -> bool:
    """Whether all numbers of tensors in the processor's memory are finite; of others nobody knows without waiting."""
    tensors = (x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.is_cpu and x.is_floating_point())
    return all(x.layout is not torch.strided or bool(x.isfinite().all()) for x in tensors)
