"""The shadow run: a float64 twin of every value, and the error that each operation adds and inherits."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from roundoff.formats import FormatError
from roundoff.simulate.shadow_report import ShadowReport
from roundoff.simulate.twins import Twins, is_followed, widen
from roundoff.simulate.widening import left_to_chance, make_wide, manner, operands, outcomes, run_wide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._ops import OpOverload

__all__ = ["Shadow", "ShadowReport"]

# Elements of a tensor are compared relative to their own magnitude, but at least to this part of the largest.
_FLOOR = 2.0**-10


class _Wide(NamedTuple):
    """The outcomes of one operation in float64."""

    exact: list[torch.Tensor]
    """On the simulated operands."""
    twins: list[torch.Tensor]
    """On their twins; the same list if these do not differ."""


class _Begun(NamedTuple):
    """What :meth:`Shadow.before` hands to :meth:`Shadow.after`."""

    wide: _Wide | None
    given: float


@dataclass(slots=True)
class _Tally:
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
        row = {name: getattr(self, name) for name in ("calls", "elements", "overflowed", "lost", "undefined")}
        row["given_rms"] = math.sqrt(self.given_squares / (self.calls or 1))
        for name, worst, squares in zip(("added", "inherited", "total"), self.worst, self.squares, strict=True):
            row[f"{name}_max"] = worst
            row[f"{name}_rms"] = math.sqrt(squares / (self.elements or 1))
        return row


class Shadow:
    """Carries a float64 twin of every floating-point value of a simulation, and measures it against the simulation.

    For an operation with rounded result y: ``exact`` is the operation in float64 on the simulated operands, ``twin``
    is the operation in float64 on their twins. Elementwise, ``added = |y - exact| / scale``,
    ``inherited = |exact - twin| / scale``, ``total = |y - twin| / scale``, with
    ``scale = max(|twin|, 2^-10 max |twin|)``, the maximum over the tensor. Elements that are
    not finite in all three are counted apart.

    The simulation calls :meth:`before` and :meth:`after` around each ATen operation. Values that come from outside
    are their own twins. Control flow is the simulation's: integers, booleans and Python numbers that the program
    takes out of tensors (``item()``, indices, masks) have no twins. Random numbers are what was drawn, rounded; an
    operation that cannot run in float64 gives its rounded result as twin, and is named in the report. An operation
    is run up to three times, so an operation of the user's own should have no side effects.

    Args:
        dtype: float64, the widest that PyTorch computes in.

    Raises:
        FormatError: another dtype.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        if dtype is not torch.float64:
            raise FormatError(f"a shadow run has dtype float64, the widest that PyTorch computes in, got {dtype}")
        self._twins = Twins()
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        self._unfollowed: dict[str, str] = {}
        self._float64_program = False
        self._lock = threading.RLock()

    def before(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> _Begun | None:
        """Looks at an operation that is about to run, while the operands it overwrites hold their old values.

        Args:
            func: the operation.
            args: its arguments.
            kwargs: its keyword arguments.

        Returns:
            What :meth:`after` wants as ``token``.
        """
        how = manner(func)
        if not how.has_outcomes:
            return None
        kwargs = kwargs or {}
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            given = max((self._twins.error(x) for x in operands(func, args, kwargs)), default=0.0)
            overwritten = how.lifts or any(
                is_followed(x)
                for x in outcomes(func, args, kwargs, ())
                if x.dtype.is_floating_point or x.dtype.is_complex
            )
            follows = overwritten and not how.communicates and not left_to_chance(func, args, kwargs)
            return _Begun(self._run(func, args, kwargs) if follows else None, given)

    def after(
        self,
        place: tuple[str, str, str],
        func: OpOverload,
        token: _Begun | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        result: Any,
    ) -> None:
        """Stores the twins of the results of an operation, and measures them.

        Args:
            place: role, module and operation, by which the report adds up.
            func: the operation.
            token: what :meth:`before` gave.
            args: its arguments.
            kwargs: its keyword arguments.
            result: what it returned, rounded, as are the arguments it overwrote.
        """
        if token is None:
            return
        kwargs = kwargs or {}
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            found = outcomes(func, args, kwargs, result)
            followed = [is_followed(x) and x.numel() > 0 for x in found]
            if not any(followed):
                return
            wide = token.wide or self._run_after(func, args, kwargs, result, found)
            if not (_alike(found, wide.exact) and _alike(found, wide.twins)):
                self._unfollowed.setdefault(manner(func).name, "in float64 its results have other shapes")
                rounded = [widen(x) for x in found]
                wide = _Wide(rounded, rounded)
            tally = self._tallies.setdefault(tuple(place), _Tally())  # type: ignore[arg-type]
            tally.calls += 1
            tally.given_squares += token.given**2
            read = set() if manner(func).lifts else _storages(operands(func, args, kwargs))
            written = _storages(outcomes(func, args, kwargs, ())) if manner(func).written else set()
            for x, exact, twin, does in zip(found, wide.exact, wide.twins, followed, strict=True):
                # _unsafe_view and the like share memory with an operand and do not say so
                if does and x.untyped_storage()._cdata not in read - written:  # noqa: SLF001
                    self._float64_program |= x.dtype in (torch.float64, torch.complex128)
                    error = _measure(tally, widen(x), exact, twin)
                    self._twins.put(x, twin, error)

    def report(self) -> ShadowReport:
        """What was measured so far."""
        with self._lock:
            rows = {place: tally.row() for place, tally in self._tallies.items()}
            return ShadowReport.of(
                rows, self._unfollowed, unseen=self._twins.unseen, float64_program=self._float64_program
            )

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        """The float64 twin of ``x``.

        Args:
            x: any tensor; one of integers or booleans is its own twin.

        Returns:
            What ``x`` would be if all operations had computed in float64; a copy, in float64 or complex128.
        """
        if not (x.dtype.is_floating_point or x.dtype.is_complex):
            return x.clone()
        # a user may well ask inside the simulation, which must not round the answer
        with self._lock, _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad():
            return self._twins.get(x).clone()

    def _run(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Wide | None:
        """The operation in float64; None if it fails there."""
        try:
            exact = run_wide(func, args, kwargs, widen)
            if not any(self._twins.has(x) for x in operands(func, args, kwargs)):
                return _Wide(exact, exact)
            return _Wide(exact, run_wide(func, args, kwargs, self._twins.get))
        except Exception as error:  # noqa: BLE001  whatever an operation may raise, the simulation goes on
            self._unfollowed.setdefault(manner(func).name, f"fails in float64 ({_first_line(error)})")
            return None

    def _run_after(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        found: list[torch.Tensor],
    ) -> _Wide:
        """The outcomes in float64 of an operation that has run; where that cannot be had, the rounded ones."""
        how = manner(func)
        wide: _Wide | None = None
        if how.communicates:
            self._unfollowed.setdefault(manner(func).name, "communicates, so it is not run twice")
        elif left_to_chance(func, args, kwargs):
            wide = self._dropout(func, args, result)
            if wide is None:
                self._unfollowed.setdefault(manner(func).name, "draws random numbers; the twin is what was drawn")
        elif how.written or how.lifts:
            pass  # before() has tried, and named the reason
        elif not operands(func, args, kwargs):
            exact = make_wide(func, args, kwargs, found[0])
            wide = _Wide(exact, exact)
        else:
            wide = self._run(func, args, kwargs)
        if wide is not None:
            return wide
        rounded = [widen(x) for x in found]
        return _Wide(rounded, rounded)

    def _dropout(self, func: OpOverload, args: Sequence[Any], result: Any) -> _Wide | None:
        if func is not torch.ops.aten.native_dropout.default:
            return None
        x, probability = args[0], float(args[1])
        mask = result[1].double() * (1 / (1 - probability) if probability < 1 else 0.0)
        return _Wide([widen(x) * mask, result[1]], [self._twins.get(x) * mask, result[1]])


def _measure(tally: _Tally, y: torch.Tensor, exact: torch.Tensor, twin: torch.Tensor) -> float:
    """Adds one tensor to a tally; returns its root mean square total error."""
    count = y.numel()
    worst, squares = _errors(y, exact, twin)
    if not all(map(math.isfinite, (*worst, *squares))):
        finite = twin.isfinite()
        lost = finite & ~y.isfinite()
        tally.undefined += count - int(finite.sum())
        tally.lost += int(lost.sum())
        tally.overflowed += int((lost & exact.isfinite()).sum())
        finite &= y.isfinite() & exact.isfinite()
        count = int(finite.sum())
        if not count:
            return 0.0
        worst, squares = _errors(y[finite], exact[finite], twin[finite])
    tally.elements += count
    tally.worst = [max(pair) for pair in zip(tally.worst, worst, strict=True)]
    tally.squares = [a + b for a, b in zip(tally.squares, squares, strict=True)]
    return math.sqrt(squares[2] / count)


def _errors(y: torch.Tensor, exact: torch.Tensor, twin: torch.Tensor) -> tuple[list[float], list[float]]:
    """The largest error added, inherited and in total, and their sums of squares; not finite if a number is not."""
    scale = twin.abs()
    largest = scale.max()
    # a twin of zeros has no magnitude of its own: what is there instead of them is all error
    largest = torch.where(largest > 0, largest, torch.maximum(y.abs().max(), exact.abs().max()))
    floor = torch.where(largest > 0, largest * _FLOOR, 1.0)
    # infinities show: their difference is NaN, and so is their product with a factor of 0
    factor = torch.clamp_(scale, min=floor).reciprocal_()
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


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {x.untyped_storage()._cdata for x in tensors if is_followed(x)}  # noqa: SLF001


def _alike(found: list[torch.Tensor], wide: list[torch.Tensor]) -> bool:
    """Whether outcomes in float64 stand for those found, one by one; integers may differ."""
    return len(found) == len(wide) and all(
        x.shape == y.shape for x, y in zip(found, wide, strict=True) if is_followed(x)
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
