"""Products of integers with a scale, as ONNX Runtime and the C header compute them, to the bit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from ...formats import Format, IntegerFormat, Quantized
from ..models.policy_layers import ConvolutionLayer, Layer

_WIDEST = 8


class Activations(NamedTuple):
    """Activations as unsigned integers: x = scale * (code - zero point)."""

    codes: torch.Tensor
    """Integers as float64, the shape of the activations."""
    scale: torch.Tensor
    """float32, zero-dimensional."""
    zero_point: torch.Tensor
    """An integer as float64, zero-dimensional."""


def is_computed_in_integers(fmt: Format) -> bool:
    """Whether weights of this format are multiplied as integers: signed, symmetric, up to 8 bits, scaled by the data.

    They have one scale, or one for each output (``int8_ax0``).
    """
    return isinstance(fmt, IntegerFormat) and fmt.width <= _WIDEST and fmt in (
        IntegerFormat(fmt.width), IntegerFormat(fmt.width, axis=0),
    )  # fmt: skip


def quantized(x: torch.Tensor, width: int) -> Activations:
    """Quantizes activations to unsigned integers with a zero point, by their smallest and largest value.

    With low = min(0, min x), high = max(0, max x) and n = 2^width - 1, all in float32: scale = (high - low) / n, or 1
    if that is 0; zero point = clamp(0 - low / scale) rounded to nearest-even; code = clamp(round(x / scale) + zero
    point). Of a batch, all numbers share one scale.

    The format ``uint8`` differs slightly: it computes the scale in float64, and multiplies by 1 / scale.

    Args:
        x: float32, finite, not empty.
        width: the bits of a code; ONNX has 8.

    Source:
        ONNX, operator DynamicQuantizeLinear.
    """
    n = float(2**width - 1)
    zero = x.new_zeros(())
    low, high = torch.minimum(x.min(), zero), torch.maximum(x.max(), zero)
    scale = (high - low) / n
    scale = torch.where(scale == 0, 1.0, scale)
    zero_point = (0.0 - low / scale).clamp(0, n).round()
    codes = ((x / scale).round() + zero_point).clamp(0, n)
    return Activations(codes.to(torch.float64), scale, zero_point.to(torch.float64))


def product(x: torch.Tensor, layer: Layer, weight: Quantized, width: int) -> torch.Tensor:
    """Computes a layer without its activation.

    The result is float32(sum of (code - zero point) * weight) * (scale * weight's scale) + bias.

    The sum is exact; the conversion, the product of the scales, the product and the sum are float32, each rounded once.

    Args:
        x: (n, in), or (n, planes, height, width); float32.
        layer: the bias, and the stride and padding of a convolution; its weight is not read.
        weight: codes, (out, in) or (filters, planes, height, width), of any dtype; scales, one or one per output.
        width: bits of the activations' codes.
    """
    codes, scale, zero_point = quantized(x, width)
    integers = codes - zero_point
    weights = weight.codes.to(torch.float64)  # Sums of integers are exact up to 2^53.
    scales, bias = scale * weight.scale, layer.bias
    if isinstance(layer, ConvolutionLayer):
        sums = functional.conv2d(integers, weights, stride=layer.stride, padding=layer.padding)
        scales, bias = scales.reshape(-1, 1, 1), bias[:, None, None]
    else:
        sums = integers @ weights.T
    return sums.to(torch.float32) * scales + bias
