"""Errors of rounded results against exact results and against shadows, summed by place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

# Errors of an element are relative to its own magnitude, but at least to this part of the largest in the tensor.
_FLOOR = 2.0**-10

# Below this, a reciprocal would be infinite; tensors of zeros alone come here.
_SMALLEST = 2.0**-1000


@dataclass(slots=True)
class ErrorTally:
    """Sums over all calls at one place."""

    calls: int = 0
    elements: int = 0
    worst: list[float] = field(default_factory=lambda: [0.0] * 3)
    """Largest error added, inherited, and in total."""
    squares: list[float] = field(default_factory=lambda: [0.0] * 3)
    """Sums of squares of the same."""
    given_squares: float = 0.0
    overflowed: int = 0
    lost: int = 0
    undefined: int = 0

    def row(self) -> dict[str, float]:
        """The columns of a report."""
        row = {name: getattr(self, name) for name in ("calls", "elements", "overflowed", "lost", "undefined")}
        row["given_rms"] = math.sqrt(self.given_squares / (self.calls or 1))
        for name, worst, squares in zip(("added", "inherited", "total"), self.worst, self.squares, strict=True):
            row[f"{name}_max"] = worst
            row[f"{name}_rms"] = math.sqrt(squares / (self.elements or 1))
        return row

    def add(self, y: torch.Tensor, exact: torch.Tensor, twin: torch.Tensor) -> float:
        """Measures one tensor.

        Args:
            y: the rounded result, in float64 or complex128; not empty.
            exact: the operation on the simulated operands.
            twin: the operation on their twins; ``exact`` itself if these do not differ.

        Returns:
            The root mean square of the total error.
        """
        count = y.numel()
        worst, squares = _errors(y, exact, twin)
        if not all(map(math.isfinite, (*worst, *squares))):
            finite = twin.isfinite()
            lost = finite & ~y.isfinite()
            self.undefined += count - int(finite.sum())
            self.lost += int(lost.sum())
            self.overflowed += int((lost & exact.isfinite()).sum())
            finite &= y.isfinite() & exact.isfinite()
            count = int(finite.sum())
            if not count:
                return 0.0
            worst, squares = _errors(y[finite], exact[finite], twin[finite])
        self.elements += count
        self.worst = [max(pair) for pair in zip(self.worst, worst, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        return math.sqrt(squares[2] / count)


def _errors(y: torch.Tensor, exact: torch.Tensor, twin: torch.Tensor) -> tuple[list[float], list[float]]:
    """The largest error added, inherited and in total, and their sums of squares; not finite if a number is not."""
    scale = torch.maximum(exact.abs(), y.abs())
    if exact is not twin:
        scale = torch.maximum(scale, twin.abs(), out=scale)
    floor = (scale.max() * _FLOOR).clamp_(min=_SMALLEST)
    # what is not finite shows: its difference is NaN, or its product with the factor, which is 0
    factor = scale.clamp_(min=floor).reciprocal_()
    pairs = [(y, exact)] if exact is twin else [(y, exact), (exact, twin), (y, twin)]
    worst, squares = [], []
    for a, b in pairs:
        error = (a - b).flatten()
        error = (error.abs() if error.dtype.is_complex else error).mul_(factor.flatten())
        low, high = error.aminmax()
        worst.append(torch.maximum(-low, high))
        squares.append(error.dot(error))
    numbers = torch.stack(worst + squares).tolist()
    if exact is twin:
        added, square = numbers
        return [added, 0.0, added], [square, 0.0, square]
    return numbers[:3], numbers[3:]
