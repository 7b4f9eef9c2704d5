"""Whether two ways to compute something are the same in exact arithmetic, and how many bits each of them needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from roundoff.formats import FloatFormat, FormatError, round
from roundoff.simulate.mode import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTHS = tuple(range(12, 49, 4))

# Below this, differences are float64's own rounding and say nothing about the widths simulated in it.
_FLOAT64_NOISE = 2.0**-48


class NotEquivalentError(AssertionError):
    """Two programs that were to be equivalent are not; the message says at which inputs, widths, and by how much."""


@dataclass(frozen=True)
class Equivalence:
    """How two programs compare, in float64 and at simulated significand widths.

    All differences are the largest absolute difference of any result, divided by the largest absolute value of the
    results in float64 (by 1 if they are all 0).

    Attributes:
        exact_difference: of the two programs in float64, inputs unrounded.
        widths: the significand widths m that were simulated, in e11m<m>.
        differences: of the two programs at each width, inputs rounded.
        first_errors: of the first program at each width, from its own results in float64 on the same inputs.
        second_errors: of the second.
    """

    exact_difference: float
    widths: tuple[int, ...]
    differences: tuple[float, ...]
    first_errors: tuple[float, ...]
    second_errors: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Fitted slope of log2(difference) over m: -1 for rounding errors, about 0 if the programs differ.

        NaN if fewer than two widths differ by more than float64's own noise (the programs agree, then), infinity if
        a difference is not finite.
        """
        if not np.isfinite(self.differences).all():
            return float("inf")
        points = [(m, np.log2(d)) for m, d in zip(self.widths, self.differences, strict=True) if d > _FLOAT64_NOISE]
        if len(points) <= 1:
            return float("nan")
        m, log_difference = np.array(points).T
        return float(np.polyfit(m, log_difference, 1)[0])

    def bits_needed(self, tolerance: float) -> tuple[int | None, int | None]:
        """The smallest simulated width from which on each program's error stays within ``tolerance``; None if never."""
        return _bits(self.widths, self.first_errors, tolerance), _bits(self.widths, self.second_errors, tolerance)


def compare(
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
    exact_difference = _difference(_results(first, exact_inputs), _results(second, exact_inputs))
    rows = []
    for m in sorted(widths):
        fmt = FloatFormat(11, m)
        rounded = _map_floats(exact_inputs, partial(round, format=fmt))
        with simulate(fmt):
            a, b = _results(first, rounded), _results(second, rounded)
        rows.append(
            (
                _difference(a, b),
                _difference(a, _results(first, rounded)),
                _difference(b, _results(second, rounded)),
            )
        )
    differences, first_errors, second_errors = (tuple(column) for column in zip(*rows, strict=True))
    return Equivalence(exact_difference, tuple(sorted(widths)), differences, first_errors, second_errors)


def assert_equivalent(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *inputs: Any,
    widths: Sequence[int] = WIDTHS,
    exact_tolerance: float = 1e-9,
    slope: float = -0.75,
) -> Equivalence:
    """Asserts that two programs differ by rounding errors alone: they would be equal in exact arithmetic.

    Two things are checked. In float64 they agree to ``exact_tolerance`` relative to the largest result. And
    as the simulated significand grows, their difference shrinks like 2^-m: the fitted slope of log2(difference)
    over m, which is -1 for rounding errors, is at most ``slope``. The second finds what the first cannot see, a
    difference that is small but does not vanish.

    Args:
        first: see :func:`compare`.
        second: see :func:`compare`.
        inputs: see :func:`compare`.
        widths: see :func:`compare`.
        exact_tolerance: allowed relative difference in float64.
        slope: largest slope allowed, between -1 (strict) and 0 (no check).

    Returns:
        The comparison, for instance for ``bits_needed``.

    Raises:
        NotEquivalentError: they differ by more than rounding errors.
        FormatError: see :func:`compare`.
    """
    result = compare(first, second, *inputs, widths=widths)
    table = ", ".join(f"m={m}: {d:.3g}" for m, d in zip(result.widths, result.differences, strict=True))
    if not result.exact_difference <= exact_tolerance:
        raise NotEquivalentError(
            f"the programs differ in float64 by {result.exact_difference:.3g} of the largest result; allowed is"
            f" exact_tolerance={exact_tolerance:.3g}. Differences at simulated widths: {table}"
        )
    if result.slope > slope:
        raise NotEquivalentError(
            f"the difference of the programs does not shrink like rounding errors: log2(difference) has slope"
            f" {result.slope:.2f} over the significand width, allowed is {slope} (-1 is ideal). {table}"
        )
    return result


def _bits(widths: Sequence[int], errors: Sequence[float], tolerance: float) -> int | None:
    needed = None
    for m, error in zip(reversed(widths), reversed(errors), strict=True):
        if not error <= tolerance:
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
    # fresh copies: a program may work in place, or accumulate gradients into its inputs
    fresh = tree_map(
        lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, inputs
    )
    results = [x.detach().double() for x in tree_leaves(program(*fresh)) if isinstance(x, torch.Tensor)]
    if not results:
        raise FormatError(f"{program!r} returned no tensor, so there is nothing to compare")
    return results


def _difference(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Largest absolute difference over largest absolute value; infinity where only one of the two is finite."""
    shapes = [[tuple(x.shape) for x in results] for results in (first, second)]
    if shapes[0] != shapes[1]:
        raise FormatError(f"the programs' results have different shapes, {shapes[0]} and {shapes[1]}")
    a, b = (torch.cat([x.flatten() for x in results]) for results in (first, second))
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0
    gap = torch.where(same, 0.0, (a - b).abs())
    if not gap.isfinite().all():
        return float("inf")
    scale = b[b.isfinite()].abs().max().item()
    return gap.max().item() / (scale or 1.0)
