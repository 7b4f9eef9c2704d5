"""Elementwise arithmetic rounded once to the carrier, in any mode, as tensor operations: the same bits as the loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...formats import Overflow, Rounding, where
from ...formats.arithmetic.float_tensors import round_by_mode
from ...formats.arithmetic.tail import rule
from ...formats.base.on_device import number_on, table_on
from ...formats.base.random_words import random_words
from ...formats.families.floats import FP32
from .error_free_tensors import odd, two_product, two_sum
from .formulas import Dialect, double, single
from .loops import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...formats import RandomBits
    from .carrier_rounding import CarrierRounding


def _root(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's root may be off by a last place; the error of its square shows where."""
    near = x.sqrt()
    square, lost = two_product(near, near)
    better = near + ((x - square) - lost) / (near + near)
    return where(better.isfinite(), better, near)


def _plain(function: Any) -> Any:
    return function


_SMALLEST = torch.tensor(2.0**-149, dtype=torch.float64, device="cpu")  # float32's

_DIALECT = Dialect(_plain, two_sum, two_product, odd, _root, where)
_FORMULAS = {torch.float32: single(_DIALECT), torch.float64: double(_DIALECT)}


def compute(
    formula: str,
    operands: Sequence[torch.Tensor],
    factor: float,
    dtype: torch.dtype,
    how: CarrierRounding,
    random: RandomBits | None,
) -> torch.Tensor:
    """The results of a formula, rounded once to ``dtype``; ``UNSAFE`` where they are not known (float64).

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        operands: all that it reads, of that dtype; they broadcast; any device.
        factor: its ``v``, a number of that dtype.
        dtype: float32 or float64.
        how: how they are rounded.
        random: for stochastic rounding.
    """
    wide = torch.broadcast_tensors(*(x.double() for x in operands))  # type: ignore[no-untyped-call]
    sign = -1.0 if how.mode is Rounding.DOWN else 1.0
    top, rest, plain, safe = getattr(_FORMULAS[dtype], formula)(*wide, *wide[:1] * (3 - len(wide)), factor, sign)
    rest = number_on(rest, torch.float64, top.device).expand(top.shape)
    overflow = Overflow.SATURATE if how.saturating else None
    special = ~(top.isfinite() & plain.isfinite() & (top != 0))
    words = None if random is None else random_words(random, top)
    if dtype == torch.float32:
        exact = where(special, plain, odd(top, where(rest.isfinite(), rest, 0.0)))
        rounded = round_by_mode(exact, FP32.parameters(torch.float64, how.mode, overflow), words).to(dtype)
        if how.saturating:
            rounded = where(
                (rounded == 0) & (exact != 0), torch.copysign(table_on(_SMALLEST, exact.device), exact), rounded
            )
        return rounded.to(dtype)
    result = where(special, plain, _nearby(top, rest, how.mode, words))
    return where(safe, result.view(torch.int64), UNSAFE).view(dtype)


def _nearby(top: torch.Tensor, rest: torch.Tensor, rounding: Rounding, words: torch.Tensor | None) -> torch.Tensor:
    """``top + rest`` rounded to float64, both finite, ``top`` not zero."""
    mode = rule(rounding)
    bits = top.view(torch.int64)
    inexact = rest.abs() > 0
    opposite = inexact & ((bits ^ rest.view(torch.int64)) < 0)
    lower = bits - opposite.to(torch.int64)
    low, high = lower.view(torch.float64), (lower + 1).view(torch.float64)
    above = (1.0 + ((top - low) + rest) / (high - low)).clamp(max=2.0 - 2.0**-52)
    # The first 32 bits of the fraction between the neighbours; a carry goes up.
    fraction = where(inexact, (above.view(torch.int64) >> 20) & 0xFFFFFFFF, 0)
    fraction = fraction | (inexact & bool(mode.sticky)).to(torch.int64)
    addend = where(bits < 0, mode.negative, mode.positive) if words is None else words
    if mode.parity:
        addend = (addend + (lower & 1)) & 0xFFFFFFFF
    return (lower + ((fraction + addend) >> 32)).view(torch.float64)
