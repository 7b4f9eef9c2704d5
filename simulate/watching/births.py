"""The origins of values that are not finite: results of finite operands, or what a program supplied.

The first one need not matter: a mask of -1e9 overflows in a narrow format, and softmax makes zeros of it. The one that
matters is the origin of the first value that reaches a parameter or is read by the program.
"""

from __future__ import annotations

import cmath
import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ...formats import where
from ..aten.outputs import outputs, writes_of
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
_READING = "_local_scalar_dense"

if TYPE_CHECKING:
    _Supplied = tuple[str, bool | torch.Tensor]


class _Origin(NamedTuple):
    """The place where a value that is not finite came about."""

    birth: Birth | None
    """What rounding or the operation made of finite values; None if the program supplied an infinity or NaN."""
    supplied: Birth | None = None
    """What the program supplied: an infinity, NaN, or a constant beyond the range of the format; None if nothing."""


@final
class _Memory:
    """The origins of the values in pieces of memory."""

    def __init__(self) -> None:
        self._origins: dict[int, tuple[StorageWeakRef, _Origin]] = {}
        self._purge_at = 1 << 12

    def put(self, x: torch.Tensor, origin: _Origin) -> None:
        """Notes the origin of values in the memory of ``x``."""
        storage = x.untyped_storage()
        self._origins[storage._cdata] = StorageWeakRef(storage), origin  # type: ignore[no-untyped-call]  # noqa: SLF001  its address
        if len(self._origins) > self._purge_at:
            alive = {key: entry for key, entry in self._origins.items() if not entry[0].expired()}  # type: ignore[no-untyped-call]
            self._origins, self._purge_at = alive, 2 * len(alive) + (1 << 12)

    def of(self, x: torch.Tensor) -> _Origin | None:
        """The origin that was noted for the memory of ``x``; None if there is none."""
        entry = self._origins.get(x.untyped_storage()._cdata)  # noqa: SLF001  its address
        return None if entry is None or entry[0].expired() else entry[1]  # type: ignore[no-untyped-call]


class _Current(threading.local):
    """The call that one thread is in."""

    origin: _Origin | None = None
    """The origin of its results that are not finite."""


_current = _Current()


