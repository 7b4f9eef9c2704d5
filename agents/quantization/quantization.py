"""Describe a quantized policy: the format of each of its tensors while it acts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch

from ...formats import (
    ROW,
    FloatFormat,
    Format,
    FormatError,
    IntegerFormat,
    NVFP4Format,
    QuarlFormat,
    ScaledFloatFormat,
    round,
    scales_of,
)
from ...simulate import LAST, Contraction, Policy, Simulation, of_convolution, round_along

_COLUMNS = Contraction(-2)  # Of a weight (in, out), the axis that its product sums over.
_OPERANDS = ("weights", "activations")


@final
@dataclass(frozen=True)
class Quantization:
    """The arithmetic of a policy while it acts, independent of its training; see docs/quantization.md.

    Either the whole inference is simulated (``policy``), or operands of products are rounded (``weights``,
    ``activations``), and the arithmetic of sums, biases and activation functions is unchanged.

    Args:
        name: canonical text, or JSON for a mapping. ``parse`` reads it.
        policy: the policy of the simulation; parameters and observations are rounded to its ``format`` first.
        weights: the format of the second operand of matrix products, and of the filters of convolutions.
        activations: the format of the other operand; None: it is not rounded.
        layers: formats of activations by product, in the order of inference, from watched ranges; else empty.
    """

    name: str
    policy: Policy | None = None
    weights: Format | None = None
    activations: Format | None = None
    layers: tuple[Format, ...] = ()

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | Quantization) -> Quantization:
        """Reads a quantization from text or a mapping of YAML or the command line.

        - ``quarl8``: only weights, as in the code of QuaRL: filters by output channel, matrices with one scale.
        - a float format (``fp16``, ``e4m3``): every operation is rounded to it.
        - any other format (``int8_ax0``, ``mxfp4``): weights and activations.
        - ``{weights: int4_ax0, activations: int8}``: separate formats; either may be left out.
        - any other mapping: a :class:`roundoff.Policy`, with its ``format``.

        Raises:
            FormatError: the value is none of these; the message lists the allowed ones.
        """
        if isinstance(value, Quantization):
            return value
        if isinstance(value, str):
            if value.lstrip().startswith("{"):  # A name, or a mapping on the command line.
                try:
                    mapping = json.loads(value)
                except ValueError as error:
                    raise FormatError(f"a quantization in braces is JSON, got {value!r}: {error}") from None
                return cls.parse(mapping)
            fmt = Format.parse(value)
            if isinstance(fmt, FloatFormat):
                return cls(str(fmt), Policy.of(fmt))  # The whole inference is simulated.
            weights, activations = _checked_operand(fmt, "weights"), _checked_operand(fmt, "activations")
            return cls(str(fmt), None, weights, None if isinstance(fmt, QuarlFormat) else activations)
        if not isinstance(value, Mapping) or not value:
            raise FormatError(
                f"a quantization is a format such as fp16, int8_ax0 or quarl8, a mapping with"
                f" {' and '.join(_OPERANDS)}, or a policy with its format, got {value!r}"
            )
        if value.keys() <= set(_OPERANDS):
            formats = {name: Format.parse(value[name]) for name in _OPERANDS if name in value}
            text = json.dumps({name: str(fmt) for name, fmt in formats.items()})
            weights, activations = (_checked_operand(formats.get(name), name) for name in _OPERANDS)
            return cls(text, None, weights, activations)
        policy = Policy.parse(value)
        return cls(json.dumps({**value, "format": str(policy.format)}, sort_keys=True), policy)

    def __str__(self) -> str:
        return self.name

    def as_json(self) -> str | dict[str, Any]:
        """Returns the value in ``config.json``: text, or a mapping."""
        plain: dict[str, Any] | str = json.loads(self.name) if self.name.startswith("{") else self.name
        return plain

    def check_fits(self, dtype: torch.dtype) -> None:
        """Raises FormatError if a tensor of ``dtype`` cannot hold the formats."""
        formats = self.policy.formats() if self.policy else [self.weights, self.activations]
        for fmt in formats:
            if fmt is not None and not fmt.fits_in(dtype):
                raise FormatError(f"{fmt} does not fit in {dtype}, the dtype of the run; choose a narrower format")

    def simulation(self, seed: int) -> Simulation | None:
        """Returns the simulation of the whole inference; None if it is not simulated, or if fp32 rounds nothing."""
        if self.policy is None or self.policy in (Policy("fp32"), Policy("fp64")):
            return None
        return Simulation(self.policy, seed=seed, warn_unused=False)

    def number(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a parameter or an observation for an inference, rounded if the whole inference is simulated."""
        return x if self.policy is None else round(x, self.policy.format)

    def weight(self, x: torch.Tensor, *, convolution: tuple[bool, int] | None = None) -> torch.Tensor:
        """Returns a weight, rounded for its product.

        A scale for the tensor is one for each matrix; ``_ax0`` is one for each output channel, the first axis of
        PyTorch's layers; blocks and rows run along the axis that the product sums over.

        Args:
            x: (in, out), or (members, in, out) of an ensemble; filters in the convolution's order.
            convolution: for filters, whether it is transposed, and its groups.
        """
        fmt = self.weights
        if fmt is None:
            return x
        if convolution is None and x.dim() > 2:  # An ensemble has separate scales for each member.
            return torch.stack([self.weight(member) for member in x])
        if fmt.open_block is not None:
            contraction = _COLUMNS
            if convolution:
                contraction = of_convolution(transposed=convolution[0], groups=convolution[1])["weight"]
            return round_along(x, fmt, contraction, round)
        # Output channels are the first axis of filters, the second of transposed ones, and the last of (in, out).
        channels = int(convolution is not None and convolution[0])
        if isinstance(fmt, QuarlFormat) and convolution and fmt.axis is None and not fmt.elementwise:
            fmt = replace(fmt, axis=channels)
        elif isinstance(fmt, (IntegerFormat, QuarlFormat)) and fmt.axis is not None:
            fmt = replace(fmt, axis=channels if convolution else -1)
        return round(x, fmt)

    def activation(
        self, x: torch.Tensor, layer: int = 0, *, convolution: tuple[bool, int] | None = None
    ) -> torch.Tensor:
        """Returns an operand of a product with a weight, rounded.

        A scale that follows from the data is separate for each observation, as in a batch of one: an episode does not
        depend on others that are evaluated with it.

        Args:
            x: (..., n, in) for matrix products; (n, channels, ...) for convolutions; n observations.
            layer: the number of the product in an inference, for watched ranges.
            convolution: see :meth:`weight`.
        """
        fmt = self.layers[layer] if self.layers else self.activations
        if fmt is None:
            return x
        if fmt.elementwise:
            return round(x, fmt)
        # Formats that can have one scale for each row: of a matrix, or an image of a batch.
        if isinstance(fmt, IntegerFormat) and fmt.group is None:
            fmt = replace(fmt, axis=0) if convolution else replace(fmt, axis=None, group=ROW)
            return round(x, fmt)
        if isinstance(fmt, ScaledFloatFormat) and fmt.block is None and not convolution:
            return round(x, replace(fmt, block=ROW))
        # Blocks along the axis that the product sums over. A tensor's scale, also NVFP4's: one observation at a time.
        contraction = of_convolution(transposed=convolution[0], groups=convolution[1])["input"] if convolution else LAST
        if fmt.open_block is not None and not isinstance(fmt, NVFP4Format):
            return round_along(x, fmt, contraction, round)
        axis = 0 if convolution else -2 % x.dim()
        return torch.cat([round_along(row, fmt, contraction, round) for row in torch.split(x, 1, axis)], axis)

    def calibrated(self, ranges: Sequence[tuple[float, float]]) -> Self:
        """Returns the quantization with fixed scales of activations, from the range of each product's inputs.

        Nothing changes if no activations are rounded, or if the whole inference is simulated.

        Args:
            ranges: the smallest and largest input by product, in the order of inference.

        Raises:
            FormatError: activations are rounded, but not to integers, the only formats with fixed scales.
        """
        fmt = self.activations
        if fmt is None:
            return self
        if not isinstance(fmt, IntegerFormat) or fmt.group is not None or fmt.scale is not None:
            raise FormatError(
                f"activations in {fmt} cannot be calibrated: fixed scales are for integers such as int8, uint8 and"
                " int8_ax0, whose scales the data would decide; leave the calibration out"
            )
        plain = replace(fmt, axis=None, group=None, percentile=None)
        layers: list[Format] = []
        for low, high in ranges:  # The scale and zero point are the same as from data with this range.
            extremes = torch.tensor([[min(low, 0.0), max(high, 0.0)]])
            scale, zero = scales_of(extremes, (fmt.code_min, fmt.code_max), None, symmetric=fmt.symmetric)
            layers.append(replace(plain, scale=float(scale), zero_point=0 if fmt.symmetric else int(zero)))
        return replace(self, layers=tuple(layers))


def _checked_operand(fmt: Format | None, operand: str) -> Format | None:
    """Returns the format; raises FormatError if its axis is not one that all products have."""
    axis = getattr(fmt, "axis", None)
    channels = isinstance(fmt, (IntegerFormat, QuarlFormat)) and getattr(fmt, "group", None) is None
    if fmt is None or axis in ((None, 0) if channels else (None, -1)):
        return fmt
    allowed = (
        "the axis of a weight is _ax0, its output channel"
        if channels
        else "blocks are along the axis that a product sums over"
    )
    raise FormatError(f"{fmt} cannot quantize {operand}: {allowed}; leave out _ax{axis}")
