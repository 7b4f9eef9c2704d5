"""Scalar references in exact rational arithmetic for the families other than floats, and inputs that try them hard."""

import math
from fractions import Fraction

import torch
from formats_exact import exponent, round_to_integer

from roundoff.formats.base.modes import Rounding

DETERMINISTIC = [mode for mode in Rounding if mode != Rounding.STOCHASTIC]


def float_element(q: Fraction, emin: int, m: int, largest: Fraction, rounding: Rounding, *, negative: bool) -> Fraction:
    """A magnitude rounded to a float with m stored bits and smallest normal 2^emin, saturating."""
    if q == 0:
        return q
    quantum = Fraction(2) ** (max(exponent(q), emin) - m)
    return min(round_to_integer(q / quantum, rounding, negative=negative) * quantum, largest)


def around(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values``, the midpoints between neighbours, and of all these the two neighbours in ``dtype``; both signs."""
    values = values.to(torch.float64).unique()
    points = torch.cat([values, (values[1:] + values[:-1]) / 2]).to(dtype)
    up = torch.nextafter(points, torch.tensor(torch.inf, dtype=dtype))
    down = torch.nextafter(points, torch.tensor(-torch.inf, dtype=dtype))
    points = torch.cat([points, up, down])
    return torch.cat([points, -points])


def random_patterns(n: int, dtype: torch.dtype, seed: int = 0, *, finite: bool = False) -> torch.Tensor:
    """Numbers of random bit patterns: every exponent is as likely as any other; NaN and infinity among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float32:
        x = torch.randint(-(1 << 31), 1 << 31, (n,), generator=generator).to(torch.int32).view(dtype)
    else:
        high = torch.randint(-(1 << 31), 1 << 31, (n,), generator=generator)
        x = ((high << 32) | torch.randint(0, 1 << 32, (n,), generator=generator)).view(dtype)
    return x[x.isfinite()] if finite else x


def special(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, the smallest and largest numbers of a dtype, infinities and NaN."""
    limits = torch.finfo(dtype)
    tiny = math.ulp(0.0) if dtype == torch.float64 else 2.0**-149
    points = [0.0, -0.0, tiny, -tiny, limits.tiny, -limits.tiny, limits.max, -limits.max, torch.inf, -torch.inf]
    return torch.tensor([*points, torch.nan], dtype=dtype)


def rounded(fmt, x: torch.Tensor, **how) -> torch.Tensor:
    """``x`` rounded by the quickest path."""
    result = torch.empty_like(x)
    fmt.round_into(x, result, **how)
    return result
