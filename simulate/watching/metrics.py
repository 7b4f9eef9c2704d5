"""A word on numbers that a program reads inside a simulation, and that rounding has changed visibly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple, final

import torch
from torch._ops import OpOverload

from ...formats import FloatFormat, Format
from ...formats.base.memory import in_memory
from ..aten.tables import plain_name
from ..marks.table import Mark, Marks
from ..native.stand_ins import StandsFor, standing_for
from ..presence.user_code import warn_once

_DIGITS = 3
_ENOUGH_BITS = 10
"""A float format with this number of significand bits changes no number by half a unit of its third digit."""
_MANY = 4096

_MEASURES = (
    "div", "dot", "logsumexp", "mean", "nanmean", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
    "vdot", "*_norm", "*loss*",
)  # fmt: skip
"""Operations that make averages, losses and the like of many numbers, or of two."""
_OVERWRITING = ("copy_", "fill_", "zero_")


class _Change(NamedTuple):
    number: float
    how: str


class MeasureBefore(NamedTuple):
    """A result of one number, before it is rounded."""

    result: torch.Tensor
    number: float | None
    """The number; None: the operation makes no measures."""


@final
class ChangedMeasures:
    """Finds tensors of one number, by address, that hold a measure that rounding has changed in a visible digit.

    That is by more than half a unit of the third significant digit, or computed from such a number by operations with
    results of one element.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._found: dict[int, _Change] = {}

    @staticmethod
    def in_formats(formats: Iterable[Format], marks: Marks) -> ChangedMeasures | None:
        """Makes one for a simulation that rounds to these; None if they have digits enough."""
        coarse = (not (isinstance(fmt, FloatFormat) and fmt.significand_bits >= _ENOUGH_BITS) for fmt in formats)
        return ChangedMeasures(marks) if any(coarse) else None

    def before(self, name: str, result: Any) -> MeasureBefore | None:
        """Looks at the result of an operation before it is rounded; None: there is nothing to note."""
        measures = is_measure(name)
        if not (measures or self._found):
            return None
        x = result[0] if type(result) is tuple and result else result
        if type(x) is not torch.Tensor or x.numel() != 1 or not x.dtype.is_floating_point or not in_memory(x):
            return None
        return MeasureBefore(x, x.item() if measures else None)

    def note(self, measured: MeasureBefore, name: str, fmt: Format, args: Sequence[Any]) -> None:
        """Notes what rounding did to it.

        Args:
            measured: the result of :meth:`before`.
            name: name of the operation that computed it.
            fmt: format of its results.
            args: arguments of the operation.
        """
        x, before = measured
        address = x.data_ptr()
        if before is not None and _is_visible(before, x.item()):
            if len(self._found) >= _MANY:
                self._found.clear()  # their marks stay, which only has C++ ask Python
            self._add(x, _Change(x.item(), f"rounded from {before:.6g} to {fmt}"))
        elif any(self._holds_changed(arg, address, name) for arg in args):
            self._add(x, _Change(x.item(), f"computed from a number that was rounded to {fmt}"))
        elif self._found.pop(address, None) is not None and x.untyped_storage().nbytes() == x.element_size():
            self._marks.remove(x, Mark.MEASURE)

    def _add(self, x: torch.Tensor, change: _Change) -> None:
        self._marks.add(x, Mark.MEASURE)
        self._found[x.data_ptr()] = change

    def _holds_changed(self, arg: Any, written: int, name: str) -> bool:
        if type(arg) is not torch.Tensor or arg.numel() != 1 or not in_memory(arg):
            return False
        found = self._found.get(arg.data_ptr())
        if found is None or arg.data_ptr() == written:  # overwritten by now
            return found is not None and name not in _OVERWRITING
        return found.number == arg.item()

    def of(self, x: torch.Tensor, number: float) -> _Change | None:
        """Returns the known change of a tensor that holds ``number``."""
        found = self._found.get(x.data_ptr()) if in_memory(x) else None
        return found if found is not None and found.number == number else None


@cache
def is_measure(name: str) -> bool:
    """Whether an operation of this name makes a measure."""
    return any(fnmatchcase(plain_name(name), pattern) for pattern in _MEASURES)


def _is_visible(before: float, after: float) -> bool:
    if before == after or not before or not (math.isfinite(before) and math.isfinite(after)):
        return False
    unit: float = 10.0 ** (Decimal(before).adjusted() - _DIGITS + 1)  # log10 is -1 just below 0.1
    return abs(after - before) > unit / 2


def reading(operation: OpOverload, changes: ChangedMeasures) -> Callable[[torch.Tensor], Any]:
    """The kernel of ``operation``, which reads a number (``.item()``), with a word on changed ones, once for each line.

    Args:
        operation: the one.
        changes: what rounding did.
    """

    def read(x: torch.Tensor) -> Any:
        number = operation(x)
        change = changes.of(x, number) if isinstance(number, float) else None
        if change is not None:
            warn_once(
                f"the number {number:.6g}, {change.how}, is read inside a simulation: losses, metrics and averages"
                " of them are rounded like all results; compute what you report in `with roundoff.exact():`, or"
                " outside",
                "reading",
            )
        return number

    return standing_for(read, StandsFor(reads=True))
