import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from comparing import same_bits
from families_exact import DETERMINISTIC, random_patterns, rounded, special
from formats_exact import goes_up
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

from roundoff.formats import FormatError
from roundoff.formats.base.modes import NEAREST, Overflow, RandomBits, Rounding
from roundoff.formats.families.logarithmic import LogarithmicFormat

FORMATS = [LogarithmicFormat(*w) for w in ((8, 3), (3, 0), (3, 1), (5, 3), (8, 0), (8, 6), (10, 4), (12, 3), (16, 12))]
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


@cache
def power(k: int, f: int, dtype) -> float:
    """The float nearest to 2^(k / 2^f), with mpmath."""
    with mpmath.workprec(200):
        exact = mpmath.power(2, mpmath.mpf(k) / 2**f)
        near = NUMPY[dtype](float(exact))
        around = [np.nextafter(near, NUMPY[dtype](-np.inf)), near, np.nextafter(near, NUMPY[dtype](np.inf))]
        return min((float(c) for c in around), key=lambda c: abs(mpmath.mpf(c) - exact))


@cache
def nearest(magnitude: float, f: int) -> int:
    """The integer nearest to 2^f log2(magnitude)."""
    with mpmath.workprec(200):
        return int(mpmath.floor(mpmath.log(magnitude, 2) * 2**f + mpmath.mpf(1) / 2))


def exact(fmt, x: float, rounding: Rounding, dtype, word: int | None = None) -> float:
    """The definition, with 200 bits of precision."""
    if math.isnan(x) or x == 0:
        return x + 0.0
    f, zero = fmt.fraction_bits, -(1 << fmt.width - 2)
    magnitude, sign = abs(x), math.copysign(1.0, x)
    if math.isinf(x):
        return sign * power(-zero - 1, f, dtype)
    k = nearest(magnitude, f)
    if rounding not in NEAREST:
        k = max(min(k, -zero - 1), zero)
        values = {j: power(j, f, dtype) if j > zero else 0.0 for j in (k - 1, k, k + 1)}
        k = max(j for j in values if values[j] <= magnitude)
        if k < -zero - 1:
            fraction = (Fraction(magnitude) - Fraction(values[k])) / (Fraction(values[k + 1]) - Fraction(values[k]))
            if rounding == Rounding.STOCHASTIC:
                fraction = Fraction(float(fraction))
            k += goes_up(fraction, rounding, negative=x < 0, odd=k % 2 == 1, word=word)
    k = min(k, -zero - 1)
    return 0.0 if k <= zero else sign * power(k, f, dtype)


