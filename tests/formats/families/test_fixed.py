import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, around, random_patterns, rounded, special
from formats_exact import round_to_integer
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

from roundoff.formats import FormatError
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.families.fixed import FixedFormat

FORMATS = [FixedFormat(3, 4), FixedFormat(4, 4, signed=False), FixedFormat(0, 7), FixedFormat(7, 0), FixedFormat(1, 14),
           FixedFormat(0, 1), FixedFormat(8, 8, signed=False)]  # fmt: skip
DTYPES = [torch.float32, torch.float64]


@cache
def steps(x: float, fraction_bits: int, rounding: Rounding, word: int | None) -> int:
    """``x`` as an integer number of 2^-f, rounded."""
    k = round_to_integer(abs(Fraction(x)) * 2**fraction_bits, rounding, negative=x < 0, word=word)
    return -k if x < 0 else k


def exact(fmt: FixedFormat, x: float, rounding: Rounding, overflow: Overflow = Overflow.SATURATE, word=None) -> float:
    """The reference: in rational arithmetic, by the definition."""
    if math.isnan(x):
        return x
    low = -(1 << fmt.integer_bits + fmt.fraction_bits) if fmt.signed else 0
    high = (1 << fmt.integer_bits + fmt.fraction_bits) - 1
    if abs(x) == float("inf"):
        return float("nan") if overflow == Overflow.WRAP else (high if x > 0 else low) / 2**fmt.fraction_bits
    k = steps(x, fmt.fraction_bits, rounding, word)
    k = (k - low) % (high - low + 1) + low if overflow == Overflow.WRAP else min(max(k, low), high)
    return float(Fraction(k, 2**fmt.fraction_bits))


def inputs(fmt, dtype):
    values = fmt.values() if fmt.bits <= 9 else fmt.values()[:: (1 << fmt.bits - 8) - 1]
    near_ends = torch.cat([fmt.values()[:3] - 5 * fmt.eps, fmt.values()[-3:] + 5 * fmt.eps])
    return torch.cat([around(torch.cat([values, near_ends]), dtype), random_patterns(100, dtype), special(dtype)])


@each("dtype", DTYPES)
@each("overflow", [Overflow.SATURATE, Overflow.WRAP])
@each("rounding", DETERMINISTIC)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_equals_rational_arithmetic(fmt, rounding, overflow, dtype):
    x = inputs(fmt, dtype)
    expected = torch.tensor([exact(fmt, v, rounding, overflow) for v in x.tolist()], dtype=dtype)
    assert same_bits(rounded(fmt, x, rounding=rounding, overflow=overflow), expected)
    assert same_bits(by_operations(fmt, x, rounding=rounding, overflow=overflow), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", [*FORMATS, FixedFormat(12, 12), FixedFormat(20, 4, signed=False)], ids=str)
def test_both_paths_agree_on_a_million_patterns_also_in_place(fmt, dtype):
    x = torch.cat([random_patterns(500_000, dtype), torch.randn(500_000, dtype=dtype) * fmt.max / 2])
    result = rounded(fmt, x)
    assert same_bits(result, by_operations(fmt, x))
    fmt.round_into(x, x)
    assert same_bits(result, x)


def test_wide_formats_equal_rational_arithmetic_in_float64():
    for fmt in (FixedFormat(20, 32), FixedFormat(52, 0, signed=False), FixedFormat(0, 52, overflow=Overflow.WRAP)):
        x = torch.cat([random_patterns(300, torch.float64), torch.randn(300, dtype=torch.float64) * fmt.max])
        expected = torch.tensor(
            [exact(fmt, v, Rounding.NEAREST_EVEN, fmt.overflow) for v in x.tolist()], dtype=torch.float64
        )
        assert same_bits(rounded(fmt, x), expected)
        assert same_bits(fmt.decode(fmt.encode(x[x.isfinite()])), expected[x.isfinite()])


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_are_all_numbers_and_codes_go_back_and_forth(fmt):
    values = fmt.values()
    assert len(values) == 2**fmt.bits
    assert (float(values[0]), float(values[-1]), float(values[1] - values[0])) == (fmt.min, fmt.max, fmt.eps)
    assert same_bits(rounded(fmt, values), values + 0.0)
    codes = fmt.encode(values)
    assert sorted(codes.tolist()) == list(range(2**fmt.bits))
    assert same_bits(fmt.decode(codes, torch.float64), values)


def test_codes_are_twos_complement():
    x = torch.tensor([-8.0, -0.0625, 0.0, 7.9375, 1.0])
    assert FixedFormat(3, 4).encode(x).tolist() == [0x80, 0xFF, 0x00, 0x7F, 0x10]
    assert FixedFormat(3, 4).encode(x).dtype == torch.uint8
    assert FixedFormat(8, 8, signed=False).encode(x).dtype == torch.uint16


def test_stochastic_rounds_up_exactly_as_often_as_the_random_words_say():
    fmt = FixedFormat(3, 4)
    words = torch.arange(256, dtype=torch.uint8)  # every 8-bit word once: the probability is a count
    for x in (1 / 64, -1 / 64, 3 / 4096, 0.25, 7.93751):
        result = rounded(fmt, torch.full((256,), x), rounding=Rounding.STOCHASTIC, random=words)
        below = Fraction(x) * 16 // 1
        share = (Fraction(x) * 16 - below) if x > 0 else (below + 1 - Fraction(x) * 16)
        outer = (result.abs() * 16 > abs(x) * 16).sum().item()
        assert outer == (0 if x > 7.9375 else int(share * 256 + Fraction(1, 2)))


def test_stochastic_equals_rational_arithmetic_word_by_word():
    fmt = FixedFormat(2, 3)
    x = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    words = torch.randint(0, 1 << 32, (2000,), generator=torch.Generator().manual_seed(2))
    expected = [exact(fmt, v, Rounding.STOCHASTIC, word=w) for v, w in zip(x.tolist(), words.tolist(), strict=True)]
    assert rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=words).tolist() == expected
    same = RandomBits(3, 7)
    again = [rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=same) for _ in range(2)]
    assert same_bits(*again)


