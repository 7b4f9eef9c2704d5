import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, around, random_patterns, rounded, special
from formats_exact import goes_up
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

from roundoff.formats import FormatError
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.families.posit import PositFormat

SMALL = [PositFormat(n, es) for n in (2, 3, 4, 5, 8) for es in range(5)]
SIXTEEN = [PositFormat(16, es) for es in range(5)]
WIDE = [PositFormat(32), PositFormat(32, 0), PositFormat(32, 4), PositFormat(24, 1), PositFormat(27, 3)]


def number(code: str, es: int) -> Fraction:
    """What a positive code stands for, read bit by bit from its text (without the sign bit)."""
    run = len(code) - len(code.lstrip(code[0]))
    k = run - 1 if code[0] == "1" else -run
    rest = code[run + 1 :]
    e = int((rest[:es] + "0" * es)[:es] or "0", 2)
    fraction = rest[es:]
    significand = 1 + (Fraction(int(fraction, 2), 2 ** len(fraction)) if fraction else 0)
    return Fraction(2) ** (k * 2**es + e) * significand


@cache
def positive(n: int, es: int) -> list[Fraction]:
    """The numbers of the codes 1, 2, ..., 2^(n-1) - 1."""
    return [number(format(code, f"0{n - 1}b"), es) for code in range(1, 1 << (n - 1))]


@cache
def neighbour_below(n: int, es: int, magnitude: float) -> int:
    """The code of the largest number that is not above ``magnitude``, and the first one for smaller ones."""
    low, high = 1, 1 << (n - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if number(format(middle, f"0{n - 1}b"), es) <= magnitude else (low, middle)
    return low


def exact(fmt: PositFormat, x: float, rounding: Rounding, word: int | None = None) -> float:
    """The standard: between neighbours u and w the border is the posit of n + 1 bits whose code is u's and a 1."""
    if not math.isfinite(x):
        return math.nan
    if x == 0:
        return 0.0
    n, es = fmt.width, fmt.exponent_bits
    magnitude, sign = abs(Fraction(x)), math.copysign(1, x)
    code = low = neighbour_below(n, es, abs(x))
    last = (1 << (n - 1)) - 1
    at = lambda c: number(format(c, f"0{n - 1}b"), es)  # noqa: E731
    if at(1) < magnitude < at(last):
        u, w, v = at(low), at(low + 1), number(format(2 * low + 1, f"0{n}b"), es)
        if rounding == Rounding.STOCHASTIC:
            fraction = Fraction(float(magnitude - u) / float(w - u))
        else:
            fraction = Fraction(0) if magnitude == u else Fraction(1 + (magnitude >= v) + (magnitude > v), 4)
        code = low + goes_up(fraction, rounding, negative=x < 0, odd=low % 2 == 1, word=word)
    return sign * float(at(code))


def borders(fmt: PositFormat) -> torch.Tensor:
    """All numbers, all borders between them, on the bit string and in value, and the float64 neighbours of these."""
    finer = [float(v) for v in positive(fmt.width + 1, fmt.exponent_bits)]
    numbers = torch.tensor(finer, dtype=torch.float64)
    return around(torch.cat([numbers, numbers[:1] / 3, numbers[-1:] * 3]), torch.float64)


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_equals_the_standard_everywhere(fmt):
    x = torch.cat([borders(fmt), random_patterns(50, torch.float64), special(torch.float64)])
    for rounding in DETERMINISTIC:
        expected = torch.tensor([exact(fmt, v, rounding) for v in x.tolist()], dtype=torch.float64)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)


@pytest.mark.parametrize("fmt", SIXTEEN, ids=str)
def test_every_border_of_16_bits(fmt):
    """No search is needed: codes u, borders v and their neighbours in ascending order, and where each must go."""
    values = torch.tensor([float(v) for v in positive(16, fmt.exponent_bits)], dtype=torch.float64)
    finer = torch.tensor([float(v) for v in positive(17, fmt.exponent_bits)], dtype=torch.float64)
    assert same_bits(finer[1::2], values)
    border = finer[2:-1:2]
    below, above = values[:-1], values[1:]
    to_even = torch.where(torch.arange(1, len(values)) % 2 == 0, below, above)
    infinity = torch.tensor(torch.inf, dtype=torch.float64)
    cases = [(values, values), (border, to_even), (torch.nextafter(border, infinity), above),
             (torch.nextafter(border, -infinity), below), (torch.nextafter(below, infinity), below),
             (torch.nextafter(above, -infinity), above)]  # fmt: skip
    for x, expected in cases:
        for sign in (1.0, -1.0):
            assert same_bits(rounded(fmt, sign * x), sign * expected)
            assert same_bits(by_operations(fmt, sign * x), sign * expected)


