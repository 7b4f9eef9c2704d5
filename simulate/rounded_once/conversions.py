"""Conversions of float64 tensors to float32, in modes where rounding to the nearest in between would show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from ...formats import Format, Rounding, round
from ...formats.base.modes import WORD_BITS
from ...formats.base.operator import round_operator
from ...formats.families.floats import FP32
from ..native.stand_ins import StandsFor, standing_for
from .carrier_rounding import CarrierRounding
from .operations import carrier_rounding
from .operators import DrawAt

_aten = torch.ops.aten
_SMALLEST = 2.0**-149


_CONVERTING: dict[Any, tuple[int, Callable[[Sequence[Any], Mapping[str, Any]], Any]]] = {
    _aten._to_copy.default: (0, lambda _, kwargs: kwargs.get("dtype")),  # noqa: SLF001  the operation's name
    _aten.copy.default: (1, lambda args, _: args[0].dtype),
    _aten.copy_.default: (1, lambda args, _: args[0].dtype),
}
"""Operations that convert: the position of the converted argument, and the target dtype."""


def conversion(
    operation: OpOverload, fmt: Format, rounding: Rounding, draw: DrawAt
) -> Callable[..., torch.Tensor] | None:
    """Returns a conversion such that rounding its results to the format rounds the float64 values once.

    Args:
        operation: an ATen operation.
        fmt: the format its results are rounded to, afterwards.
        rounding: the mode of that rounding.
        draw: gives random bits; see :func:`~roundoff.simulate.rounded_once.results.result`.

    Returns:
        A function with the operation's arguments; it leaves to the operation anything but a conversion of a real
        float64 tensor to float32. None for operations that convert nothing, and where the operation itself will do: to
        nearest-even, as PyTorch converts to half precision.
    """
    source, target = _CONVERTING.get(operation, (0, None))
    if target is None or not fmt.fits_in(torch.float32):
        return None
    carrier = carrier_rounding(fmt, torch.float32, rounding, "conversion")
    if carrier is None:
        return None

    def converted(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = args[source]
        if x.dtype is torch.float64 and target(args, kwargs) is torch.float32 and _has_numbers(x):
            args = (*args[:source], _float32_numbers(x, carrier, draw), *args[source + 1 :])
        result: torch.Tensor = operation(*args, **kwargs)
        return result

    return standing_for(converted, StandsFor(converts=source))


def _has_numbers(x: torch.Tensor) -> bool:
    plain = type(x) in (torch.Tensor, torch.nn.Parameter, FakeTensor) and x.layout is torch.strided
    return plain and not (x.is_meta or x._is_zerotensor())  # noqa: SLF001  the only test there is


def _float32_numbers(x: torch.Tensor, carrier: CarrierRounding, draw: DrawAt) -> torch.Tensor:
    """The float64 values rounded to float32. NaN, infinities and signs of zeros stay.

    A value too large for float32 becomes infinite or its largest number, as the mode has it; for formats that saturate,
    such as posits, the largest number, and a value too small the smallest.
    """
    random, place = draw() if carrier.mode is Rounding.STOCHASTIC else (None, None)
    if not isinstance(x, FakeTensor):  # Otherwise a program is traced, which gets an operator.
        rounded = round(x, FP32, rounding=carrier.mode, random=random)
    elif random is None:
        rounded = round_operator(x, str(FP32), str(carrier.mode), None, None, 0, WORD_BITS, None)
    else:
        rounded = torch.ops.roundoff.round_drawn(x, place, str(FP32), str(carrier.mode), random.step, random.bits)
    if carrier.saturating:  # Posits: neither infinity nor zero.
        largest = torch.finfo(torch.float32).max
        rounded = torch.where(x.isfinite(), rounded.clamp(-largest, largest), rounded)
        vanished = (rounded == 0) & (x != 0)
        rounded = torch.where(vanished, torch.copysign(torch.full_like(x, _SMALLEST), x), rounded)
    return rounded