@final
class Births:
    """Finds the result that is not finite, although all operands are, and from which other such values follow.

    Attributes:
        given: where the program itself supplied values that are not finite or beyond the range, the first few:
            constants, masks, data.
        is_final: whether such a value has reached a parameter, or has been read.
    """

    def __init__(self) -> None:
        self.given: list[Birth] = []
        self.is_final = False
        self._reached: Birth | None = None
        self._origins: dict[_Origin, None] = {}  # in order
        self._memory = _Memory()
        self._forward: dict[int, Line | None] = {}  # by autograd's number of the operation

    @property
    def first(self) -> Birth | None:
        """The origin of the value that reached a parameter or was read; if none did, the first that was computed."""
        computed = (origin.birth for origin in self._origins if origin.supplied is None)
        return self._reached if self.is_final else next(computed, None)

    def load(self, first: Birth | None, *, is_final: bool) -> None:
        """Continues from what an earlier one found."""
        self.is_final, self._reached = is_final, first
        if first is not None:
            self._origins[_Origin(first)] = None

    def before(self, call: Call) -> bool | torch.Tensor:
        """Notes where the operation stands; whether some value that it will write over is not finite."""
        _current.origin = None
        if self.is_final or call.operation is None:
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
        """Looks at a result of which some value is not finite.

        Args:
            call: the operation.
            exact: its result before rounding.
            x: its result.
            over_others: whether some value that it has written over was not finite.
        """
        if self.is_final or bool(x.isfinite().all()):
            return
        what = "NaN" if bool(x.isnan().any()) else "infinity"
        if bool((exact.isfinite() & ~x.isfinite()).any()):
            constant, is_constant = supplied_constant(call, exact, x)
            born = Birth(*call.place, "overflow", self._line(call))
            origin = _Origin(born, born._replace(what=constant) if bool(is_constant) else None)
        else:
            origin = self._source(call, over_others=bool(over_others), has_nan=what == "NaN") or _Origin(
                Birth(*call.place, what, self._line(call))
            )
        self._origins.setdefault(origin)
        if origin.supplied is not None:
            self.give(origin.supplied)
        _current.origin = origin
        if call.operation is None:  # an optimizer's step, of which nothing else is told
            self._follow([x], origin, reaches=True)

    def _source(self, call: Call, *, over_others: bool, has_nan: bool) -> _Origin | None:
        """The origin of what a call was given and is not finite; None if all of that is finite."""
        source, came = brought(call, over_others=over_others)
        if not came:
            return None
        supplied = _Origin(None, Birth(*call.place, source, text_of(here())))
        order = {origin: i for i, origin in enumerate(self._origins)}
        found = []
        for x in _floating((call.args, call.kwargs)):
            if x.is_cpu and (over_others or not bool(_are_finite(x))):
                origin = self._memory.of(x)
                if origin is not None:
                    # NaN comes from NaN, unless there are only infinities.
                    other_kind = has_nan and not bool(x.isnan().any())
                    found.append((other_kind, origin.birth is None, order.get(origin, 0), origin))
        return min(found, key=lambda one: one[:3])[3] if found else supplied

    def after(self, call: Call, result: Any) -> None:
        """Notes where the results of an operation lie that are not finite, and whether one was read."""
        origin, _current.origin = _current.origin, None
        if self.is_final or call.operation is None:
            return
        if origin is not None:
            in_optimizer = call.place.role == Role.OPTIMIZER
            self._follow([result, *_written(call)], origin, reaches=in_optimizer)
        elif call.place.operation == _READING and isinstance(result, float) and not math.isfinite(result):
            origin = self._memory.of(call.args[0])
            if origin is not None and origin.birth is not None:
                self._reach(origin)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Notes that values of a tensor were copied to one of another dtype."""
        origin = None if self.is_final else self._memory.of(source)
        if origin is not None:
            self._follow([target], origin, reaches=False)

    def _follow(self, values: list[Any], origin: _Origin, *, reaches: bool) -> None:
        """Notes the origin of tensors that are not finite; parameters among them are reached."""
        for x in _floating(values):
            if x.is_cpu and not bool(_are_finite(x)):
                self._memory.put(x, origin)
                if reaches or (x.is_leaf and x.requires_grad):
                    self._reach(origin)

    def _reach(self, origin: _Origin) -> None:
        self.is_final, self._reached = True, origin.birth

    def give(self, given: Birth) -> None:
        """Notes values that a program supplied, if they are among the first few."""
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

    def note(
        self, seen: torch.Tensor, place: Place, line: Line | None, brought: _Supplied, constant: _Supplied
    ) -> None:
        """Takes the counts of one call.

        Args:
            seen: The counts, from :meth:`~.device_counting.DeviceCounts.add`.
            place: Place of the operation.
            line: Line of the program.
            brought: What the call may have brought, from :func:`brought`.
            constant: What may have overflowed, from :func:`supplied_constant`.
        """
        source = constant[0] if constant[0] and brought[0] == _OPERANDS else brought[0]
        number = self._suspects.setdefault(_Suspect(place, line, source), len(self._suspects))
        _, _, _, infinite, nan, _, lost = seen.unbind()
        kind = where(lost > 0, 0, where(nan > 0, 1, 2))
        first = self._first.get(seen.device)
        if first is None:
            first = _First(*(torch.full((), _NONE, dtype=torch.int64, device=seen.device) for _ in _First._fields))
        found = (first.born < 0) & (infinite + nan > 0)
        came, is_constant = (
            is_so.to(seen.device, non_blocking=True) if isinstance(is_so, torch.Tensor) else is_so
            for _, is_so in (brought, constant)
        )
        came = ((lost == 0) & came) | ((lost > 0) & is_constant)
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


def supplied_constant(call: Call, exact: torch.Tensor, x: torch.Tensor) -> tuple[str, bool | torch.Tensor]:
    """The constant of a program that is beyond the range of the format, in words, and whether only it has overflowed.

    Args:
        call: the operation.
        exact: its result before rounding.
        x: its result.

    Returns:
        The first is empty if there is none. The second is a tensor on the device of the result: whether all values that
        overflow are Python numbers of the call, as in a mask.
    """
    if call.moves or (call.operation is not None and outputs(call.operation).lifts):  # a value that was not rounded yet
        return _OPERANDS, True
    largest = call.format.max
    given = [number for number in tree_leaves((call.args, call.kwargs)) if isinstance(number, int | float)]
    beyond = [number for number in given if largest is not None and math.isfinite(number) and abs(number) > largest]
    if not beyond:
        return "", False
    constant = ~exact.isfinite() | x.isfinite()
    for number in beyond:
        constant |= exact == number
    return str(beyond[0]), constant.all()


def _floating(values: Any) -> list[torch.Tensor]:
    """The tensors in some values that can hold infinities or NaN."""
    return [
        x for x in tree_leaves(values)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        and x.layout is torch.strided and not x.is_meta
        and x.dtype != torch.float4_e2m1fn_x2  # has finite numbers alone
    ]  # fmt: skip


def _some_not_finite(values: list[Any]) -> bool | torch.Tensor:
    """Whether some number of tensors is not finite; a tensor on the device of those that are not on the CPU."""
    tensors = _floating(values)
    if not all(bool(_are_finite(x)) for x in tensors if x.is_cpu):
        return True
    there = [_are_finite(x) for x in tensors if not x.is_cpu]
    return ~torch.stack([one.to(there[0].device, non_blocking=True) for one in there]).all() if there else False


def _are_finite(x: torch.Tensor) -> torch.Tensor:
    return (x.float() if x.element_size() == 1 else x).isfinite().all()  # PyTorch does not ask this of eight bits
