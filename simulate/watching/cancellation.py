"""Counts differences that cancel: both operands are values of the format, and the result is below an ulp of the larger.

Two results that were rounded to nearest are each up to half an ulp away from their exact values. A difference below an
ulp is then mostly the error of these roundings, and is zero if both became the same value: an error of a critic,
``q - target``, has a dead zone of half an ulp of the values (docs/recursions.md).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...formats import FloatFormat, round
from ...formats.families.floats import FP32, FP64
from ..aten.tables import plain_name
from ..presence.user_code import Line, here, text_of
from .watcher import Call

_DIFFERENCES = ("sub", "rsub", "mse_loss", "smooth_l1_loss", "huber_loss")
_MIN_SHARE = 0.25  # the smallest share of cancelled differences on a line that is reported
_MIN_CANCELLED = 64  # the smallest number of cancelled differences on such a line


class CancelledAtLine(NamedTuple):
    """The counts of differences of rounded values for an operation on a line where many cancelled."""

    role: str
    operation: str
    differences: int
    """The number of differences of two values of the format other than zero."""
    cancelled: int
    """The number of differences below an ulp of the larger operand."""
    line: str
    """The caller's own stack line."""

    def __str__(self) -> str:
        share = self.cancelled / self.differences
        return (
            f"cancelled: {share:.0%} of {self.differences} differences of rounded values in {self.operation}"
            f" ({self.role}) are below an ulp of their operands\n  at {self.line}"
        )


class Cancellations:
    """Counts differences of tensors in a float format, by operation and line.

    Operands that share memory, numbers, zeros and values outside the format are not counted.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, Line | None], list[Any]] = {}

    def note(self, call: Call) -> None:
        """Counts the differences that an operation will compute; :func:`is_difference` must be true for it."""
        fmt, operands = call.format, call.args[:2]
        if not isinstance(fmt, FloatFormat) or fmt in (FP32, FP64) or not all(map(_is_readable, operands)):
            return
        if len({x.data_ptr() for x in operands}) < 2 or call.kwargs.get("alpha", 1) != 1:
            return
        a, b = (x.detach().double() for x in operands)
        on_grid = [(x != 0) & (round(x, fmt) == x) for x in (a, b)]
        larger = torch.maximum(a.abs(), b.abs())
        exponent = (torch.frexp(larger).exponent - 1).clamp(min=fmt.emin)  # subnormals have the ulp of 2^emin
        ulp = torch.ldexp(torch.ones_like(larger), exponent - fmt.significand_bits)
        both_on_grid = on_grid[0] & on_grid[1] & larger.isfinite()
        counts = self._counts.setdefault((call.place.role, call.place.operation, here()), [0, 0])
        counts[0] += both_on_grid.sum()
        counts[1] += (both_on_grid & ((a - b).abs() < ulp)).sum()

    def lines(self) -> tuple[CancelledAtLine, ...]:
        """Returns the lines where at least a quarter of the differences cancelled, most cancelled first."""
        rows = [
            CancelledAtLine(role, operation, int(differences), int(cancelled), text_of(line))
            for (role, operation, line), (differences, cancelled) in self._counts.items()
        ]
        named = [row for row in rows if row.cancelled >= max(_MIN_CANCELLED, _MIN_SHARE * row.differences)]
        return tuple(sorted(named, key=lambda row: -row.cancelled))


@cache
def is_difference(operation: OpOverload) -> bool:
    """Whether an operation subtracts its second operand from its first, or the first from the second."""
    return plain_name(operation.overloadpacket.__name__) in _DIFFERENCES


def _is_readable(x: Any) -> bool:
    """Whether an operand is a tensor of real values that can be read."""
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.is_floating_point() and x.layout is torch.strided
    return plain and not x.is_meta and x.numel() > 0
