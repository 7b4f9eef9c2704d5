"""Whether two ways to compute something are the same in exact arithmetic, and how many bits each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...formats import FloatFormat, FormatError, round
from ..dispatch.entry import simulate

WIDTHS = tuple(range(12, 49, 4))

# Below this, differences are float64's own rounding and say nothing about the widths simulated in it.
_FLOAT64_NOISE = 2.0**-48

# Where few elements make the difference it is zero at some widths by chance; that much of an ulp stands for less.
_LEAST_ULPS = 0.25

# By how much a difference, in ulps of the simulated width, may grow from the narrow widths to the widest.
_GROWTH = 10.0

# Results are compared at their own scale, but not below this part of the scale of the largest one.
_SMALLEST_SCALE = 2.0**-10


class NotEquivalentError(AssertionError):
    """Two programs that were to be equivalent are not; the message gives the inputs, the widths, and the difference."""


@dataclass(frozen=True)
class Equivalence:
    """The comparison of two programs, in float64 and at simulated significand widths.

    All differences are the largest absolute difference in any result, divided by the largest absolute value of that
    result in float64, or by 2^-10 of the largest of all results if that is more (by 1 if all are 0).

    Attributes:
        exact_difference: difference of the two programs in float64, inputs unrounded.
        where: Description of the element with the largest difference in float64; empty if none differs.
        widths: the significand widths m that were simulated, in e11m<m>.
        differences: differences of the two programs at each width, inputs rounded.
        first_errors: errors of the first program at each width, from its own results in float64 on the same inputs.
        second_errors: errors of the second program.
    """

    exact_difference: float
    where: str
    widths: tuple[int, ...]
    differences: tuple[float, ...]
    first_errors: tuple[float, ...]
    second_errors: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Fitted slope of log2(difference) over m: -1 for rounding errors, about 0 if the programs differ.

        NaN if no width differs by more than float64's own noise (the programs agree, then) or there is only one
        width, infinity if a difference is not finite. A difference below a quarter of 2^-m counts as that.
        """
        if not np.isfinite(self.differences).all():
            return float("inf")
        if len(self.widths) <= 1 or max(self.differences) <= _FLOAT64_NOISE:
            return float("nan")
        least = _LEAST_ULPS * np.exp2(-np.array(self.widths, dtype=float))
        return float(np.polyfit(self.widths, np.log2(np.maximum(self.differences, least)), 1)[0])

    @property
    def growth(self) -> float:
        """The difference at the widest width over the largest at the others, each in units of its 2^-m.

        About 1 for rounding errors; far more if a part of the difference does not vanish.
        """
        ulps = np.maximum(self.differences, _FLOAT64_NOISE) * np.exp2(np.array(self.widths, dtype=float))
        return float(ulps[-1] / max(ulps[:-1].max(), _LEAST_ULPS)) if len(ulps) > 1 else 1.0

    def bits_needed(self, tolerance: float) -> tuple[int | None, int | None]:
        """The smallest simulated width from where each program's error stays within ``tolerance``; None if never."""
        first, second = (_fewest(self.widths, errors, tolerance) for errors in (self.first_errors, self.second_errors))
        return first, second


def equivalence(
    first: Callable[..., Any], second: Callable[..., Any], *inputs: Any, widths: Sequence[int] = WIDTHS
) -> Equivalence:
    """Runs two programs on the same inputs in float64 and at simulated significand widths.

    Args:
        first: a function of tensors that returns tensors (or a tree of them); it may call autograd inside.
        second: another, with results of the same structure and shapes.
        inputs: its arguments; floating-point tensors in them are converted to float64, and rounded to each width.
        widths: significand widths m, 0 to 48, simulated as e11m<m>: float64's exponent, so that nothing over- or
            underflows which would not in float64.

    Returns:
        The comparison; see :class:`Equivalence`.

    Raises:
        FormatError: a width is out of range, or the programs' results cannot be compared.
    """
    if not widths or not all(isinstance(m, int) and 0 <= m <= 48 for m in widths):
        raise FormatError(f"widths must be significand widths from 0 to 48, got {widths!r}")
    exact_inputs = _map_floats(inputs, torch.Tensor.double)
    exact_difference, where = _largest(_results(first, exact_inputs), _results(second, exact_inputs))
    rows = []
    for m in sorted(widths):
        fmt = FloatFormat(11, m)  # float64's exponents
        rounded = _map_floats(exact_inputs, partial(round, format=fmt))
        with simulate(fmt):
            a, b = _results(first, rounded), _results(second, rounded)
        # Each program's error is against its own results in float64, on the same rounded inputs.
        exact_a, exact_b = _results(first, rounded), _results(second, rounded)
        rows.append((_difference(a, b), _difference(a, exact_a), _difference(b, exact_b)))
    differences, first_errors, second_errors = (tuple(column) for column in zip(*rows, strict=True))
    return Equivalence(exact_difference, where, tuple(sorted(widths)), differences, first_errors, second_errors)


