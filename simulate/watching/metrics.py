"""Warnings about measures, such as losses, that a program reads and that rounding has changed in a visible digit."""

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
_FINE_BITS = 10
"""Rounding to a float format with this number of significand bits moves values by less than half a unit of digit 3."""
_MANY = 4096

_MEASURES = (
    "div", "dot", "logsumexp", "mean", "nanmean", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
    "vdot", "*_norm", "*loss*",
)  # fmt: skip
"""Patterns of operations that compute averages, losses and the like."""
_OVERWRITING = ("copy_", "fill_", "zero_")


class _MeasureChange(NamedTuple):
    """A measure that rounding has changed, and the cause."""

    number: float
    cause: str


class MeasureBefore(NamedTuple):
    """A result of one element, before it is rounded."""

    result: torch.Tensor
    number: float | None
    """The value of the element; None if the operation computes no measure."""


@final
class ChangedMeasures:
    """Stores, by address, tensors of one element with a measure that rounding has changed in a visible digit.

    It has changed by more than half a unit of the third significant digit, or was computed from such a measure by
    operations with results of one element.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._changed: dict[int, _MeasureChange] = {}

    @staticmethod
    def in_formats(formats: Iterable[Format], marks: Marks) -> ChangedMeasures | None:
        """Makes one for a simulation that rounds to these formats; None if all of them have enough digits."""
        are_coarse = (not (isinstance(fmt, FloatFormat) and fmt.significand_bits >= _FINE_BITS) for fmt in formats)
        return ChangedMeasures(marks) if any(are_coarse) else None

    def before(self, name: str, result: Any) -> MeasureBefore | None:
        """Copies the result of an operation before it is rounded; None if there is nothing to note."""
        makes_measure = is_measure(name)
        if not (makes_measure or self._changed):
            return None
        x = result[0] if type(result) is tuple and result else result
        if type(x) is not torch.Tensor or x.numel() != 1 or not x.dtype.is_floating_point or not in_memory(x):
            return None
        return MeasureBefore(x, x.item() if makes_measure else None)

    def note(self, measured: MeasureBefore, name: str, fmt: Format, args: Sequence[Any]) -> None:
        """Notes whether rounding changed the result visibly, or whether it was computed from a changed number.

        Args:
            measured: the result of :meth:`before`.
            name: name of the operation that computed it.
            fmt: format of its results.
            args: arguments of the operation.
        """
        x, number_before = measured
        address = x.data_ptr()
        if number_before is not None and _is_visible(number_before, x.item()):
            if len(self._changed) >= _MANY:
                self._changed.clear()  # their marks stay: C++ then asks Python in vain
            self._add(x, _MeasureChange(x.item(), f"rounded from {number_before:.6g} to {fmt}"))
        elif any(self._holds_changed(arg, address, name) for arg in args):
            self._add(x, _MeasureChange(x.item(), "computed from a number that rounding has changed"))
        elif self._changed.pop(address, None) is not None and x.untyped_storage().nbytes() == x.element_size():
            self._marks.remove(x, Mark.MEASURE)

    def _add(self, x: torch.Tensor, change: _MeasureChange) -> None:
        self._marks.add(x, Mark.MEASURE)
        self._changed[x.data_ptr()] = change

    def _holds_changed(self, arg: Any, result_address: int, name: str) -> bool:
        if type(arg) is not torch.Tensor or arg.numel() != 1 or not in_memory(arg):
            return False
        change = self._changed.get(arg.data_ptr())
        if change is None or arg.data_ptr() == result_address:  # overwritten by now
            return change is not None and name not in _OVERWRITING
        return change.number == arg.item()

    def of(self, x: torch.Tensor, number: float) -> _MeasureChange | None:
        """Returns the known change of a tensor that holds ``number``."""
        change = self._changed.get(x.data_ptr()) if in_memory(x) else None
        return change if change is not None and change.number == number else None


@cache
def is_measure(name: str) -> bool:
    """Whether an operation of this name computes a measure."""
    return any(fnmatchcase(plain_name(name), pattern) for pattern in _MEASURES)


def _is_visible(before: float, after: float) -> bool:
    if before == after or not before or not (math.isfinite(before) and math.isfinite(after)):
        return False
    digit_unit: float = 10.0 ** (Decimal(before).adjusted() - _DIGITS + 1)  # log10 is -1 just below 0.1
    return abs(after - before) > digit_unit / 2


def reading(operation: OpOverload, changes: ChangedMeasures) -> Callable[[torch.Tensor], Any]:
    """Returns the kernel of ``operation``, which reads a number (``.item()``); it warns of changed measures.

    Args:
        operation: the operation that reads.
        changes: the changed measures.
    """

    def read(x: torch.Tensor) -> Any:
        number = operation(x)
        change = changes.of(x, number) if isinstance(number, float) else None
        if change is not None:
            warn_once(
                f"the number {number:.6g}, {change.cause}, is read inside a simulation: losses, metrics and averages"
                " of them are rounded like all results; compute reported values in `with roundoff.exact():`, or"
                " outside",
                "reading",
            )
        return number

    return standing_for(read, StandsFor(reads=True))