def inputs(fmt, dtype):
    """All numbers (some of them, in wide formats), the borders between them, and the floats about these."""
    zero, f = -(1 << fmt.width - 2), fmt.fraction_bits
    ks = range(zero - 1, -zero + 1) if fmt.width <= 8 else [*range(zero - 1, -zero, -zero // 40), -zero - 1, -zero]
    with mpmath.workprec(200):
        borders = [float(mpmath.power(2, (mpmath.mpf(k) + mpmath.mpf(1) / 2) / 2**f)) for k in ks]
    points = torch.tensor([power(k, f, dtype) for k in ks] + borders, dtype=torch.float64).to(dtype)
    ends = [torch.tensor(end, dtype=dtype) for end in (torch.inf, -torch.inf)]
    points = torch.cat([points, *(torch.nextafter(points, end) for end in ends), random_patterns(60, dtype)])
    return torch.cat([points, -points, special(dtype)])


@pytest.mark.parametrize(("fmt", "dtype"), [(f, d) for f in FORMATS for d in NUMPY if f.fits_in(d)], ids=str)
def test_equals_high_precision_at_every_border(fmt, dtype):
    x = inputs(fmt, dtype)
    for rounding in DETERMINISTIC:
        expected = torch.tensor([exact(fmt, v, rounding, dtype) for v in x.tolist()], dtype=dtype)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_codes_are_sign_and_logarithm(fmt):
    n, zero = fmt.width, 1 << fmt.width - 2
    codes = torch.arange(1 << n)
    numbers = fmt.decode(codes, torch.float64)
    for code in {0, 1, zero - 1, zero + 1, 2 * zero - 1, 2 * zero, 3 * zero - 1, 3 * zero + 1, 4 * zero - 1}:
        k = code % (2 * zero) - (2 * zero if code % (2 * zero) >= zero else 0)
        sign = -1 if code >= 2 * zero else 1
        assert numbers[code] == sign * power(k, fmt.fraction_bits, torch.float64)
    assert numbers[zero] == 0
    assert numbers[3 * zero].isnan()
    assert numbers.isnan().sum() == 1
    assert fmt.encode(numbers).tolist() == codes.tolist()
    assert fmt.values().tolist() == sorted(v for v in numbers.tolist() if not math.isnan(v))
    assert (fmt.values()[-1].item(), fmt.values()[2 * zero].item()) == (fmt.max, fmt.smallest)
    assert fmt.eps == pytest.approx(2 ** (1 / 2**fmt.fraction_bits) - 1, rel=1e-14)
    if fmt.fits_in(torch.float32):
        assert fmt.encode(fmt.decode(codes)).tolist() == codes.tolist()


def test_one_and_powers_of_two_are_exact():
    x = 2.0 ** torch.arange(-7, 8)
    assert same_bits(rounded(LogarithmicFormat(8, 3), x), x)
    assert LogarithmicFormat(8, 3).encode(torch.tensor([1.0, 2.0, -1.0, 0.0, torch.nan])).tolist() == [
        0,
        8,
        128,
        64,
        192,
    ]


def test_nearest_is_nearest_in_the_logarithm():
    fmt = LogarithmicFormat(8, 0)  # powers of two: the border between 1 and 2 is their geometric mean
    assert rounded(fmt, torch.tensor([1.4142135, 1.4142137, -1.5])).tolist() == [1.0, 2.0, -2.0]


def test_stochastic_equals_the_reference_and_is_unbiased_in_value():
    fmt = LogarithmicFormat(6, 1)
    x = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    words = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(1))
    numbers = zip(x.tolist(), words.tolist(), strict=True)
    expected = [exact(fmt, v, Rounding.STOCHASTIC, torch.float64, w) for v, w in numbers]
    assert rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=words).tolist() == expected
    every_word = torch.arange(1 << 16).to(torch.uint16)
    for value in (1.0, 1.3, -0.01, 17.0):
        same = torch.full(every_word.shape, value, dtype=torch.float64)
        y = rounded(fmt, same, rounding=Rounding.STOCHASTIC, random=every_word)
        assert abs(float(y.mean()) - value) <= float(y.max() - y.min()) * 2.0**-16
    assert same_bits(*(rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=RandomBits(1)) for _ in range(2)))


@given(
    st.sampled_from(FORMATS),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=20),
    st.sampled_from(DETERMINISTIC),
)
def test_laws(fmt, numbers, rounding):
    x = torch.tensor(sorted(numbers), dtype=torch.float64)
    y = rounded(fmt, x, rounding=rounding)
    assert same_bits(rounded(fmt, y, rounding=rounding), y), "rounding twice is rounding once"
    assert bool((y.diff() >= 0).all()), "rounding keeps the order"
    mirrored = {Rounding.UP: Rounding.DOWN, Rounding.DOWN: Rounding.UP}.get(rounding, rounding)
    opposite = -rounded(fmt, -x, rounding=mirrored)
    # nearest-up has no mirrored mode: its ties go up on both sides.
    is_odd = y >= opposite if rounding is Rounding.NEAREST_UP else y == opposite
    assert bool(is_odd.all()), "rounding is odd"
    assert same_bits(fmt.decode(fmt.encode(x, rounding), torch.float64), y)


def test_text_carriers_and_refusals():
    assert str(LogarithmicFormat(8, 3)) == "lns8_3"
    assert LogarithmicFormat(8, 0).carrier == torch.float32
    assert LogarithmicFormat(9, 0).carrier == torch.float64
    for arguments, message in (((2, 0), "width .* from 3 to 22, got 2"), ((8, 13), "fraction_bits .* 0 to 12"),
                               ((8, 7), "from 0 to 6 fraction bits, got 7"), ((16, 4), "from 5 to 12")):  # fmt: skip
        with pytest.raises(FormatError, match=message):
            LogarithmicFormat(*arguments)
    with pytest.raises(FormatError, match="must be saturate"):
        rounded(LogarithmicFormat(8, 3), torch.ones(1), overflow=Overflow.INFINITY)
    with pytest.raises(FormatError, match="2\\^17"):
        LogarithmicFormat(17, 8).values()
