"""Rounding a tensor into a format."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd import forward_ad

from roundoff.extras import require

from .arithmetic.float_parameters import FloatParameters
from .arithmetic.float_tensors import round_nearest, signed
from .arithmetic.patterns import INTEGER
from .base.errors import FormatError
from .base.family import Family
from .base.format import Format, check_roundable
from .base.memory import has_kernels, is_dense, is_traced, is_virtual, materialized, unsimulated
from .base.modes import Overflow, Random, RandomBits, Rounding, check_choices, seeded
from .base.on_device import is_captured, where
from .base.operator import as_operator
from .families.floats import FloatFormat

__all__ = ["Backend", "is_dense", "round"]

Backend = Literal["native", "qtorch"]
_HALF_PRECISIONS = (torch.float16, torch.bfloat16)  # Inside torch.compile they are refused like other dtypes.
_QTORCH_MOST_Y = 22  # significand bits: its bit arithmetic drops at least one bit
_QTORCH_X = range(2, 9)  # exponent bits of the formats eXmY of qtorch


def round(
    x: torch.Tensor,
    format: Format | str | torch.dtype | Sequence[Format | str],
    *,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str | None = None,
    random: RandomBits | torch.Tensor | None = None,
    seed: int | None = None,
    gradient: Gradient | None = None,
    backend: Backend = "native",
) -> torch.Tensor:
    """Rounds every element of ``x`` to a value of ``format``: by default the nearest one, ties to even.

    NaN stays NaN, even if the format lacks NaN: hiding one would hide the crash a study looks for. Zeros and results
    that underflow keep the sign of ``x``, unless the format lacks a negative zero. Float formats underflow gradually
    (to subnormal numbers), unless they lack these. A value overflows if it would be rounded beyond the largest number
    in an unbounded range. It then becomes what ``overflow`` or the format's policy says: infinity or NaN (for the modes
    that round toward zero there, and to-odd, the largest number instead, as in IEEE 754), the largest number, or the
    value modulo the range (integers and fixed point only). An infinite ``x`` is treated as an overflow to nearest.

    With a ``gradient`` rounding is differentiated as if it were the identity, or a clamp to the format's range; the
    gradient itself is not rounded. Source: Bengio, Leonard, Courville, "Estimating or propagating gradients through
    stochastic neurons" (2013), for the straight-through estimator; clipped as in Hubara et al., "Quantized neural
    networks" (2016).

    Args:
        x: float32 or float64, any shape, strides and device; or float16 or bfloat16, computed in float32. Not changed.
        format: a format, its name or a PyTorch dtype; every number of it must fit in ``x.dtype``, or every result
            in a half-precision one. Or a list or tuple of float formats, one for every row (index along the first
            dimension).
        rounding: the mode; see :class:`Rounding`.
        overflow: the overflow policy; the format's if None.
        random: for stochastic rounding, the counter-based :class:`RandomBits`, or a tensor of random integers of the
            shape of ``x`` (uint8: 8 bits an element, uint16: 16, int32, uint32 and int64: the lowest 32).
        seed: in place of ``random``, for a single rounding: the same as ``random=RandomBits(seed)``.
        gradient: ``None``: the result is detached, since the derivative of rounding is zero almost everywhere;
            ``"straight-through"``: dL/dx = dL/dy; ``"clipped"``: 0 where ``x`` is outside the numbers of the format
            that ``x.dtype`` holds, or is NaN. ``format`` is then no list, and inside of ``torch.compile`` no name.
        backend: ``"qtorch"`` calls the library qtorch instead, with different results: ties go away from zero, overflow
            saturates, infinity and NaN become the largest number, the top exponent holds numbers, and zero has
            no sign. CPU or CUDA, float32 only; it is compiled when first used.

    Returns:
        A new tensor of the same shape, dtype and device, with ``x``'s strides where ``x`` is dense. It is detached from
        autograd, unless a ``gradient`` is given: then it requires one if ``x`` does, and the transforms of
        torch.func and forward-mode differentiation also support it.

    Raises:
        FormatError: ``x`` is not a strided float32 or float64 tensor, or cannot hold the format; a mode or policy does
            not exist or does not suit the format; random bits are missing, given to another mode, or given with a seed;
            the gradient does not exist, or it is to be clipped and the data decide the range.
    """
    random = seeded(random, seed)
    if gradient is not None:
        fmt = Format.parse(format)  # type: ignore[arg-type]  # parse refuses other types with its own message

        def round_x(x: torch.Tensor, random: RandomBits | torch.Tensor | None) -> torch.Tensor:
            return round(x, fmt, rounding=rounding, overflow=overflow, random=random, backend=backend)

        return round_with_gradient(x, fmt, gradient, random, round_x)
    if isinstance(x, torch.Tensor) and x.dtype in _HALF_PRECISIONS and not torch.compiler.is_compiling():
        return _round_half(x, format, rounding, overflow, random, backend)
    if isinstance(format, (list, tuple)):  # A format for each row.
        return _round_rows(x, format, rounding, overflow, random, backend)
    if torch.compiler.is_compiling() and backend == "native":
        return as_operator(x, format, rounding, overflow, random)  # type: ignore[arg-type]  # sequences of formats have returned above
    fmt = Format.parse(format)  # type: ignore[arg-type]  # parse refuses other types with its own message
    rounding, overflow = check_choices(rounding, overflow, random)
    check_roundable(x, fmt)
    x = x.detach()
    if backend != "native":
        return _round_by_backend(backend, x, fmt, rounding, overflow)
    options = (rounding, overflow, random)
    return _round_inside_modes(x, fmt, *options) if _len_torch_dispatch_stack() else fmt.rounded(x, *options)


@unsimulated
def _round_half(
    x: torch.Tensor,
    format: Format | str | torch.dtype | Sequence[Format | str],
    rounding: Rounding | str,
    overflow: Overflow | str | None,
    random: RandomBits | torch.Tensor | None,
    backend: Backend,
) -> torch.Tensor:
    """Rounds a tensor in half precision; its dtype must represent every rounded value."""
    x = x.detach()
    # Float32 has all numbers of both half precisions, and the CPU's loops.
    wide = round(x.float(), format, rounding=rounding, overflow=overflow, random=random, backend=backend)
    result = wide.to(x.dtype)
    # NaN is not equal to itself, so it is compared as 0.
    if not is_virtual(wide) and not torch.equal(result.float().nan_to_num(0), wide.nan_to_num(0)):
        raise FormatError(f"{x.dtype} does not have all of the rounded numbers of {format}: round x.float() instead")
    return result


@unsimulated
def _round_inside_modes(
    x: torch.Tensor,
    fmt: Format,
    rounding: Rounding,
    overflow: Overflow | None,
    random: RandomBits | torch.Tensor | None,
) -> torch.Tensor:
    """Rounds by an operator in a traced program; otherwise hidden from simulations, which would round it again."""
    if is_traced() and isinstance(fmt, Family):
        return as_operator(x, fmt, rounding, overflow, random)
    return fmt.rounded(x, rounding, overflow, random)


def _round_by_backend(
    backend: str, x: torch.Tensor, fmt: Format, rounding: Rounding, overflow: Overflow | None
) -> torch.Tensor:
    if backend != "qtorch":
        raise FormatError(f"backend must be 'native' or 'qtorch', got {backend!r}")
    quantize = _qtorch()
    if rounding is not Rounding.NEAREST_EVEN or overflow is not None:
        raise FormatError("backend 'qtorch' has one way to round: leave out rounding and overflow")
    if is_virtual(x):
        raise FormatError(f"backend 'qtorch' rounds plain tensors, got one of class {type(x).__name__}")
    if not isinstance(fmt, FloatFormat) or fmt.exponent_bits not in _QTORCH_X or fmt.significand_bits > _QTORCH_MOST_Y:
        raise FormatError(f"backend 'qtorch' rounds to eXmY with 2 <= X <= 8 and 0 <= Y <= {_QTORCH_MOST_Y}, got {fmt}")
    if x.dtype != torch.float32:
        raise FormatError(f"backend 'qtorch' rounds float32 tensors, got {x.dtype}")
    x = materialized(x).detach().contiguous()
    result: torch.Tensor = quantize(x, exp=fmt.exponent_bits, man=fmt.significand_bits, rounding="nearest")
    return result


@cache
def _qtorch() -> Callable[..., torch.Tensor]:
    """Returns ``float_quantize`` of the library qtorch 0.3.0; compiles its C++ at first use (about a minute)."""
    require("qtorch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # qtorch's own: deprecated imports
            from qtorch.quant import float_quantize  # noqa: PLC0415  compiles C++ when imported
    except (ImportError, OSError, RuntimeError) as error:
        raise FormatError(
            "backend 'qtorch' needs the package qtorch with a C++ compiler (g++) and ninja; importing it failed:"
            f" {error}"
        ) from error
    return float_quantize  # type: ignore[no-any-return]


@unsimulated
def _round_rows(
    x: torch.Tensor,
    formats: Sequence[Format | str],
    rounding: Rounding | str,
    overflow: Overflow | str | None,
    random: RandomBits | torch.Tensor | None,
    backend: Backend,
) -> torch.Tensor:
    """Rounds each row to its format: to nearest in one pass; in other modes in a pass for each different format."""
    parameters = row_parameters(formats, x)
    mode, _ = check_choices(rounding, overflow, random)
    x = x.detach() if torch.compiler.is_compiling() else materialized(x.detach())
    if mode is Rounding.NEAREST_EVEN and overflow is None and backend == "native":  # Formats are data here.
        return round_nearest(x, parameters)
    result = torch.empty_like(x)
    parsed = [Format.parse(fmt) for fmt in formats] * (x.shape[0] if len(formats) == 1 else 1)
    for fmt in set(parsed):
        selected = torch.tensor([row_fmt == fmt for row_fmt in parsed], device="cpu").to(x.device, non_blocking=True)
        # All rows are rounded, so that an element's random bits do not depend on the other rows' formats.
        rounded = round(x, fmt, rounding=rounding, overflow=overflow, random=random, backend=backend)
        result = torch.where(selected.view(-1, *[1] * (x.dim() - 1)), rounded, result)
    return result


def row_parameters(formats: Sequence[Format | str], x: torch.Tensor) -> FloatParameters:
    """Makes the parameters of float formats, one per row of ``x``, as tensors that broadcast against it.

    This takes some microseconds for each format: keep the result if the same formats are used again.

    Args:
        formats: One float format or name for each row of ``x``, or a single one for all.
        x: float32 or float64, at least one dimension; only its dtype, shape and device are used.

    Raises:
        FormatError: the number of formats is wrong, one is not a float format, or does not fit in ``x.dtype``.
    """
    parsed = [Format.parse(fmt) for fmt in formats]
    if x.ndim == 0 or len(parsed) not in (1, x.shape[0]):
        raise FormatError(
            f"a sequence of formats has one per row: got {len(parsed)} for a tensor of shape {tuple(x.shape)}"
        )
    rows = []
    for fmt in parsed:
        if not isinstance(fmt, FloatFormat) or not fmt.signed:
            raise FormatError(f"formats per row must be float formats, with a sign, got {fmt}")
        check_roundable(x, fmt)
        rows.append(fmt.parameters(x.dtype))  # To nearest-even.
    shape = (len(rows), *[1] * (x.ndim - 1))
    integer = INTEGER[x.dtype]

    def column(values: tuple[Any, ...]) -> Any:
        if isinstance(values[0], float):
            result = torch.tensor(values, dtype=x.dtype, device="cpu")
        else:
            result = torch.tensor([signed(value, integer) for value in values], dtype=integer, device="cpu")
        return result.to(x.device, non_blocking=True).view(shape)

    return FloatParameters(*map(column, zip(*rows, strict=True)))


Bounds = tuple[float, float]
Gradient = Literal["straight-through", "clipped"]


class _Round(torch.autograd.Function):
    """Rounds in the forward pass; passes all gradients on in the backward pass, or only of elements within bounds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor, bounds: Bounds | None) -> Any:
        ctx.bounds = bounds
        ctx.save_for_backward(*(() if bounds is None else (x,)))
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _pass_gradient(ctx, gradients[0]), None, None


