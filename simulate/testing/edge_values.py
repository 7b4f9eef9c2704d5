"""The values of a format at which rounding, range and arithmetic go wrong first."""

from __future__ import annotations

import math

import torch

from ...formats import FloatFormat, Format, LogarithmicFormat, PositFormat, round

_EXPONENTS = {torch.float32: range(-149, 128), torch.float64: range(-1074, 1024)}


def edge_values(fmt: Format | str, *, finite: bool = True) -> torch.Tensor:
    """The values of a format that programs stumble over, for tests that try each of them.

    Zeros, of both signs where there are; the smallest number, and numbers just above it; the largest subnormal and
    smallest normal number; 1 and its neighbours; odd multiples of the last bit, which are ties in any narrower
    format; the square roots of the largest and smallest number; the
    largest numbers; all with either sign.

    Args:
        fmt: a format or its name. Where numbers share a scale, each value is one that stands alone.
        finite: False: infinities and NaN too, where the format has them.

    Returns:
        One-dimensional, each value once, in the carrier of the format; NaN last.

    Raises:
        FormatError: there is no such format.
    """
    fmt = Format.parse(fmt)
    probes = [*_positive_probes(fmt), math.inf]
    probes = [0.0, -0.0, *probes, *(-x for x in probes), math.nan]
    # one by one, since some formats scale all the numbers of a tensor by one of them
    values = torch.cat([round(x.reshape(1), fmt) for x in torch.tensor(probes, dtype=fmt.carrier)])
    if finite or not getattr(fmt, "has_infinity", False):
        values = values[~values.isinf()]
    # rounding keeps NaN visible also where no code stands for it
    has_nan = not finite and (isinstance(fmt, (PositFormat, LogarithmicFormat)) or getattr(fmt, "has_nan", False))
    kept = {(x, math.copysign(1, x)): None for x in values.tolist() if not math.isnan(x)}
    return torch.tensor([x for x, _ in kept] + [math.nan] * has_nan, dtype=fmt.carrier)


def _positive_probes(fmt: Format) -> list[float]:
    """Numbers of the carrier which, rounded, are the edges of ``fmt``."""
    exponents = _EXPONENTS[fmt.carrier]
    probes = [0.5, 1.0, 1.5, 2.0, 3.0]
    eps = getattr(fmt, "eps", 2.0**-4)
    probes += [1 + eps, 1 + 2 * eps, 1 + 3 * eps, 1 - eps / 2, 1 - eps, 2 - eps, 2 - 2 * eps]
    if isinstance(fmt, FloatFormat):
        small, normal, largest = fmt.smallest_subnormal, fmt.smallest_normal, fmt.max
        step = math.ldexp(fmt.eps, fmt.emax)
        probes += [small, 2 * small, 3 * small, normal - small, normal, normal + small, normal * (1 + fmt.eps)]
        probes += [largest, largest - step, largest / 2, math.sqrt(largest), math.sqrt(small), math.sqrt(normal)]
    else:
        probes += [math.ldexp(1.0, e) for e in exponents]
        probes += [math.ldexp(2 - 2.0**-20, e) for e in exponents if e >= -100]
    return probes
