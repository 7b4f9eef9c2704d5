"""The origin of the first number that is not finite: a result of finite operands, or what a program put in."""

from __future__ import annotations

import cmath
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch.utils._pytree import tree_leaves

from ...formats import where
from ..aten.outputs import writes_of
from ..policy.rules import Role
from ..presence.user_code import Line, here, text_of
from .report import Birth

if TYPE_CHECKING:
    from .watcher import Call, Place

_MOST_LINES = 1 << 16
_MOST_GIVEN = 5
_KINDS = ("overflow", "NaN", "infinity")
_NONE = -1
_OPERANDS = "among its operands"


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

    def before(self, call: Call) -> bool | torch.Tensor:
        """Notes where the operation stands; whether some number that it will write over is not finite."""
        if self.first is not None or call.operation is None:
            return False
        if call.place.role == Role.FORWARD and torch.is_grad_enabled():
            # Autograd has numbered the node before the operation runs.
            number = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001  the only access there is
            self._forward[number] = here()
            if len(self._forward) > _MOST_LINES:
                for old in list(self._forward)[: _MOST_LINES // 2]:
                    del self._forward[old]
        return _some_not_finite(_written(call))

    def look_at(self, call: Call, exact: torch.Tensor, x: torch.Tensor, *, over_others: bool | torch.Tensor) -> None:
        """Looks at a result of which some number is not finite.

        Args:
            call: the operation.
            exact: its result before rounding.
            x: its result.
            over_others: whether some number that it has written over was not finite.
        """
        if self.first is not None or bool(x.isfinite().all()):
            return
        what = "NaN" if bool(x.isnan().any()) else "infinity"
        if bool((exact.isfinite() & ~x.isfinite()).any()):
            what = "overflow"
        else:
            source, came = brought(call, over_others=over_others)
            if came:
                self.give(Birth(*call.place, source, text_of(here())))
                return
        self.first = Birth(*call.place, what, self._line(call))

    def give(self, given: Birth) -> None:
        """Notes numbers that a program put in, if they are among the first few."""
        if len(self.given) < _MOST_GIVEN and given not in self.given and not (given.what == _OPERANDS and self.given):
            self.given.append(given)

    def _line(self, call: Call) -> str:
        """The line of the operation; of one of the backward pass the line of the forward operation that it derives."""
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        if call.place.role != Role.BACKWARD or node is None:
            return text_of(here())
        derived = self._forward.get(node._sequence_nr())  # noqa: SLF001  the only access there is
        return text_of(here()) if derived is None else f"{text_of(derived)} (its derivative)"


class _Suspect(NamedTuple):
    """The place of a result that may be the first that is not finite, and what may have brought it, in words."""

    place: Place
    line: Line | None
    source: str


class _First(NamedTuple):
    """The first result of one device that is not finite, and the first that a program put in, as codes there."""

    born: torch.Tensor
    given: torch.Tensor


class DeviceBirths:
    """Finds the first result on a device that is not finite: known there at once, and here when asked for."""

    def __init__(self) -> None:
        self._suspects: dict[_Suspect, int] = {}
        self._first: dict[torch.device, _First] = {}

    def note(self, seen: torch.Tensor, place: Place, line: Line | None, source: str, came: bool | torch.Tensor) -> None:
        """Takes the counts of one call.

        Args:
            seen: they, from :meth:`~.device_counting.DeviceCounts.add`.
            place: of the operation.
            line: of the program.
            source: what the call may have brought, from :func:`brought`.
            came: whether it did.
        """
        number = self._suspects.setdefault(_Suspect(place, line, source), len(self._suspects))
        _, _, _, infinite, nan, _, lost = seen.unbind()
        kind = where(lost > 0, 0, where(nan > 0, 1, 2))
        first = self._first.get(seen.device)
        if first is None:
            first = _First(*(torch.full((), _NONE, dtype=torch.int64, device=seen.device) for _ in _First._fields))
        found = (first.born < 0) & (infinite + nan > 0)
        came = (lost == 0) & (came.to(seen.device, non_blocking=True) if isinstance(came, torch.Tensor) else came)
        code = kind + len(_KINDS) * number
        self._first[seen.device] = _First(
            torch.where(found & ~came, code, first.born),
            torch.where(found & came & (first.given < 0), code, first.given),
        )

    def read(self) -> tuple[Birth | None, list[Birth]]:
        """The first one, None if there is none, and what programs put in first; waits for the devices."""
        suspects = list(self._suspects)
        born: list[Birth] = []
        given: list[Birth] = []
        for first in self._first.values():
            if (code := int(first.born)) != _NONE:
                place, line, _ = suspects[code // len(_KINDS)]
                born.append(Birth(*place, _KINDS[code % len(_KINDS)], text_of(line)))
            if (code := int(first.given)) != _NONE:
                place, line, source = suspects[code // len(_KINDS)]
                given.append(Birth(*place, source, text_of(line)))
        return (born[0] if born else None), given


def brought(call: Call, *, over_others: bool | torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """What of a call may have brought numbers that are not finite, in words, and whether it did.

    Args:
        call: the operation.
        over_others: whether some number that it has written over was not finite.

    Returns:
        The second is a tensor on the device on which operands lie, since nothing waits for it.
    """
    if call.operation is None:  # the step of an optimizer rounds what is there, and computes nothing
        return _OPERANDS, True
    given = tree_leaves((call.args, call.kwargs))
    numbers = [number for number in given if isinstance(number, float | complex) and not cmath.isfinite(number)]
    if numbers:
        return str(numbers[0]), True
    written = {id(x) for x in tree_leaves(_written(call))}  # operations on lists write each tensor
    read = _some_not_finite([x for x in given if id(x) not in written])
    if isinstance(read, torch.Tensor) and isinstance(over_others, torch.Tensor):  # a copy between two devices
        read = read.to(over_others.device, non_blocking=True)
    return _OPERANDS, over_others | read


def _written(call: Call) -> list[Any]:
    assert call.operation is not None
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in writes_of(call.operation)]


def _some_not_finite(values: list[Any]) -> bool | torch.Tensor:
    """Whether some number of tensors is not finite; a tensor on the device of those that are not on the CPU."""
    tensors = [
        x for x in tree_leaves(values)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        and x.layout is torch.strided and not x.is_meta
        and x.dtype != torch.float4_e2m1fn_x2  # has finite numbers alone
    ]  # fmt: skip
    if not all(bool(_are_finite(x)) for x in tensors if x.is_cpu):
        return True
    there = [_are_finite(x) for x in tensors if not x.is_cpu]
    return ~torch.stack([one.to(there[0].device, non_blocking=True) for one in there]).all() if there else False


def _are_finite(x: torch.Tensor) -> torch.Tensor:
    return (x.float() if x.element_size() == 1 else x).isfinite().all()  # PyTorch does not ask this of eight bits
