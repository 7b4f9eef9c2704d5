"""The shadow run: a float64 twin of every value, and the error that each operation adds and inherits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from roundoff.locks import new_lock

from ...formats import FormatError
from ..watching.watcher import Call, Place, Watcher
from .report import ShadowReport
from .twins import Twins, is_followed, widen
from .widening import create_wide, draws_random, operands, outcomes, rerun_needs, run_wide

__all__ = ["Shadow", "ShadowReport"]


@contextmanager
def outside_autograd() -> Iterator[None]:
    """Turns off differentiation in the block, both backward and forward, whatever the program around it does."""
    with torch.inference_mode(mode=False), torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):  # noqa: SLF001  the only switch there is
        yield


class _ExactOutcomes(NamedTuple):
    """The outcomes of one operation in float64."""

    exact: list[torch.Tensor]
    """The outcomes on the simulated operands."""
    twins: list[torch.Tensor]
    """The outcomes on their twins; the same list if these do not differ."""


class _PendingOperation(NamedTuple):
    """The state that :meth:`Shadow.before` hands to :meth:`Shadow.after`."""

    wide: _ExactOutcomes | None
    """Outcomes in float64 of an operation that overwrites operands, computed before it runs; None if that failed."""
    ahead: bool
    """Whether the operation was tried in float64 before it ran."""
    operand_error: float
    """Root mean square error of the worst operand."""


class Shadow(Watcher):
    """Keeps a float64 twin of every floating-point value of a simulation, and measures the difference between the two.

    For an operation with rounded result y: ``exact`` is the operation in float64 on the simulated operands, ``twin``
    is the operation in float64 on their twins. Elementwise, ``added = |y - exact| / scale``,
    ``inherited = |exact - twin| / scale``, ``total = |y - twin| / scale``, where scale is the largest of ``|y|``,
    ``|exact|``, ``|twin|`` and 2^-10 of the largest such magnitude in the tensor. So an error is at most 2, which means
    the opposite sign. Without that bound, a gradient that is nonzero only because of rounding would have a huge
    relative error. Elements that are not finite in all three are counted separately.

    The simulation calls :meth:`before` and :meth:`after` around each ATen operation. Values from outside are their own
    twins. Control flow is the simulation's: integers, booleans and Python numbers that the program reads from tensors
    (``item()``, indices, masks) do not have twins. The twins of random numbers are the rounded draws. The
    twin of an operation that cannot run in float64 is its rounded result; the report names it. An operation is run up
    to three times, so a custom operation should not have side effects.

    Args:
        dtype: float64, the widest that PyTorch computes in.

    Raises:
        FormatError: another dtype.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        if dtype is not torch.float64:
            raise FormatError(f"a shadow run has dtype float64, the widest that PyTorch computes in, got {dtype}")
        self._twins = Twins()
        self._tallies: dict[Place, ErrorTally] = {}
        self._unfollowed: dict[str, str] = {}
        self._float64_program = False
        self._lock = new_lock()

    def before(self, call: Call) -> _PendingOperation | None:
        """Measures the operands of an operation; runs it in float64 now if it will overwrite some of them."""
        operation, (args, kwargs) = call.operation, call.given
        assert operation is not None
        needs = rerun_needs(operation)
        if not needs.has_outcomes:
            return None
        with self._lock, outside_autograd():
            operand_error = max((self._twins.error(x) for x in operands(operation, args, kwargs)), default=0.0)
            # Ahead if the operation overwrites operands, or if its result is lifted data, which is rounded in place.
            runs_ahead = needs.lifts or bool(outcomes(operation, args, kwargs, ()))
            ahead = runs_ahead and not needs.communicates and not draws_random(operation, args, kwargs)
            return _PendingOperation(self._run(operation, args, kwargs) if ahead else None, ahead, operand_error)

    def after(self, call: Call, token: _PendingOperation | None, result: Any) -> None:
        """Stores the twins of the results of an operation, and measures them."""
        self.follow(call, token, result)

    def follow(
        self, call: Call, token: _PendingOperation | None, result: Any
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Does what :meth:`after` does; returns the outcomes, their exact values and their twins, or empty lists."""
        operation, (args, kwargs) = call.operation, call.given
        assert operation is not None
        if token is None:
            return [], [], []
        with self._lock, outside_autograd():
            results = outcomes(operation, args, kwargs, result)
            followed = [is_followed(x) and x.numel() > 0 for x in results]
            if not any(followed):
                return results, [], []
            wide = token.wide or self._run_after(operation, token, args, kwargs, result, results)
            if not (_match(results, wide.exact) and _match(results, wide.twins)):
                self._unfollowed.setdefault(rerun_needs(operation).name, "in float64 its results have other shapes")
                rounded = [widen(x) for x in results]  # the twins start again from here
                wide = _ExactOutcomes(rounded, rounded)
            tally = self._tallies.setdefault(call.place, ErrorTally())
            tally.calls += 1
            tally.operand_squares += token.operand_error**2
            for x, exact, twin, follows in zip(results, wide.exact, wide.twins, followed, strict=True):
                if follows:
                    self._float64_program |= x.dtype in (torch.float64, torch.complex128)
                    error = tally.add(widen(x), exact, twin)
                    self._twins.put(x, twin, error)
            return results, wide.exact, wide.twins

    def carried(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Makes the twin of a tensor also the twin of its copy."""
        with self._lock, outside_autograd():
            if self._twins.has(source):
                self._twins.put(target, self._twins.get(source), self._twins.error(source))

    def report(self) -> ShadowReport:
        """Returns the report of the measurements so far."""
        with self._lock:
            rows = {place: tally.row() for place, tally in self._tallies.items()}
            return ShadowReport.of(
                rows, self._unfollowed, unseen=self._twins.unseen, float64_program=self._float64_program
            )

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the float64 twin of ``x``.

        Args:
            x: any tensor; one of integers or booleans is its own twin.

        Returns:
            The value of ``x`` if all operations had computed in float64; a copy, in float64 or complex128.
        """
        if not (x.dtype.is_floating_point or x.dtype.is_complex):
            return x.clone()
        # A user may call this inside the simulation, which must not round the result.
        with self._lock, _disable_current_modes(), outside_autograd():
            return self._twins.get(x).clone()

    def _run(
        self, operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], like: torch.Tensor | None = None
    ) -> _ExactOutcomes | None:
        """Runs the operation in float64; None if it fails. ``like`` is its result if it takes no operands."""
        try:
            exact = (
                run_wide(operation, args, kwargs, widen) if like is None else create_wide(operation, args, kwargs, like)
            )
            if not any(self._twins.has(x) for x in operands(operation, args, kwargs)):  # a second run would be equal
                return _ExactOutcomes(exact, exact)
            return _ExactOutcomes(exact, run_wide(operation, args, kwargs, self._twins.get))
        except Exception as error:  # noqa: BLE001  operations raise any class; the simulation must continue
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._unfollowed.setdefault(rerun_needs(operation).name, f"fails in float64 ({line})")
            return None

    def _run_after(
        self, operation: OpOverload, token: _PendingOperation, args: Sequence[Any], kwargs: Mapping[str, Any],
        result: Any, results: list[torch.Tensor],
    ) -> _ExactOutcomes:  # fmt: skip
        """Returns the outcomes in float64 of an operation that has run, or the rounded ones if it cannot run again."""
        wide: _ExactOutcomes | None = None
        if rerun_needs(operation).communicates:
            self._unfollowed.setdefault(rerun_needs(operation).name, "communicates, so it is not run twice")
        elif draws_random(operation, args, kwargs):
            wide = self._dropout(operation, args, result)
            if wide is None:
                reason = "draws random numbers; the twin is the drawn tensor"
                self._unfollowed.setdefault(rerun_needs(operation).name, reason)
        elif not token.ahead:  # otherwise it has failed before, and the reason is stored
            wide = self._run(operation, args, kwargs, None if operands(operation, args, kwargs) else results[0])
        if wide is not None:
            return wide
        rounded = [widen(x) for x in results]
        return _ExactOutcomes(rounded, rounded)

    def _dropout(self, operation: OpOverload, args: Sequence[Any], result: Any) -> _ExactOutcomes | None:
        if operation is not torch.ops.aten.native_dropout.default:
            return None
        x, probability = args[0], float(args[1])
        # The mask that the simulation drew, in float64
        mask = result[1].double() * (1 / (1 - probability) if probability < 1 else 0.0)
        return _ExactOutcomes([widen(x) * mask, result[1]], [self._twins.get(x) * mask, result[1]])


def _match(results: list[torch.Tensor], wide: list[torch.Tensor]) -> bool:
    """Whether the outcomes in float64 have the shapes of the results; integers may differ."""
    return len(results) == len(wide) and all(
        x.shape == y.shape for x, y in zip(results, wide, strict=True) if is_followed(x)
    )


# Errors of an element are relative to its own magnitude, but at least to this part of the largest in the tensor.
_RELATIVE_FLOOR = 2.0**-10

# Below this, a reciprocal would be infinite; only tensors of zeros have smaller scales.
_SMALLEST_SCALE = 2.0**-1000


@dataclass(slots=True)
class ErrorTally:
    """The sums of errors over all calls at one place."""

    calls: int = 0
    elements: int = 0
    worst: list[float] = field(default_factory=lambda: [0.0] * 3)
    """Largest error added, inherited, and in total."""
    squares: list[float] = field(default_factory=lambda: [0.0] * 3)
    """Sums of squares of the same."""
    operand_squares: float = 0.0
    overflowed: int = 0
    lost: int = 0
    undefined: int = 0

    def row(self) -> dict[str, float]:
        """Returns the columns of a report."""
        row = {name: getattr(self, name) for name in ("calls", "elements", "overflowed", "lost", "undefined")}
        row["given_rms"] = math.sqrt(self.operand_squares / (self.calls or 1))
        for name, worst, squares in zip(("added", "inherited", "total"), self.worst, self.squares, strict=True):
            row[f"{name}_max"] = worst
            row[f"{name}_rms"] = math.sqrt(squares / (self.elements or 1))
        return row

    def add(self, y: torch.Tensor, exact: torch.Tensor, twin: torch.Tensor) -> float:
        """Adds the errors of one result.

        Args:
            y: the rounded result, in float64 or complex128; not empty.
            exact: the operation on the simulated operands.
            twin: the operation on their twins; ``exact`` itself if these do not differ.

        Returns:
            The root mean square of the total error.
        """
        count = y.numel()
        worst, squares = _errors(y, exact, twin)
        if not all(map(math.isfinite, (*worst, *squares))):  # only now a pass over the elements that are not finite
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
    """Computes the largest errors (added, inherited, total), and sums of squares; NaN if an element is not finite."""
    scale = torch.maximum(exact.abs(), y.abs())
    if exact is not twin:
        scale = torch.maximum(scale, twin.abs(), out=scale)
    floor = (scale.max() * _RELATIVE_FLOOR).clamp_(min=_SMALLEST_SCALE)
    # An element that is not finite makes the error NaN: its difference is NaN, or its product with the factor 0.
    factor = scale.clamp_(min=floor).reciprocal_()
    pairs = [(y, exact)] if exact is twin else [(y, exact), (exact, twin), (y, twin)]  # added, inherited, total
    worst, squares = [], []
    for a, b in pairs:
        error = (a - b).flatten()
        error = (error.abs() if error.dtype.is_complex else error).mul_(factor.flatten())
        low, high = error.aminmax()
        worst.append(torch.maximum(-low, high))
        squares.append(error.dot(error))
    sums = torch.stack(worst + squares).tolist()  # one transfer from a GPU instead of six
    if exact is twin:
        added, square = sums
        return [added, 0.0, added], [square, 0.0, square]
    return sums[:3], sums[3:]