class _RoundInTransforms(torch.autograd.Function):
    """:class:`_Round` in the slower form that torch.func and forward-mode differentiation require."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, random: Random, round_x: Callable[..., torch.Tensor], bounds: Bounds | None) -> Any:  # noqa: ARG004
        return round_x(x, random)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        x, _, _, ctx.bounds = inputs
        if ctx.bounds is not None:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _pass_gradient(ctx, gradients[0]), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _pass_gradient(ctx, tangents[0])


def _pass_gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    """Returns the gradient, with zeros for elements of the input outside of the bounds."""
    if ctx.bounds is None:
        return gradient
    (x,) = ctx.saved_tensors
    low, high = ctx.bounds
    return where((x >= low) & (x <= high), gradient, 0.0)


def round_with_gradient(
    x: torch.Tensor, fmt: Format, gradient: Gradient, random: Random, round_x: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Rounds ``x`` by ``round_x(x, random)``, with the gradient that :func:`roundoff.round` describes.

    Raises:
        FormatError: ``gradient`` is unknown; or clipped, and the data decide the range.
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
    # The faster form of the function has no rules for these.
    in_forward_mode = forward_ad._current_level >= 0  # noqa: SLF001  the level that is entered, -1 for none
    transformed = not torch.compiler.is_compiling() and (_are_functorch_transforms_active() or in_forward_mode)
    result: torch.Tensor
    if transformed:
        result = _RoundInTransforms.apply(x, random, round_x, bounds)  # type: ignore[no-untyped-call]
    else:
        result = _Round.apply(x, round_x(x, random), bounds)  # type: ignore[no-untyped-call]
    return result


def round_list(
    tensors: Sequence[torch.Tensor],
    fmt: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    draw: Callable[[], RandomBits | None] | None = None,
) -> None:
    """Rounds every tensor in place; the same bits as one by one.

    To a float format, tensors on a device that has kernels are rounded by one launch. Those that are empty or not
    contiguous, all of other formats, and all while a CUDA graph is captured, are rounded one by one.

    Args:
        tensors: tensors of one dtype and device, each as :meth:`.Format.round_into` takes it.
        fmt: the format.
        rounding: the mode.
        draw: called for each tensor, in order: the random bits of stochastic rounding; None for the other modes.
    """
    randoms = [draw() if draw else None for _ in tensors]
    together = []
    one_launch = isinstance(fmt, FloatFormat) and not fmt.native and not is_captured()
    for i, x in enumerate(tensors):
        if one_launch and has_kernels(x) and x.is_contiguous() and x.numel():
            together.append(i)
        else:
            fmt.round_into(x, x, rounding, None, randoms[i])
    if together and isinstance(fmt, FloatFormat):
        fmt.round_list_on_device([tensors[i] for i in together], rounding, [randoms[i] for i in together])
