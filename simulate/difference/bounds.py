"""Bounds of the rounding errors of one operation, and the errors that are compared with them."""

from __future__ import annotations

import math

import torch

from ..aten.tables import is_contraction
from ..shadow.twins import widen
from ..shadow.widening import operands, run_wide
from ..watching.watcher import Call

_SUMS = frozenset({"sum", "mean", "cumsum", "dot", "vdot", "mv", "addmv", "index_add", "scatter_add", "trace"})
_ULPS = 4.0  # errors of elementwise operations, in units of roundoff
_STEP = 2.0**-20  # the relative change of operands that shows how sensitive a result is


def rounding_bounds(call: Call, results: list[torch.Tensor], exact: list[torch.Tensor]) -> list[torch.Tensor]:
    """Bounds the rounding error of each element of the results of an operation.

    For products and sums of n terms, gamma_n |a||b| with gamma_n = n u / (1 - n u). For others some units of roundoff
    of the result, and where that is too little, of its change when the operands change by their roundoff.

    Args:
        call: the operation; its operands still have their values.
        results: its floating-point results.
        exact: the same in float64, from the same operands.
    """
    units = [unit_roundoff(call, x.dtype) for x in results]
    smallest = [torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps for x in results]
    bounds = [true.abs() * (_ULPS * u) + least for true, u, least in zip(exact, units, smallest, strict=True)]
    if all(bool(((widen(x) - y).abs() <= z).all()) for x, y, z in zip(results, exact, bounds, strict=True)):
        return bounds
    operation, (args, kwargs) = call.operation, call.given
    assert operation is not None
    name = call.place.operation.removesuffix("_")
    sizes = sorted(x.numel() for x in operands(operation, args, kwargs) if x.is_floating_point())
    if name in _SUMS or is_contraction(name):
        absolute = {key: abs(x) if isinstance(x, int | float) else x for key, x in kwargs.items()}
        changes = run_wide(operation, args, absolute, lambda x: widen(x).abs())
        product = math.prod(sizes[-2:]) if is_contraction(name) else 0
        # The geometric mean of both operands' sizes in units of the result is the length of the contracted axis.
        terms = [4 * math.sqrt(product / x.numel()) + 8 if product else sizes[-1] / x.numel() + 8 for x in results]
        factors = [n * u / max(1 - n * u, 0.5) for n, u in zip(terms, units, strict=True)]
    else:
        generator = torch.Generator().manual_seed(0)

        def changed(x: torch.Tensor) -> torch.Tensor:
            signs = torch.randint(0, 2, x.shape, generator=generator).to(x.device) * 2 - 1
            return widen(x) * (1 + signs * _STEP)

        moved = run_wide(operation, args, kwargs, changed)
        changes = [torch.nan_to_num(a - b).abs() / _STEP for a, b in zip(moved, exact, strict=True)]
        # An element may happen not to change; it gets the mean of its tensor.
        changes = [2 * (change + change.square().mean().sqrt()) for change in changes]
        factors = [4 * _ULPS * u for u in units]
    return [z + change.abs() * factor for z, change, factor in zip(bounds, changes, factors, strict=True)]


def unit_roundoff(call: Call, dtype: torch.dtype) -> float:
    """The unit roundoff of results: of their dtype, or of the coarser simulated format; 0 of integers."""
    floating = dtype.is_floating_point or dtype.is_complex
    return max(torch.finfo(dtype).eps, getattr(call.format, "eps", None) or 0.0) / 2 if floating else 0.0


def errors(x: torch.Tensor, exact: torch.Tensor, largest: float | None = None) -> torch.Tensor:
    """The absolute errors of a result; infinite for NaN or an infinity in place of a value in range.

    An exact value that is not finite, or beyond the range and no longer finite in the result, has the error 0.

    Args:
        x: the result.
        exact: the result in float64.
        largest: the end of the range; None: the dtype's.
    """
    excused = ~exact.isfinite() | (~x.isfinite() & (exact.abs() > (largest or torch.finfo(x.dtype).max)))
    return torch.where(excused, 0, (widen(x) - exact).abs()).nan_to_num(math.inf, math.inf)
