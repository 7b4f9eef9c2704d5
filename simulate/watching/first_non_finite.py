"""The origins of values that are not finite: results of finite operands, or values supplied by a program.

The first need not matter: a mask of -1e9 overflows in a narrow format, and softmax turns it into zeros. The origin that
matters is the origin of the first value that reaches a parameter or is read by the program.
"""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple, TypeVar, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...formats import where
from ..policy.rules import Role
from ..presence.user_code import Line, here, text_of
from .report import Birth
from .sources import (
    OPERANDS,
    Supplied,
    all_finite,
    any_nonfinite,
    find_constant,
    find_source,
    float_tensors,
    overwritten,
)
from .watcher import Call, Place

_MOST_SUPPLIED = 5
_Note = TypeVar("_Note")
_KINDS = ("overflow", "NaN", "infinity")
_NO_CODE = -1  # codes are the index of a suspect times the number of kinds, plus the kind
_READ_OPERATION = "_local_scalar_dense"


class Origin(NamedTuple):
    """The origin of a value that is not finite."""

    birth: Birth | None
    """The result of rounding or the operation on finite values; None if the program supplied an infinity or NaN."""
    supplied: Birth | None = None
    """The supplied value: an infinity, NaN, or a constant beyond the range of the format; None if nothing."""