@pytest.mark.parametrize("fmt", [f for f in SIXTEEN if f.fits_in(torch.float32)], ids=str)
def test_float32_is_rounded_as_float64_is(fmt):
    x = torch.cat([random_patterns(200_000, torch.float32), torch.randn(100_000), special(torch.float32)])
    expected = rounded(fmt, x.double()).float()
    assert same_bits(rounded(fmt, x), expected)
    assert same_bits(by_operations(fmt, x), expected)
    fmt.round_into(x, x)
    assert same_bits(x, expected)


@pytest.mark.parametrize("fmt", WIDE, ids=str)
def test_wide_posits_equal_the_standard(fmt):
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-fmt.emax - 2, fmt.emax + 2, (150,), generator=generator)
    x = torch.randn(150, dtype=torch.float64, generator=generator) * 2.0**exponents
    x = torch.cat([x, torch.randn(100, dtype=torch.float64, generator=generator)])
    codes = torch.randint(1, 1 << fmt.width - 1, (60,), generator=generator)
    finer = PositFormat(fmt.width + 1, fmt.exponent_bits) if fmt.width < 32 else None
    if finer:
        x = torch.cat([x, around(finer.decode(2 * codes + 1, torch.float64), torch.float64)])
    for rounding in DETERMINISTIC:
        expected = torch.tensor([exact(fmt, v, rounding) for v in x.tolist()], dtype=torch.float64)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)
    codes = torch.cat([codes, (1 << fmt.width) - codes, torch.tensor([0, 1, (1 << fmt.width - 1) - 1])])
    assert fmt.encode(fmt.decode(codes, torch.float64)).tolist() == codes.tolist()


@each("fmt", [*SMALL, *SIXTEEN])
def test_codes_and_numbers_are_those_of_the_definition(fmt):
    n = fmt.width
    numbers = [float(v) for v in positive(n, fmt.exponent_bits)]
    table = [0.0, *numbers, math.nan, *(-v for v in reversed(numbers))]
    codes = torch.arange(1 << n)
    decoded = fmt.decode(codes, torch.float64)
    assert same_bits(decoded, torch.tensor(table, dtype=torch.float64))
    assert fmt.encode(decoded).to(torch.int64).tolist() == codes.tolist()
    assert fmt.values().tolist() == sorted(v for v in table if v == v)  # noqa: PLR0124  not NaN
    assert (fmt.max, fmt.smallest) == (numbers[-1], numbers[0])
    if n > 2:
        assert fmt.eps == float(numbers[1 << (n - 2)]) - 1.0
    assert fmt.encode(torch.tensor([torch.inf, -torch.inf, -0.0])).tolist() == [1 << (n - 1)] * 2 + [0]


def test_nothing_becomes_zero_or_nar():
    for fmt in (*SMALL, *WIDE):
        x = random_patterns(2000, torch.float64, finite=True)
        x = x[x != 0]
        for rounding in DETERMINISTIC:
            y = rounded(fmt, x, rounding=rounding)
            assert bool((y != 0).all())
            assert bool((y.sign() == x.sign()).all())


@pytest.mark.parametrize("fmt", [PositFormat(4, 1), PositFormat(8, 2), PositFormat(6, 4)], ids=str)
def test_stochastic_equals_the_reference_and_is_unbiased_in_value(fmt):
    x = borders(fmt)[::7]
    words = torch.randint(0, 1 << 32, x.shape, generator=torch.Generator().manual_seed(1))
    expected = [exact(fmt, v, Rounding.STOCHASTIC, w) for v, w in zip(x.tolist(), words.tolist(), strict=True)]
    assert rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=words).tolist() == expected
    every_word = torch.arange(1 << 16).to(torch.uint16)
    for value in (1.0, 1.3, -0.007, 30.0, 1000.0):
        if fmt.smallest < abs(value) < fmt.max:
            same = torch.full(every_word.shape, value, dtype=torch.float64)
            y = rounded(fmt, same, rounding=Rounding.STOCHASTIC, random=every_word)
            gap = float(y.max() - y.min())
            assert abs(float(y.mean()) - value) <= gap * 2.0**-16
    draws = [rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=RandomBits(5)) for _ in range(2)]
    assert same_bits(*draws)


@given(st.builds(PositFormat, st.integers(2, 32), st.integers(0, 4)),
       st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
       st.sampled_from(DETERMINISTIC))  # fmt: skip
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
    assert str(PositFormat(16)) == "posit16"
    assert str(PositFormat(16, 1)) == "posit16_1"
    assert PositFormat(8).carrier == torch.float32
    assert PositFormat(16).carrier == torch.float64
    assert not PositFormat(32).fits_in(torch.float32)
    for arguments, message in (
        ((1,), "width of a posit .* from 2 to 32, got 1"),
        ((33, 2), "got 33"),
        ((8, 5), "exponent_bits"),
    ):
        with pytest.raises(FormatError, match=message):
            PositFormat(*arguments)
    with pytest.raises(FormatError, match="must be saturate"):
        rounded(PositFormat(8), torch.ones(1), overflow=Overflow.NAN)
    with pytest.raises(FormatError, match="2\\^17"):
        PositFormat(17).values()
