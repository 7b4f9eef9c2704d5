"""Rounding with a gradient, for quantization-aware training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from .base.errors import FormatError
from .base.on_device import where

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base.format import Format
    from .base.modes import Random

Bounds = tuple[float, float]
Gradient = Literal["straight-through", "clipped"]


class _Round(torch.autograd.Function):
    """Rounds forward, and passes gradients through backward, all of them or those in range."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor, bounds: Bounds | None) -> Any:
        ctx.bounds = bounds
        ctx.save_for_backward(*(() if bounds is None else (x,)))
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _passed(ctx, gradients[0]), None, None


class _RoundInTransforms(torch.autograd.Function):
    """Gradients of a rounding in torch.func and forward-mode differentiation, in the slower form that they ask for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, random: Random, rounded: Callable[..., torch.Tensor], bounds: Bounds | None) -> Any:  # noqa: ARG004
        return rounded(x, random)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        x, _, _, ctx.bounds = inputs
        if ctx.bounds is not None:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _passed(ctx, gradients[0]), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _passed(ctx, tangents[0])


def _passed(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    if ctx.bounds is None:
        return gradient
    (x,) = ctx.saved_tensors
    low, high = ctx.bounds
    return where((x >= low) & (x <= high), gradient, 0.0)


def round_with_gradient(
    x: torch.Tensor, fmt: Format, gradient: Gradient, random: Random, rounded: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Rounds ``x`` by ``rounded(x, random)``, with the gradient that :func:`roundoff.round` describes.

    Raises:
        FormatError: ``gradient`` is none that there is; or clipped, and the data decide the range.
    """
    if gradient not in ("straight-through", "clipped"):
        raise FormatError(f"gradient must be 'straight-through' or 'clipped', got {gradient!r}")
    bounds = None
    if gradient == "clipped":
        bounds = fmt.bounds(x.dtype)
        if bounds is None:
            raise FormatError(
                f"{fmt} takes its range from the data, which leaves nothing to clip; use straight-through"
            )
    transformed = not torch.compiler.is_compiling() and (_are_functorch_transforms_active() or _in_forward_mode())
    result: torch.Tensor
    if transformed:
        result = _RoundInTransforms.apply(x, random, rounded, bounds)  # type: ignore[no-untyped-call]
    else:
        result = _Round.apply(x, rounded(x, random), bounds)  # type: ignore[no-untyped-call]
    return result


def _in_forward_mode() -> bool:
    return forward_ad._current_level >= 0  # noqa: SLF001  the level that is entered, -1 for none
