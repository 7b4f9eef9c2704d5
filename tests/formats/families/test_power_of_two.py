"""E8M0: every mode against exact rational arithmetic; its codes are tested with the other 8-bit floats."""

import math
from fractions import Fraction

import pytest
import torch
from comparing import same_bits
from families_exact import random_patterns, rounded, special
from formats_exact import exponent, goes_up
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, Overflow, RandomBits, Rounding
from roundoff.formats.base.random_words import random_words

BIAS, LARGEST = 127, 254
INWARD = (Rounding.TOWARD_ZERO, Rounding.DOWN, Rounding.TO_ODD)


def exact(x, rounding, overflow, word=None):
    """OCP MX v1.0, 5.4.1, with the modes of IEEE 754: a magnitude between two powers of two."""
    beyond = math.nan if overflow is Overflow.NAN else 2.0 ** (LARGEST - BIAS)
    if not x > 0:
        return math.nan
    if math.isinf(x):
        return beyond
    magnitude = Fraction(x)
    code = exponent(magnitude) + BIAS
    if code < 0:
        return 2.0**-BIAS
    fraction = magnitude / Fraction(2) ** (code - BIAS) - 1
    code += goes_up(fraction, rounding, negative=False, odd=code % 2 == 1, word=word)
    if code > LARGEST:
        return 2.0 ** (LARGEST - BIAS) if rounding in INWARD else beyond
    return 2.0 ** (code - BIAS)


def numbers(dtype):
    powers = torch.exp2(torch.arange(-BIAS - 3, BIAS + 1, dtype=torch.float64))
    if dtype == torch.float64:
        powers = torch.cat([powers, torch.exp2(torch.tensor([-1000.0, 128.0, 129.0, 900.0], dtype=dtype))])
    points = torch.cat([powers * f for f in (1.0, 1.25, 1.5, 1.75)]).to(dtype)
    limit = torch.tensor(torch.inf, dtype=dtype)
    points = torch.cat([points, torch.nextafter(points, limit), torch.nextafter(points, -limit)])
    return torch.cat([points, -points[:20], random_patterns(500, dtype), special(dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("overflow", [Overflow.NAN, Overflow.SATURATE])
def test_equals_exact_arithmetic_in_every_mode(overflow, dtype):
    fmt, x = Format.parse("fp8_e8m0"), numbers(dtype)
    saturating = Format.parse("fp8_e8m0_saturate")
    for rounding in Rounding:
        random = RandomBits(2) if rounding is Rounding.STOCHASTIC else None
        words = [None] * len(x) if random is None else random_words(random, x).tolist()
        values = [exact(v, rounding, overflow, w) for v, w in zip(x.tolist(), words, strict=True)]
        expected = torch.tensor(values, dtype=torch.float64).to(dtype)
        how = {"rounding": rounding, "random": random}
        assert same_bits(rounded(fmt, x, overflow=overflow, **how), expected), rounding
        assert same_bits(by_operations(fmt, x, overflow=overflow, **how), expected), rounding
        if overflow is Overflow.SATURATE:
            assert same_bits(rounded(saturating, x, **how), expected), rounding
        codes = fmt.encode(x, rounding, overflow, random)
        assert same_bits(fmt.decode(codes, dtype), expected), rounding


def test_numbers_beyond_the_largest():
    """Toward zero, down and to-odd there is the largest number, as for floats (IEEE 754, 7.4)."""
    x = torch.tensor([2.0**128, 1.25 * 2.0**127, 1.75 * 2.0**127], dtype=torch.float64)
    largest, nan = 2.0**127, math.nan
    expected = {"toward-zero": [largest] * 3, "down": [largest] * 3, "to-odd": [largest] * 3, "up": [nan] * 3,
                "nearest-even": [nan, largest, nan], "nearest-away": [nan, largest, nan]}  # fmt: skip
    for mode, numbers in expected.items():
        got = roundoff.round(x, "fp8_e8m0", rounding=mode)
        assert same_bits(got, torch.tensor(numbers, dtype=torch.float64)), mode


def test_the_name_e8m0_is_another_format():
    with pytest.warns(UserWarning, match="the scale type of OCP MX is 'fp8_e8m0'"):
        assert Format.parse("e8m0").bits == 9
    assert Format.parse("fp8_e8m0").bits == 8
