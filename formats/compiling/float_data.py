"""Rounding to a float format given as data, as one operator of PyTorch, which a compiled program has in its graph.

Another width is another tensor of parameters, not another program. :mod:`.inductor` tells inductor how to write the
operator into its loops; without it the operator runs as tensor operations. The bits are the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from ..arithmetic.float_parameters import FloatParameters
from ..arithmetic.float_tensors import round_nearest, signed
from ..arithmetic.patterns import INTEGER, LARGEST_EXPONENT
from ..base.operator import unwritten_like
from ..families.floats import FloatFormat

SIGN = {torch.float32: -(1 << 31), torch.float64: -(1 << 63)}
EXPONENT = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}
_INTEGER_FIELDS = ("shift", "smallest_normal", "largest", "over_positive", "infinite", "zero_sign", "flip")


class FloatData(NamedTuple):
    """A float format as :func:`round_float` takes it."""

    by_addition: bool
    """The kind of loop that rounds it: of two, each serves all formats of its kind."""
    parameters: torch.Tensor
    """The format's numbers, a vector of the carrier's type."""


def float_data(fmt: FloatFormat, dtype: torch.dtype, device: torch.device) -> FloatData:
    """The parameters of ``fmt`` in the carrier ``dtype``, for :func:`round_float`.

    Formats are rounded by an addition where that is possible (see ``FloatParameters.rounds_by_addition``); the others,
    such as bfloat16 in float32, bit by bit.
    """
    return FloatData(*_float_data(fmt, dtype, device))


@lru_cache(maxsize=256)
def _float_data(fmt: FloatFormat, dtype: torch.dtype, device: torch.device) -> tuple[bool, torch.Tensor]:
    p = fmt.parameters(dtype)
    if p.rounds_by_addition(dtype):
        bias, emax = LARGEST_EXPONENT[dtype], fmt.emax
        numbers = [2.0**fmt.emin, 2.0 ** (emax + 1), 1.5 * 2.0**p.shift, 2.0 ** (bias - emax), 2.0 ** (emax - bias)]
        return True, torch.tensor(numbers, dtype=dtype, device=device)
    integers = [signed(getattr(p, name), INTEGER[dtype]) for name in _INTEGER_FIELDS]
    packed = torch.tensor(integers, dtype=INTEGER[dtype]).view(dtype)
    return False, torch.cat((packed, torch.tensor([p.magic], dtype=dtype))).to(device)


@torch.library.custom_op("roundoff::round_float", mutates_args=())
def round_float(x: torch.Tensor, parameters: torch.Tensor, by_addition: bool) -> torch.Tensor:
    """A new tensor with the elements of ``x`` rounded to nearest-even, as :func:`roundoff.round` does.

    Args:
        x: float32 or float64, any shape and device.
        parameters: from :func:`float_data`, for the same dtype and device; or a row of them for each ``x[i]``.
        by_addition: whether an addition rounds to the format; from :func:`float_data`.

    Returns:
        NaN stays NaN (a signalling one may become quiet); infinities, signed zeros, subnormals and overflow are
        treated as the format says.
    """
    if parameters.dim() > 1:
        rows = zip(x.unbind(), parameters.unbind(), strict=True)
        return torch.stack([_round(part, row, by_addition) for part, row in rows])
    return _round(x, parameters, by_addition)


@round_float.register_fake
def _round_float_fake(x: torch.Tensor, parameters: torch.Tensor, by_addition: bool) -> torch.Tensor:  # noqa: ARG001
    return unwritten_like(x)


def _round(x: torch.Tensor, parameters: torch.Tensor, by_addition: bool) -> torch.Tensor:
    if by_addition:
        smallest, beyond, factor, up, down = parameters.unbind()
        integer = INTEGER[x.dtype]
        bits = x.view(integer)
        # The power of two of the last retained place, times 1.5 * 2^stored: the sum has no room for lower places.
        binade = (bits & EXPONENT[x.dtype]).view(x.dtype)
        pushes = torch.minimum(torch.maximum(binade, smallest), beyond) * factor
        rounded = (x + pushes) - pushes
        rounded = (rounded * up) * down  # Numbers beyond the largest become infinite.
        return ((rounded.view(integer) & ~SIGN[x.dtype]) | (bits & SIGN[x.dtype])).view(x.dtype)
    integer = INTEGER[x.dtype]
    fields = dict(zip(_INTEGER_FIELDS, parameters[:-1].view(integer).unbind(), strict=True))
    unused = dict.fromkeys(set(FloatParameters._fields) - {*fields, "magic"}, 0)  # Fields of other modes.
    return round_nearest(x, FloatParameters(**fields, **unused, magic=parameters[-1]))  # type: ignore[arg-type]
