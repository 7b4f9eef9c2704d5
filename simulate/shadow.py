"""The shadow run: a float64 twin of every value, and the error that each operation adds and inherits."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
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
    added_max: float = 0.0
    inherited_max: float = 0.0
    total_max: float = 0.0
    added_squares: float = 0.0
    inherited_squares: float = 0.0
    total_squares: float = 0.0
    given_squares: float = 0.0
    overflowed: int = 0
    lost: int = 0
    undefined: int = 0

    def row(self) -> dict[str, float]:
        squares = {
            "given_rms": self.given_squares / (self.calls or 1),
            "added_rms": self.added_squares / (self.elements or 1),
            "inherited_rms": self.inherited_squares / (self.elements or 1),
            "total_rms": self.total_squares / (self.elements or 1),
        }
        return {name: getattr(self, name) for name in self.__slots__} | {
            name: math.sqrt(mean) for name, mean in squares.items()
        }


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
            if not _same_shapes(found, wide.exact, wide.twins):
                self._unfollowed.setdefault(func.name(), "in float64 its results have other shapes")
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
            self._unfollowed.setdefault(func.name(), f"fails in float64 ({_first_line(error)})")
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
            self._unfollowed.setdefault(func.name(), "communicates, so it is not run twice")
        elif left_to_chance(func, args, kwargs):
            wide = self._dropout(func, args, result)
            if wide is None:
                self._unfollowed.setdefault(func.name(), "draws random numbers; its twin is what was drawn, rounded")
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
    if not bool((y + exact + twin).isfinite().all()):
        finite = twin.isfinite()
        lost = finite & ~y.isfinite()
        tally.undefined += int((~finite).sum())
        tally.lost += int(lost.sum())
        tally.overflowed += int((lost & exact.isfinite()).sum())
        finite &= y.isfinite() & exact.isfinite()
        y, exact, twin = y[finite], exact[finite], twin[finite]
        if not len(y):
            return 0.0
    count = y.numel()
    tally.elements += count
    scale = twin.abs()
    largest = scale.max()
    # a twin of zeros has no magnitude of its own: what is there instead of them is all error
    largest = torch.where(largest > 0, largest, torch.maximum(y.abs().max(), exact.abs().max()))
    scale = torch.maximum(scale, torch.where(largest > 0, largest * _FLOOR, 1.0))
    added = (y - exact).abs() / scale
    if exact is twin:
        added_max, added_squares = torch.stack([added.max(), added.square_().sum()]).tolist()
        inherited_max = inherited_squares = 0.0
        total_max, total_squares = added_max, added_squares
    else:
        inherited = (exact - twin).abs() / scale
        total = (y - twin).abs() / scale
        added_max, inherited_max, total_max, added_squares, inherited_squares, total_squares = torch.stack(
            [*(x.max() for x in (added, inherited, total)), *(x.square_().sum() for x in (added, inherited, total))]
        ).tolist()
    tally.added_max = max(tally.added_max, added_max)
    tally.inherited_max = max(tally.inherited_max, inherited_max)
    tally.total_max = max(tally.total_max, total_max)
    tally.added_squares += added_squares
    tally.inherited_squares += inherited_squares
    tally.total_squares += total_squares
    return math.sqrt(total_squares / count)


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {x.untyped_storage()._cdata for x in tensors if is_followed(x)}  # noqa: SLF001


def _same_shapes(*outcomes: list[torch.Tensor]) -> bool:
    return len({tuple(x.shape for x in tensors) for tensors in outcomes}) == 1


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
