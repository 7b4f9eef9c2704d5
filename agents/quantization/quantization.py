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

_COLUMNS = Contraction(-2)
_OPERANDS = ("weights", "activations")


@final
@dataclass(frozen=True)
class Quantization:
    """The arithmetic of a policy while it acts, whatever it was trained in; see docs/quantization.md.

    Either the whole inference is simulated (``policy``), or operands of products are rounded (``weights``,
    ``activations``) and all else is computed as before: sums, biases, activation functions.

    Args:
        name: canonical text; of a mapping its JSON. ``parse`` reads it back.
        policy: the policy of the simulation; parameters and observations are rounded to its ``format`` first.
        weights: the format of the second operand of matrix products, and of the filters of convolutions.
        activations: the format of the other operand; None: it is not rounded.
        layers: formats of activations instead, by product in the order of inference: ranges were watched.
    """

    name: str
    policy: Policy | None = None
    weights: Format | None = None
    activations: Format | None = None
    layers: tuple[Format, ...] = ()

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | Quantization) -> Quantization:
        """A quantization from text or a mapping, as YAML and the command line have it.

        - ``quarl8``: only weights, as QuaRL's authors round them: filters by output channel, matrices as a whole.
        - a float format (``fp16``, ``e4m3``): every operation is rounded to it.
        - any other format (``int8_ax0``, ``mxfp4``): weights and activations.
        - ``{weights: int4_ax0, activations: int8}``: each its own; either may be left out.
        - any other mapping: a :class:`roundoff.Policy`, with its ``format``.

        Raises:
            FormatError: it is not one of these; the message lists the allowed ones.
        """
        if isinstance(value, Quantization):
            return value
        if isinstance(value, str):
            if value.lstrip().startswith("{"):
                try:
                    mapping = json.loads(value)
                except ValueError as error:
                    raise FormatError(f"a quantization in braces is JSON, got {value!r}: {error}") from None
                return cls.parse(mapping)
            fmt = Format.parse(value)
            if isinstance(fmt, FloatFormat):
                return cls(str(fmt), Policy.of(fmt))
            both = _of_operand(fmt, "weights"), _of_operand(fmt, "activations")
            return cls(str(fmt), None, both[0], None if isinstance(fmt, QuarlFormat) else both[1])
        if not isinstance(value, Mapping) or not value:
            raise FormatError(
                f"a quantization is a format such as fp16, int8_ax0 or quarl8, a mapping with"
                f" {' and '.join(_OPERANDS)}, or a policy with its format, got {value!r}"
            )
        if value.keys() <= set(_OPERANDS):
            given = {name: Format.parse(value[name]) for name in _OPERANDS if name in value}
            text = json.dumps({name: str(fmt) for name, fmt in given.items()})
            weights, activations = (_of_operand(given.get(name), name) for name in _OPERANDS)
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
        """Raises FormatError if numbers of a tensor of ``dtype`` cannot be rounded so."""
        formats = self.policy.formats() if self.policy else [self.weights, self.activations]
        for fmt in formats:
            if fmt is not None and not fmt.fits_in(dtype):
                raise FormatError(f"{fmt} does not fit in {dtype}, in which the run computes; choose a narrower format")

    def simulation(self, seed: int) -> Simulation | None:
        """Returns the simulation of the whole inference; None if it is not simulated, or if fp32 rounds nothing."""
        if self.policy is None or self.policy in (Policy("fp32"), Policy("fp64")):
            return None
        return Simulation(self.policy, seed=seed, warn_unused=False)

    def number(self, x: torch.Tensor) -> torch.Tensor:
        """A parameter or an observation as inference begins with it: rounded if all of that is simulated."""
        return x if self.policy is None else round(x, self.policy.format)

    def weight(self, x: torch.Tensor, *, convolution: tuple[bool, int] | None = None) -> torch.Tensor:
        """A weight as its product sees it.

        A scale for the tensor is one for each matrix; ``_ax0`` one for each output channel, as PyTorch's layers have
        them in front; blocks and rows lie along the axis that the product sums over.

        Args:
            x: (in, out), or (members, in, out) of an ensemble; filters as the convolution has them.
            convolution: for filters, whether it is transposed, and its groups.
        """
        fmt = self.weights
        if fmt is None:
            return x
        if convolution is None and x.dim() > 2:
            return torch.stack([self.weight(member) for member in x])
        if fmt.open_block is not None:
            contraction = _COLUMNS
            if convolution:
                contraction = of_convolution(transposed=convolution[0], groups=convolution[1])["weight"]
            return round_along(x, fmt, contraction, round)
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

        A scale that follows from the data is each observation's own, as in a batch of one: an episode never depends on
        others that are evaluated with it.

        Args:
            x: (..., n, in) for matrix products; (n, channels, ...) for convolutions; n observations.
            layer: the number of the product in an inference, for ranges that were watched.
            convolution: see :meth:`weight`.
        """
        fmt = self.layers[layer] if self.layers else self.activations
        if fmt is None:
            return x
        if fmt.elementwise:
            return round(x, fmt)
        if isinstance(fmt, IntegerFormat) and fmt.group is None:
            fmt = replace(fmt, axis=0) if convolution else replace(fmt, axis=None, group=ROW)
            return round(x, fmt)
        if isinstance(fmt, ScaledFloatFormat) and fmt.block is None and not convolution:
            return round(x, replace(fmt, block=ROW))
        contraction = of_convolution(transposed=convolution[0], groups=convolution[1])["input"] if convolution else LAST
        if fmt.open_block is not None and not isinstance(fmt, NVFP4Format):
            return round_along(x, fmt, contraction, round)
        axis = 0 if convolution else -2 % x.dim()
        return torch.cat([round_along(one, fmt, contraction, round) for one in torch.split(x, 1, axis)], axis)

    def calibrated(self, ranges: Sequence[tuple[float, float]]) -> Self:
        """Returns the quantization with fixed scales of activations, from the range that each product has been given.

        Where no activations are rounded, or all of inference is, nothing is fixed.

        Args:
            ranges: by product, in the order of inference.

        Raises:
            FormatError: activations are rounded, and not to integers, the only formats with scales that can be given.
        """
        fmt = self.activations
        if fmt is None:
            return self
        if not isinstance(fmt, IntegerFormat) or fmt.group is not None or fmt.scale is not None:
            raise FormatError(
                f"activations in {fmt} cannot be calibrated: fixed scales are for integers such as int8, uint8 and"
                " int8_ax0, whose scales the data would decide; leave the calibration out"
            )
        return replace(self, layers=tuple(_fixed(fmt, *of_product) for of_product in ranges))


def _fixed(fmt: IntegerFormat, low: float, high: float) -> IntegerFormat:
    """The integers with the scale and zero point of a range, the same as from data with this range."""
    extremes = torch.tensor([[min(low, 0.0), max(high, 0.0)]])
    scale, zero = scales_of(extremes, (fmt.code_min, fmt.code_max), None, symmetric=fmt.symmetric)
    plain = replace(fmt, axis=None, group=None, percentile=None)
    return replace(plain, scale=float(scale), zero_point=0 if fmt.symmetric else int(zero))


def _of_operand(fmt: Format | None, of: str) -> Format | None:
    """The format, if it says how an operand of any product is rounded."""
    axis = getattr(fmt, "axis", None)
    channels = isinstance(fmt, (IntegerFormat, QuarlFormat)) and getattr(fmt, "group", None) is None
    if fmt is None or axis in ((None, 0) if channels else (None, -1)):
        return fmt
    allowed = (
        "the axis of a weight is _ax0, its output channel" if channels else "blocks lie along what a product sums over"
    )
    raise FormatError(f"{fmt} cannot quantize {of}: {allowed}; leave out _ax{axis}")
