"""Choosing scale and zero point of integer quantization from the data."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import finfo

from ..base.memory import in_memory
from ..base.on_device import where
from ..cpu.scaled.groups import channel_scales

SMALLEST_SCALE = 2.0**-126
"""Scales are never smaller, so that their reciprocals are finite in float32."""


def scales_of(
    slices: torch.Tensor, codes: tuple[int, int], percentile: float | None, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of each slice.

    Args:
        slices: float32 or float64, shape (..., n), n > 0.
        codes: smallest and largest code.
        percentile: see :func:`value_range`.
        symmetric: whether the zero point is 0.

    Returns:
        Two tensors of shape (...) and the dtype of ``slices``; the scale is NaN where a slice holds NaN or infinity.
    """
    quick = percentile is None and slices.dtype == torch.float32 and slices.is_contiguous() and slices.numel()
    if quick and in_memory(slices):
        shape, length = slices.shape[:-1], slices.shape[-1]
        parameters = channel_scales(slices, shape.numel(), length, codes, SMALLEST_SCALE, symmetric=symmetric)
        return parameters[0].view(shape), parameters[1].view(shape)
    low, high = value_range(slices, percentile, magnitudes=symmetric)
    if symmetric:
        scale = symmetric_scale(low, high, codes[1], slices.dtype)
        zero = torch.zeros_like(scale)
    else:
        scale, zero = asymmetric_scale(low, high, codes, slices.dtype)
    return _with_finite_numbers(scale, zero, codes), zero


def _with_finite_numbers(scale: torch.Tensor, zero: torch.Tensor, codes: tuple[int, int]) -> torch.Tensor:
    """The scale, or the largest scale that keeps the number of every code finite."""
    most = finfo(scale.dtype).max / (2 * (codes[1] - codes[0]))
    if in_memory(scale) and not (scale > most).any():  # nearly always
        return scale
    wide = zero.to(torch.float64)
    reach = torch.maximum(codes[1] - wide, wide - codes[0])
    # A little less than the quotient, so that its rounding does not matter. Number / tensor would not be a division.
    quotient = torch.full_like(reach, finfo(scale.dtype).max) / reach
    largest = quotient * (1.0 - (2.0**-24 if scale.dtype == torch.float32 else 2.0**-52))
    return where((scale * reach.to(scale.dtype)).isinf(), largest.to(scale.dtype), scale)


def value_range(
    slices: torch.Tensor, percentile: float | None, *, magnitudes: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The range of each slice: minimum and maximum, or the given percentile and its mirror image.

    A percentile p of n numbers is the one of rank ceil(n p / 100) in ascending order, p as its decimal digits say; its
    mirror image the one of the same rank in descending order.

    Args:
        slices: shape (..., n), n > 0.
        percentile: above 50, up to 100; None for minimum and maximum.
        magnitudes: whether the percentile is one of the magnitudes.

    Returns:
        Two float64 tensors of shape (...); NaN where a slice holds a NaN or an infinity.
    """
    if percentile is None:
        low, high = slices.amin(-1), slices.amax(-1)
    else:
        n = slices.shape[-1]
        rank = max(1, math.ceil(n * Fraction(str(percentile)) / 100))
        low, high = _order_statistics(slices, (n - rank, rank - 1), magnitudes=magnitudes)
        finite = slices.amin(-1).isfinite() & slices.amax(-1).isfinite()
        high = where(finite, high, torch.nan)
    low, high = low.to(torch.float64), high.to(torch.float64)
    usable = low.isfinite() & high.isfinite()
    return where(usable, low, torch.nan), where(usable, high, torch.nan)


def _order_statistics(slices: torch.Tensor, places: tuple[int, int], *, magnitudes: bool) -> list[torch.Tensor]:
    """Returns the order statistics of each slice, or of its magnitudes; arbitrary values if the slice holds a NaN."""
    if not in_memory(slices):
        slices = slices.abs() if magnitudes else slices
        return [slices.kthvalue(place + 1, dim=-1).values for place in places]
    # kthvalue keeps the index of every number, three times the memory of the numbers themselves.
    ordered = slices.clone(memory_format=torch.contiguous_format)
    if magnitudes:
        ordered.abs_()
    ordered.numpy().partition(sorted(set(places)), axis=-1)
    return [ordered[..., place].clone() for place in places]


def symmetric_scale(low: torch.Tensor, high: torch.Tensor, largest_code: int, dtype: torch.dtype) -> torch.Tensor:
    """The scale that gives the larger magnitude of a range the largest code; ``dtype``, rounded once."""
    return (torch.maximum(-low, high) / largest_code).clamp(min=SMALLEST_SCALE).to(dtype)


def asymmetric_scale(
    low: torch.Tensor, high: torch.Tensor, codes: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and zero point that make the codes just span the range, widened to hold zero, which is exact.

    Args:
        low: smallest numbers, float64.
        high: largest numbers, float64.
        codes: smallest and largest code.
        dtype: the dtype of the tensor to quantize.

    Returns:
        Scale, rounded once, and zero point: an integer in the range of the codes; both of ``dtype``.
    """
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    width, steps = high - low, codes[1] - codes[0]
    width_per_code = where(width.isinf(), (high / 2 - low / 2) / (steps / 2), width / steps)
    scale = width_per_code.clamp(min=SMALLEST_SCALE).to(dtype)
    zero = (codes[0] - (low / scale.to(torch.float64)).round()).clamp(*codes)
    return scale, zero.to(dtype)
