"""Rounding with a gradient, for quantization-aware training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from roundoff.formats.errors import FormatError
from roundoff.formats.format import Format
from roundoff.formats.modes import Overflow, RandomBits, Rounding
from roundoff.formats.rounding import round

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

Gradient = Literal["straight-through", "clipped"]


class _FakeRound(torch.autograd.Function):
    """Rounds forward, and passes gradients through backward, all of them or those in range."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, rounded: torch.Tensor, bounds: tuple[float, float] | None) -> Any:
        ctx.bounds = bounds  # type: ignore[attr-defined]
        ctx.save_for_backward(*(() if bounds is None else (x,)))
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        if ctx.bounds is None:
            return gradient, None, None
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        return torch.where((x >= low) & (x <= high), gradient, 0.0), None, None


def fake_round(
    x: torch.Tensor,
    format: Format | str,
    *,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str | None = None,
    random: RandomBits | torch.Tensor | None = None,
    gradient: Gradient = "straight-through",
) -> torch.Tensor:
    """:func:`roundoff.round`, differentiable: as if rounding were the identity, or a clamp to the format's range.

    The gradient itself is not rounded. Source: Bengio, Leonard, Courville, "Estimating or propagating gradients through
    stochastic neurons" (2013), for the straight-through estimator; clipped as in Hubara et al., "Quantized neural
    networks" (2016).

    Args:
        x: float32 or float64, any shape and device.
        format: a format or its name; inside ``torch.compile`` a format, since names are not read there.
        rounding: as for ``round``.
        overflow: likewise.
        random: likewise.
        gradient: ``"straight-through"``: dL/dx = dL/dy; ``"clipped"``: 0 where ``x`` lies outside the numbers of the
            format or is NaN.

    Returns:
        A tensor of the shape and dtype of ``x`` that requires a gradient if ``x`` does.

    Raises:
        FormatError: as for ``round``; or ``gradient`` is neither; or clipped, and the data decide the range.
    """
    fmt = Format.parse(format)
    if gradient not in ("straight-through", "clipped"):
        raise FormatError(f"gradient must be 'straight-through' or 'clipped', got {gradient!r}")
    bounds = None
    if gradient == "clipped":
        high = getattr(fmt, "max", None)
        if high is None:
            raise FormatError(
                f"{fmt} takes its range from the data, which leaves nothing to clip; use straight-through"
            )
        bounds = (float(getattr(fmt, "min", -high)), float(high))
    rounded = round(x, fmt, rounding=rounding, overflow=overflow, random=random)
    result: torch.Tensor = _FakeRound.apply(x, rounded, bounds)  # type: ignore[no-untyped-call]
    return result
