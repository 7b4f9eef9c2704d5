"""The values of a format where rounding, range and arithmetic go wrong first."""

from __future__ import annotations

import math

import torch

from ...formats import Format, round


def edge_values(fmt: Format | str, *, finite: bool = True) -> torch.Tensor:
    """The values of a format that programs stumble over, for tests that try each of them.

    Zeros, of both signs where there are; the smallest number, and numbers just above it; the largest subnormal and
    smallest normal number; 1 and its neighbours; odd multiples of the last bit, which are ties in any narrower format;
    the square roots of the largest and smallest number; the largest numbers; all with either sign.

    Args:
        fmt: a format or its name. Where elements share a scale, each value is taken as a single element.
        finite: False: also infinities and NaN, where the format has them.

    Returns:
        One-dimensional, each value once, in the carrier of the format; NaN last.

    Raises:
        FormatError: the format does not exist.
    """
    fmt = Format.parse(fmt)
    probes = [*fmt.edges(), math.inf]
    probes = [0.0, -0.0, *probes, *(-x for x in probes), math.nan]
    # One by one, since some formats scale all the numbers of a tensor by one of them
    values = torch.cat([round(x.reshape(1), fmt) for x in torch.tensor(probes, dtype=fmt.carrier)])
    if finite or not fmt.has_infinity:
        values = values[~values.isinf()]
    # Rounding keeps NaN visible also where no code stands for it
    has_nan = fmt.has_nan and not finite
    unique = dict.fromkeys((x, math.copysign(1, x)) for x in values.tolist() if not math.isnan(x))  # 0.0 equals -0.0
    return torch.tensor([x for x, _ in unique] + [math.nan] * has_nan, dtype=fmt.carrier)
