"""Rounding a tensor into a format."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch
from torch._C import _len_torch_dispatch_stack

from roundoff.extras import require

from .arithmetic.float_tensors import round_nearest
from .as_data import row_parameters
from .base.errors import FormatError
from .base.family import Family
from .base.format import Format, check_roundable
from .base.layouts import is_dense
from .base.memory import apart, is_traced, is_virtual, settled
from .base.modes import Overflow, RandomBits, Rounding, check_choices, seeded
from .base.operator import as_operator
from .families.floats import FloatFormat
from .gradients import round_with_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .gradients import Gradient

__all__ = ["Backend", "is_dense", "round"]

Backend = Literal["native", "qtorch"]
_HALVES = (torch.float16, torch.bfloat16)
_LARGEST_M = 22  # qtorch's bit arithmetic drops at least one bit
_EXPONENT_BITS = range(2, 9)


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
    """Rounds every element of ``x`` to a number of ``format``: by default the nearest one, ties to even.

    NaN stays NaN, even if the format lacks NaN: hiding one would hide the crash a study looks for. Zeros and results
    that underflow keep the sign of ``x``, unless the format has no negative zero. Float formats underflow gradually
    (to subnormal numbers), unless they lack these. Overflow means to round, as if the range were unbounded, beyond the
    largest number. It follows the format's policy or ``overflow``: infinity or NaN (for the modes that round toward
    zero there, and to-odd, the largest number instead, as in IEEE 754), the largest number, or wrapping round
    (integers and fixed point only). An infinite ``x`` gives what overflow to nearest gives.

    With a ``gradient`` rounding is differentiable, as if it were the identity, or a clamp to the format's range; the
    gradient itself is not rounded. Source: Bengio, Leonard, Courville, "Estimating or propagating gradients through
    stochastic neurons" (2013), for the straight-through estimator; clipped as in Hubara et al., "Quantized neural
    networks" (2016).

    Args:
        x: float32 or float64, any shape, strides and device; or float16 or bfloat16, computed in float32. It is not
            changed.
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
        fmt = Format.parse(format)  # type: ignore[arg-type]  # what is no text gets Format's own message

        def rounded(x: torch.Tensor, random: RandomBits | torch.Tensor | None) -> torch.Tensor:
            return round(x, fmt, rounding=rounding, overflow=overflow, random=random, backend=backend)

        return round_with_gradient(x, fmt, gradient, random, rounded)
    if isinstance(x, torch.Tensor) and x.dtype in _HALVES and not torch.compiler.is_compiling():
        return _round_half(x, format, rounding, overflow, random, backend)
    if isinstance(format, (list, tuple)):
        return _round_rows(x, format, rounding, overflow, random, backend)
    if torch.compiler.is_compiling() and backend == "native":
        return as_operator(x, format, rounding, overflow, random)  # type: ignore[arg-type]  # sequences are settled above
    fmt = Format.parse(format)  # type: ignore[arg-type]  # what is no text gets Format's own message
    rounding, overflow = check_choices(rounding, overflow, random)
    check_roundable(x, fmt)
    x = x.detach()
    if backend != "native":
        return _round_with(backend, x, fmt, rounding, overflow)
    alone = not _len_torch_dispatch_stack()
    how = (rounding, overflow, random)
    return fmt.rounded(x, *how) if alone else _round_among_modes(x, fmt, *how)


@apart
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
    wide = round(x.float(), format, rounding=rounding, overflow=overflow, random=random, backend=backend)
    result = wide.to(x.dtype)
    if not is_virtual(wide) and not torch.equal(result.float().nan_to_num(0), wide.nan_to_num(0)):
        raise FormatError(f"{x.dtype} does not have all of the rounded numbers of {format}: round x.float() instead")
    return result


@apart
def _round_among_modes(
    x: torch.Tensor,
    fmt: Format,
    rounding: Rounding,
    overflow: Overflow | None,
    random: RandomBits | torch.Tensor | None,
) -> torch.Tensor:
    """Rounds by an operator in a traced program; else hidden from simulations, which round what PyTorch computes."""
    if is_traced() and isinstance(fmt, Family):
        return as_operator(x, fmt, rounding, overflow, random)
    return fmt.rounded(x, rounding, overflow, random)


def _round_with(
    backend: str, x: torch.Tensor, fmt: Format, rounding: Rounding, overflow: Overflow | None
) -> torch.Tensor:
    if backend != "qtorch":
        raise FormatError(f"backend must be 'native' or 'qtorch', got {backend!r}")
    quantize = _qtorch()
    if rounding is not Rounding.NEAREST_EVEN or overflow is not None:
        raise FormatError("backend 'qtorch' has one way to round: leave out rounding and overflow")
    if is_virtual(x):
        raise FormatError(f"backend 'qtorch' rounds plain tensors, got one of class {type(x).__name__}")
    if not isinstance(fmt, FloatFormat) or fmt.exponent_bits not in _EXPONENT_BITS or fmt.significand_bits > _LARGEST_M:
        raise FormatError(f"backend 'qtorch' rounds to eXmY with 2 <= X <= 8 and 0 <= Y <= {_LARGEST_M}, got {fmt}")
    if x.dtype != torch.float32:
        raise FormatError(f"backend 'qtorch' rounds float32 tensors, got {x.dtype}")
    x = settled(x).detach().contiguous()
    result: torch.Tensor = quantize(x, exp=fmt.exponent_bits, man=fmt.significand_bits, rounding="nearest")
    return result


@cache
def _qtorch() -> Callable[..., torch.Tensor]:
    """``float_quantize`` of the library qtorch 0.3.0. Its C++ is compiled once (about a minute)."""
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


@apart
def _round_rows(
    x: torch.Tensor,
    formats: Sequence[Format | str],
    rounding: Rounding | str,
    overflow: Overflow | str | None,
    random: RandomBits | torch.Tensor | None,
    backend: Backend,
) -> torch.Tensor:
    """A format per row: to nearest with the formats as data; in the other modes once for each different format."""
    parameters = row_parameters(formats, x)
    mode, _ = check_choices(rounding, overflow, random)
    x = x.detach() if torch.compiler.is_compiling() else settled(x.detach())
    if mode is Rounding.NEAREST_EVEN and overflow is None and backend == "native":
        return round_nearest(x, parameters)
    result = torch.empty_like(x)
    parsed = [Format.parse(fmt) for fmt in formats] * (x.shape[0] if len(formats) == 1 else 1)
    for fmt in set(parsed):
        mine = torch.tensor([other == fmt for other in parsed], device="cpu").to(x.device, non_blocking=True)
        # All rows are rounded, so that an element's random bits do not depend on the other rows' formats.
        rounded = round(x, fmt, rounding=rounding, overflow=overflow, random=random, backend=backend)
        result = torch.where(mine.view(-1, *[1] * (x.dim() - 1)), rounded, result)
    return result