@given(
    st.builds(FixedFormat, st.integers(0, 8), st.integers(1, 8), st.booleans()),
    st.lists(st.floats(-300, 300, width=32), min_size=2, max_size=20),
    st.sampled_from(DETERMINISTIC),
)
def test_laws(fmt, numbers, rounding):
    x = torch.tensor(sorted(numbers))
    y = rounded(fmt, x, rounding=rounding)
    assert same_bits(rounded(fmt, y, rounding=rounding), y), "rounding twice is rounding once"
    assert bool((y.diff() >= 0).all()), "rounding keeps the order"
    inside = (x >= fmt.min) & (x <= fmt.max)
    assert bool(((y - x).abs()[inside] <= fmt.eps).all()), "no number moves by a whole step"
    assert torch.equal(fmt.decode(fmt.encode(x, rounding), torch.float32), y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 3), "integer_bits .* from 0 to 52, got -1"), ((3, 53), "fraction_bits"), ((0, 0), "1 to 52"),
     ((30, 30), "30 \\+ 30"),
     ((3, 4, True, Overflow.NAN), "saturate or wrap"), ((True, 3), "integer_bits"), ((3.0, 3), "3.0")],
)  # fmt: skip
def test_impossible_formats_are_refused(arguments, message):
    with pytest.raises(FormatError, match=message):
        FixedFormat(*arguments)


def test_what_a_fixed_point_number_cannot_hold_is_refused_when_encoding():
    with pytest.raises(FormatError, match="no NaN"):
        FixedFormat(3, 4).encode(torch.tensor([torch.nan]))
    with pytest.raises(FormatError, match="no NaN"):
        FixedFormat(3, 4, overflow=Overflow.WRAP).encode(torch.tensor([torch.inf]))
    with pytest.raises(FormatError, match="saturate or wrap, got 'infinity'"):
        rounded(FixedFormat(3, 4), torch.ones(1), overflow=Overflow.INFINITY)
    with pytest.raises(FormatError, match="stochastic"):
        rounded(FixedFormat(3, 4), torch.ones(1), rounding=Rounding.STOCHASTIC)
    with pytest.raises(FormatError, match="2\\^17"):
        FixedFormat(8, 8, overflow=Overflow.WRAP).values()


def test_carriers_hold_sums_and_products_exactly():
    assert FixedFormat(6, 6).carrier == torch.float32
    assert FixedFormat(6, 7).carrier == torch.float64
    assert FixedFormat(12, 12).fits_in(torch.float32)
    assert not FixedFormat(12, 13).fits_in(torch.float32)
