"""Low-precision accumulation: products and sums with a rounded running sum, as in narrow hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from ...formats import FormatError, RandomBits, Rounding
from ..rounded_once.carrier_rounding import CarrierRounding
from .arithmetic import RoundedSums, ShapesUnfitError
from .contractions import handler, is_plain_sum
from .description import Accumulation, AccumulatorFormat
from .exact_sums import ExactSums
from .fused_sum import FusedSum
from .fused_sums import FusedSums

_CARRIERS = (torch.float32, torch.float64)


@cache
def arithmetic(accumulation: Accumulation, dtype: torch.dtype) -> RoundedSums:
    """The contractions and sums of ``dtype`` under ``accumulation``.

    Raises:
        FormatError: the dtype cannot hold one of its formats.
    """
    for place, fmt in (("format", accumulation.format), ("product", accumulation.product)):
        if isinstance(fmt, AccumulatorFormat) and not fmt.fits_in(dtype):
            raise FormatError(
                f"{place} {fmt} of the accumulation does not fit in {dtype}: run the program in float64, for example"
                " model.double()"
            )
    return RoundedSums(accumulation, dtype)


@cache
def fused(accumulation: FusedSum, dtype: torch.dtype) -> FusedSums:
    """Returns the contractions of ``dtype`` by the fused sums of a matrix unit."""
    return FusedSums(accumulation, dtype)


def accumulates(func: OpOverload, accumulation: Accumulation | FusedSum | None = None) -> bool:
    """Whether :func:`accumulate` does the operation: a contraction; or a sum or mean, unless by a matrix unit."""
    return handler(func) is not None and not (isinstance(accumulation, FusedSum) and is_plain_sum(func))


def accumulate(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    accumulation: Accumulation | FusedSum,
    to_carrier: Callable[[torch.dtype], CarrierRounding] | None = None,
    draw: Callable[[], RandomBits | None] = lambda: None,
) -> Any:
    """Runs an ATen operation with the sums of ``accumulation``.

    Args:
        func: the operation; :func:`accumulates` must be true for it.
        args: its arguments; tensors on any device, of any strides.
        kwargs: its keyword arguments.
        accumulation: the accumulator of the sums, or the unit that computes them.
        to_carrier: the rounding from exact sums to a dtype, before they are rounded again; to nearest-even if None.
        draw: gives random bits, where that is stochastic.

    Returns:
        The results of the operation: new tensors, or the ``out=`` or in-place arguments, which are overwritten;
        elements are not rounded to any other format than the accumulator's. ``NotImplemented`` where the numbers are
        not all of one of the dtypes float32 and float64, or the operation does not take operands of such shapes:
        then nothing has been done, and the operation itself will raise if it must.

    Raises:
        FormatError: the carrier cannot hold one of the accumulation's formats.
    """
    operation_handler = handler(func)
    if operation_handler is None:
        return NotImplemented
    call = operation_handler.bind(args, kwargs or {})
    dtype = call.dtype
    if dtype not in _CARRIERS:  # Also None: operands of different types.
        return NotImplemented
    try:
        if isinstance(accumulation, FusedSum):
            return operation_handler.run(fused(accumulation, dtype), call)
        if accumulation.is_exact:
            rounding = CarrierRounding(Rounding.NEAREST_EVEN) if to_carrier is None else to_carrier(dtype)
            return operation_handler.run(ExactSums(dtype, rounding, draw), call)
        return operation_handler.run(arithmetic(accumulation, dtype), call)
    except ShapesUnfitError:
        return NotImplemented
