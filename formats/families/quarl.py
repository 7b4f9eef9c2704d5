"""Uniform affine rounding as QuaRL's authors compute it: for weights, which stay floats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import gpu
from ..arithmetic.cutting import check_axis
from ..base.errors import FormatError
from ..base.family import Family, check_integer
from ..base.memory import along
from ..base.modes import Rounding, RoundingOptions
from ..base.names import AXIS_SUFFIX, Beginning, Suffix, format_called, register
from ..cpu.numbers.grids import round_channels
from ..scales.calibration import SMALLEST_SCALE
from ..scales.shared_scale import AXES

_HALF = 16  # The width that means fp16.
_STEPS = -(1 << 20), 1 << 20  # Bounds that no number of steps reaches.


@dataclass(frozen=True)
class QuarlFormat(Family):
    """Multiples of a step d, which depends on the smallest and the largest value: x -> d round(x / d).

    d = (|min x| + |max x|) / 2^width, with the minimum and maximum of the tensor, or of each channel along
    ``axis``; every operation is rounded once to the carrier. The zero point of the paper is left out, because it would
    also be rounded to a multiple of d. If the range includes zero, 2^width + 1 multiples are in use, one more than
    ``width`` bits can encode. If all values have one sign, d is larger than necessary. Therefore the format cannot be
    encoded: it shows the effect of rounding on a policy, and ``int8`` also stores one.

    Width 16 means fp16 (e5m10) without any step, as in the paper's Table 4; with ``affine`` it is the formula with 16
    bits, as in the paper's Figure 7.

    NaN or infinity in a tensor or channel makes all of it NaN. Zeros become +0, where the authors' 0 / 0 is NaN.
    Constant tensors of 2^(width - 127) or more in size do not change; below, they may, since d is at least 2^-126. A
    value near the carrier's largest may overflow to infinity. Rounding twice may differ from rounding once, since the
    first changes the minimum and maximum. Modes other than nearest-even choose between the two multiples next to x.

    Args:
        width: 2 to 16.
        axis: the channel axis; None: the tensor has one step. The authors use channels only for the weights of
            convolutions, by output channel.
        affine: the formula also at width 16.

    Raises:
        FormatError: a value is out of range, or ``affine`` is given with a width other than 16.

    Source:
        Lam et al., "Quantized Reinforcement Learning (QuaRL)", arXiv:1910.01055; the code of its tables
        (``baseline/new_ptq.py``), where min and max do not include 0, as the paper's text has it.
    """

    width: int
    axis: int | None = None
    affine: bool = False

    carrier = torch.float32  # multiples of d are as exact as its products

    def __post_init__(self) -> None:
        check_integer("a quarl format", "width", self.width, range(2, _HALF + 1))
        if self.axis is not None:
            check_integer("a quarl format", "axis", self.axis, AXES)
        if self.affine and self.width != _HALF:
            raise FormatError(f"affine is only for quarl16, which is fp16 without it, got width {self.width}")
        if self.axis is not None and self._half:
            raise FormatError(f"quarl16 is fp16, which has no step and so no axis, got axis {self.axis}")

    def __str__(self) -> str:
        axis = f"_ax{self.axis}" if self.axis is not None else ""
        return f"quarl{self.width}" + ("_affine" if self.affine else "") + axis

    @property
    def _half(self) -> bool:
        return self.width == _HALF and not self.affine

    @property
    def bits(self) -> int:
        """The width."""
        return self.width

    @property
    def elementwise(self) -> bool:
        """Whether elements are rounded one by one: only fp16, which has no step."""
        return self._half

    def fits_in(self, dtype: torch.dtype) -> bool:
        """Whether ``dtype`` is float32 or float64."""
        return dtype in (torch.float32, torch.float64)

    def _check_shape(self, x: torch.Tensor) -> None:
        if self.axis is not None and x.numel():
            check_axis(self, self.axis, x)

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if self._half:
            format_called("e5m10").round_into(source, target, options.rounding, None, options.random)
        elif options.rounding is Rounding.NEAREST_EVEN:
            self._to_nearest(source, target)
        else:
            step = self._step(source)
            length, inner = along(source, check_axis(self, self.axis or 0, source)) if step.numel() > 1 else (1, 1)
            parameters = (1 / step).flatten(), step.flatten(), torch.zeros_like(step).flatten()
            round_channels(source, target, (length, inner), parameters, _STEPS, options, between=True)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if self._half:
            half: Family = format_called("e5m10")
            half._round_on_device(source, target, options._replace(policy=half._policy(None)))  # noqa: SLF001  a family's own
        elif options.rounding is Rounding.NEAREST_EVEN:
            self._to_nearest(source, target)
        else:
            step = self._step(source).flatten()
            inner = source.shape[check_axis(self, self.axis or 0, source) + 1 :].numel() if step.numel() > 1 else 1
            gpu.to_grids(source, target, (inner, step.numel()), step, torch.zeros_like(step), _STEPS, options)

    def _to_nearest(self, source: torch.Tensor, target: torch.Tensor) -> None:
        step = self._step(source)
        torch.div(source, step, out=target)
        target.round_().add_(0.0).mul_(step)  # -0 + 0 is 0

    def _step(self, x: torch.Tensor) -> torch.Tensor:
        """d, in a shape that broadcasts with ``x``."""
        if self.axis is None or x.dim() == 0:
            low, high = torch.aminmax(x)
        else:
            others = [axis for axis in range(x.dim()) if axis != check_axis(self, self.axis, x)]
            low, high = (x.amin(others, keepdim=True), x.amax(others, keepdim=True)) if others else (x, x)
        part = 2.0**-self.width  # first, so that the sum cannot overflow; it is exact
        return (low.abs() * part + high.abs() * part).clamp(min=SMALLEST_SCALE)


register(
    QuarlFormat,
    beginnings=[Beginning("quarlN", r"quarl(\d{1,3})", lambda match: {"width": int(match[1])})],
    suffixes=[Suffix("_affine", "affine", "(affine)", lambda _: True), AXIS_SUFFIX],
    called="quarl",
    verified=["quarl8"],
    drawn={"width": range(2, 17), "affine": (False, True)},
)