@final
class MemoryNotes(Generic[_Note]):
    """Notes about the values in pieces of memory, such as their origin."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[StorageWeakRef, _Note]] = {}
        self._purge_at = 1 << 12  # grows with the living notes, so that purging costs a constant share

    def put(self, x: torch.Tensor, note: _Note) -> None:
        """Makes a note of the values in the memory of ``x``."""
        storage = x.untyped_storage()
        self._notes[storage._cdata] = StorageWeakRef(storage), note  # type: ignore[no-untyped-call]  # noqa: SLF001  its address
        if len(self._notes) > self._purge_at:
            remaining = {key: entry for key, entry in self._notes.items() if not entry[0].expired()}  # type: ignore[no-untyped-call]
            self._notes, self._purge_at = remaining, 2 * len(remaining) + (1 << 12)

    def of(self, x: torch.Tensor) -> _Note | None:
        """Returns the note about the memory of ``x``; None if there is none."""
        if not self._notes or x.layout is not torch.strided:
            return None
        entry = self._notes.get(x.untyped_storage()._cdata)  # noqa: SLF001  its address
        return None if entry is None or entry[0].expired() else entry[1]  # type: ignore[no-untyped-call]


@final
class FirstNonFinite:
    """Finds the first result that is not finite although all operands are, and the non-finite values of the program.

    Attributes:
        supplied: the first few places where the program itself supplied values that are not finite or beyond the range:
            constants, masks, data.
        is_final: whether such a value has reached a parameter, or has been read.
    """

    def __init__(self) -> None:
        self.supplied: list[Birth] = []
        self.is_final = False
        self._reached: Birth | None = None
        self._origins: dict[Origin, None] = {}  # in order
        self._memory: MemoryNotes[Origin] = MemoryNotes()
        self._lines = ForwardLines()

    @property
    def first(self) -> Birth | None:
        """The origin of the value that reached a parameter or was read; if none did, the first that was computed."""
        computed = (origin.birth for origin in self._origins if origin.supplied is None)
        return self._reached if self.is_final else next(computed, None)

    def load(self, first: Birth | None, *, is_final: bool) -> None:
        """Restores the result of an earlier instance."""
        self.is_final, self._reached = is_final, first
        if first is not None:
            self._origins[Origin(first)] = None

    def before(self, call: Call) -> bool | torch.Tensor:
        """Notes the line of an operation; returns whether some value that it will overwrite is not finite."""
        if self.is_final or call.operation is None:
            return False
        self._lines.note(call)
        return any_nonfinite(overwritten(call))

    def find_origin(
        self, call: Call, exact: torch.Tensor, x: torch.Tensor, *, old_nonfinite: bool | torch.Tensor
    ) -> Origin | None:
        """Finds the origin of a result that may not be finite.

        Args:
            call: The operation.
            exact: Its result before rounding.
            x: Its result.
            old_nonfinite: Whether some value that it has overwritten was not finite.

        Returns:
            The origin, for :meth:`after`; None if the result is finite.
        """
        if self.is_final or bool(x.isfinite().all()):
            return None
        value_kind = "NaN" if bool(x.isnan().any()) else "infinity"
        if bool((exact.isfinite() & ~x.isfinite()).any()):  # rounding has made it
            constant, is_constant = find_constant(call, exact, x)
            birth = Birth(*call.place, "overflow", self._lines.of(call))
            origin = Origin(birth, birth._replace(what=constant) if bool(is_constant) else None)
        else:
            source = self._find_operand_origin(call, old_nonfinite=bool(old_nonfinite), has_nan=value_kind == "NaN")
            origin = source or Origin(Birth(*call.place, value_kind, self._lines.of(call)))
        self._origins.setdefault(origin)
        if origin.supplied is not None:
            self.add_supplied(origin.supplied)
        if call.operation is None:  # an optimizer's step, which has no call of `after`
            self._follow([x], origin, reaches=True)
        return origin

    def _find_operand_origin(self, call: Call, *, old_nonfinite: bool, has_nan: bool) -> Origin | None:
        """Returns the origin of a call's operands that are not finite; None if all are finite."""
        source, is_from_operands = find_source(call, old_nonfinite=old_nonfinite)
        if not is_from_operands:
            return None
        supplied = Origin(None, Birth(*call.place, source, text_of(here())))
        # The operand of the same kind, with a known computation, that comes first
        order = {origin: i for i, origin in enumerate(self._origins)}
        candidates = []
        for x in float_tensors((call.args, call.kwargs)):
            if x.is_cpu and (old_nonfinite or not bool(all_finite(x))):
                origin = self._memory.of(x)
                if origin is not None:
                    # NaN comes from NaN, unless there are only infinities.
                    other_kind = has_nan and not bool(x.isnan().any())
                    candidates.append((other_kind, origin.birth is None, order.get(origin, 0), origin))
        return min(candidates, key=lambda candidate: candidate[:3])[3] if candidates else supplied

    def after(self, call: Call, result: Any, origin: Origin | None) -> None:
        """Notes the memory of results that are not finite, and whether such a value was read."""
        if self.is_final or call.operation is None:
            return
        if origin is not None:
            in_optimizer = call.place.role == Role.OPTIMIZER
            self._follow([result, *overwritten(call)], origin, reaches=in_optimizer)
        elif call.place.operation == _READ_OPERATION and isinstance(result, float) and not math.isfinite(result):
            # A value that the program reads and decides by, such as its loss
            origin = self._memory.of(call.args[0])
            if origin is not None and origin.birth is not None:
                self._reach(origin)

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Notes that values of a tensor were copied to one of another dtype."""
        origin = None if self.is_final else self._memory.of(source)
        if origin is not None:
            self._follow([target], origin, reaches=False)

    def _follow(self, values: list[Any], origin: Origin, *, reaches: bool) -> None:
        """Notes the origin of tensors that are not finite; final if one is a parameter, or with ``reaches``."""
        for x in float_tensors(values):
            if x.is_cpu and not bool(all_finite(x)):
                self._memory.put(x, origin)
                if reaches or (x.is_leaf and x.requires_grad):
                    self._reach(origin)

    def _reach(self, origin: Origin) -> None:
        self.is_final, self._reached = True, origin.birth

    def add_supplied(self, birth: Birth) -> None:
        """Notes a value that a program supplied, if it is among the first few."""
        is_vague = birth.what == OPERANDS and bool(self.supplied)
        if len(self.supplied) < _MOST_SUPPLIED and birth not in self.supplied and not is_vague:
            self.supplied.append(birth)


class _Suspect(NamedTuple):
    """The place of a result that may be the first that is not finite, and its possible source, in words."""

    place: Place
    line: Line | None
    source: str


class _FirstCodes(NamedTuple):
    """Codes, on one device, of the first computed result that is not finite, and of the first supplied by a program."""

    computed: torch.Tensor
    supplied: torch.Tensor


class FirstNonFiniteOnDevice:
    """Finds the first result on a device that is not finite, on the device; :meth:`read` waits for it."""

    def __init__(self) -> None:
        self._suspects: dict[_Suspect, int] = {}
        self._first: dict[torch.device, _FirstCodes] = {}

    def note(
        self, counts: torch.Tensor, place: Place, line: Line | None, operands: Supplied, constant: Supplied
    ) -> None:
        """Takes the counts of one call.

        Args:
            counts: The counts, from :meth:`~.counting.DeviceCounts.add`.
            place: Place of the operation.
            line: Line of the program.
            operands: The operands that may be the source, from :func:`find_source`.
            constant: The constant that may have overflowed, from :func:`find_constant`.
        """
        source = constant[0] if constant[0] and operands[0] == OPERANDS else operands[0]
        index = self._suspects.setdefault(_Suspect(place, line, source), len(self._suspects))
        # All on the device, without waiting for it: the codes of the first results are replaced only once.
        _, _, _, infinite, nan, _, lost = counts.unbind()
        kind = where(lost > 0, 0, where(nan > 0, 1, 2))
        first = self._first.get(counts.device)
        if first is None:
            first = _FirstCodes(
                *(torch.full((), _NO_CODE, dtype=torch.int64, device=counts.device) for _ in _FirstCodes._fields)
            )
        is_first = (first.computed < 0) & (infinite + nan > 0)
        is_supplied, is_constant = (
            is_source.to(counts.device, non_blocking=True) if isinstance(is_source, torch.Tensor) else is_source
            for _, is_source in (operands, constant)
        )
        is_supplied = ((lost == 0) & is_supplied) | ((lost > 0) & is_constant)
        code = kind + len(_KINDS) * index
        self._first[counts.device] = _FirstCodes(
            torch.where(is_first & ~is_supplied, code, first.computed),
            torch.where(is_first & is_supplied & (first.supplied < 0), code, first.supplied),
        )

    def read(self) -> tuple[Birth | None, list[Birth]]:
        """Returns the first computed value, or None, and the first supplied values; waits for the devices."""
        suspects = list(self._suspects)
        births: list[Birth] = []
        supplied: list[Birth] = []
        for first in self._first.values():
            if (code := int(first.computed)) != _NO_CODE:
                place, line, _ = suspects[code // len(_KINDS)]
                births.append(Birth(*place, _KINDS[code % len(_KINDS)], text_of(line)))
            if (code := int(first.supplied)) != _NO_CODE:
                place, line, source = suspects[code // len(_KINDS)]
                supplied.append(Birth(*place, source, text_of(line)))
        return (births[0] if births else None), supplied


_MOST_LINES = 1 << 16


class ForwardLines:
    """Stores the lines of forward operations, by autograd's number of the operation."""

    def __init__(self) -> None:
        self._lines: dict[int, Line | None] = {}

    def note(self, call: Call) -> None:
        """Notes the line of an operation that is about to run."""
        if call.place.role == Role.FORWARD and torch.is_grad_enabled():
            # Autograd has numbered the node before the operation runs.
            number = torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001  the only access there is
            self._lines[number] = here()
            if len(self._lines) > _MOST_LINES:  # the oldest half belongs to graphs that are probably freed
                for old in list(self._lines)[: _MOST_LINES // 2]:
                    del self._lines[old]

    def of(self, call: Call) -> str:
        """Returns the line of an operation; for one of the backward pass, the line of its forward operation."""
        node = torch._C._current_autograd_node()  # noqa: SLF001  the only access there is
        if call.place.role != Role.BACKWARD or node is None:
            return text_of(here())
        derived = self._lines.get(node._sequence_nr())  # noqa: SLF001  the only access there is
        return text_of(here()) if derived is None else f"{text_of(derived)} (its derivative)"