def assert_equivalent(
    first: Callable[..., Any], second: Callable[..., Any], *inputs: Any, widths: Sequence[int] = WIDTHS,
    exact_tolerance: float = 1e-9, slope: float | None = -0.75,
) -> Equivalence:  # fmt: skip
    """Asserts that two programs differ only by rounding errors: they would be equal in exact arithmetic.

    Two things are checked. In float64 they agree to ``exact_tolerance`` relative to the largest result. And
    as the simulated significand grows, their difference shrinks like 2^-m: the fitted slope of log2(difference)
    over m, which is -1 for rounding errors, is at most ``slope``, and at the widest width the difference is not many
    times more units of 2^-m than at the others. The second check finds differences that the first misses, which are
    small but do not vanish.

    Args:
        first: see :func:`equivalence`.
        second: see :func:`equivalence`.
        inputs: see :func:`equivalence`.
        widths: see :func:`equivalence`.
        exact_tolerance: allowed relative difference in float64.
        slope: largest slope allowed, above -1; None for no such check.

    Returns:
        The comparison, for instance for ``bits_needed``.

    Raises:
        NotEquivalentError: they differ by more than rounding errors.
        FormatError: see :func:`equivalence`.
    """
    result = equivalence(first, second, *inputs, widths=widths)
    table = ", ".join(f"m={m}: {d:.3g}" for m, d in zip(result.widths, result.differences, strict=True))
    if not result.exact_difference <= exact_tolerance:
        raise NotEquivalentError(
            f"the programs differ in float64 by {result.exact_difference:.3g}, relative to the result; allowed is"
            f" exact_tolerance={exact_tolerance:.3g}. {result.where}. Differences at simulated widths: {table}"
        )
    if slope is not None and result.slope > slope:
        raise NotEquivalentError(
            f"the difference of the programs does not shrink like rounding errors: log2(difference) has slope"
            f" {result.slope:.2f} over the significand width, allowed is {slope} (-1 is ideal). {table}"
        )
    if slope is not None and result.growth > _GROWTH:
        raise NotEquivalentError(
            f"the difference of the programs does not shrink like rounding errors: in units of 2^-m it is"
            f" {result.growth:.0f} times as large at the widest width as before, allowed are {_GROWTH:.0f}. {table}"
        )
    return result


def _fewest(widths: Sequence[int], errors: Sequence[float], tolerance: float) -> int | None:
    needed = None
    for m, error in zip(reversed(widths), reversed(errors), strict=True):  # from the widest down to the first failure
        if not error <= tolerance:  # also for NaN
            break
        needed = m
    return needed


def _map_floats(inputs: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies ``function`` to the floating-point tensors among ``inputs``, keeping requires_grad."""

    def convert(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return function(x.detach()).requires_grad_(x.requires_grad)
        return x

    return tree_map(convert, inputs)


def _results(program: Callable[..., Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
    # Fresh copies: a program may work in place, or accumulate gradients into its inputs
    fresh = tree_map(
        lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, inputs
    )
    results = [x.detach().double() for x in tree_leaves(program(*fresh)) if isinstance(x, torch.Tensor)]
    if not results:
        raise FormatError(f"{program!r} returned no tensor, so there is nothing to compare")
    return results


def _difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return _largest(first, second)[0]


def _largest(first: list[torch.Tensor], second: list[torch.Tensor]) -> tuple[float, str]:
    """The largest relative difference, and where it is; infinity where only one of the two is finite."""
    shapes = [[tuple(x.shape) for x in results] for results in (first, second)]
    if shapes[0] != shapes[1]:
        raise FormatError(f"the programs' results have different shapes, {shapes[0]} and {shapes[1]}")
    scales = [float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0 for b in second]
    least = max(scales, default=0.0) * _SMALLEST_SCALE or 1.0
    largest, where = 0.0, ""
    for number, (a, b, scale) in enumerate(zip(first, second, scales, strict=True)):
        is_equal = (a == b) | (a.isnan() & b.isnan())  # equal infinities would differ by NaN
        gap = torch.where(is_equal, 0.0, (a - b).abs()).nan_to_num(torch.inf, torch.inf)
        if gap.numel() and float(gap.max()) / max(scale, least) > largest:
            largest = float(gap.max()) / max(scale, least)
            place = np.unravel_index(int(gap.argmax()), gap.shape) if gap.dim() else ()
            index = tuple(int(i) for i in place)
            where = f"Most in result {number} at {index}: {float(a[index]):.9g} and {float(b[index]):.9g}"
    return largest, where
