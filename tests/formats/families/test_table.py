"""Formats from tables: against definitions in exact arithmetic, other families, and what bitsandbytes computes."""

import math
import random
from fractions import Fraction

import pytest
import torch
from comparing import same_bits
from families_exact import around, random_patterns, rounded, special
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, FormatError, RandomBits, Rounding, TableFormat
from roundoff.formats.families.table import ScaledCodes

random_numbers = random.Random(1)
TABLES = {
    "binary": (-1.0, 1.0),
    "ternary": (-1.0, 0.0, 1.0),
    "nf4": Format.parse("nf4").numbers,
    "unordered": (3.0, -0.25, 7.0, 0.5),
    "positive": (0.125, 1.0, 3.0),
    "far apart": (1e-30, 1.0, 3.0, -1e30),
    "large": tuple(random_numbers.gauss(0, 1) for _ in range(300)),
    "no floats": tuple(k / 7 for k in range(-7, 8)),
}
MODES = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def by_definition(held, x, rounding):
    """The number that stands for ``x``, found by looking at all of them."""
    if math.isnan(x) or x <= held[0] or x >= held[-1]:
        return x if math.isnan(x) else held[0] if x <= held[0] else held[-1]
    j = max(i for i, number in enumerate(held) if number <= x)
    low, high = held[j], held[j + 1]
    if x == low:
        return low
    odd = (j - sum(number < 0 for number in held)) % 2 == 1
    below, above = Fraction(x) - Fraction(low), Fraction(high) - Fraction(x)
    even = high if odd else low
    nearest = low if below < above else high if above < below else even
    smaller = min((low, high), key=abs) if abs(low) != abs(high) else nearest
    away = nearest if below != above else high if abs(high) >= abs(low) else low
    return {
        Rounding.NEAREST_EVEN: nearest,
        Rounding.NEAREST_AWAY: away,
        Rounding.NEAREST_UP: nearest if below != above else high,
        Rounding.TOWARD_ZERO: smaller,
        Rounding.UP: high,
        Rounding.DOWN: low,
        Rounding.TO_ODD: low if odd else high,
    }[rounding]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_every_mode_chooses_as_defined(table, dtype):
    fmt = TableFormat(TABLES[table])
    held = sorted(set(torch.tensor(fmt.numbers, dtype=dtype).tolist()))
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([around(torch.tensor(held, dtype=torch.float64), dtype), special(dtype)])
    x = torch.cat(
        [x[torch.randperm(len(x), generator=generator)[:600]], torch.randn(100, generator=generator).to(dtype)]
    )
    for rounding in MODES:
        expected = torch.tensor([by_definition(held, v, rounding) for v in x.tolist()], dtype=dtype)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected), rounding
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected), rounding
    assert fmt.bounds(dtype) == (held[0], held[-1])


@pytest.mark.parametrize(
    "name", ["e3m2_saturate", "fp4_e2m1", "fp8_e4m3_saturate", "q3.4", "uq2.2", "binary6p3uf_saturate"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_table_of_the_numbers_of_a_format_rounds_as_it_does(name, dtype):
    other = Format.parse(name)
    fmt = TableFormat(tuple(other.values().tolist()))
    x = torch.cat([around(other.values(), dtype), random_patterns(1000, dtype), special(dtype)])
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(1) if rounding is Rounding.STOCHASTIC else None}
        expected = rounded(other, x, **how) + 0.0  # a table has no negative zero
        assert same_bits(rounded(fmt, x, **how), expected), rounding
        assert same_bits(by_operations(fmt, x, **how), expected), rounding


@pytest.mark.parametrize("name", ["ternary", "nf4_unscaled", "table[0.1,-5,2.5]"])
def test_stochastic_rounding_is_unbiased(name):
    fmt = Format.parse(name)
    x = torch.tensor([-0.7, -0.05, 0.02, 0.9]).repeat(200_000, 1)
    mean = roundoff.round(x, fmt, rounding="stochastic", random=RandomBits(0)).mean(0)
    assert torch.allclose(mean, x[0].clamp(*fmt.bounds(torch.float32)), atol=5 * 5 / math.sqrt(len(x)))


def bitsandbytes(x, table, block=64):
    """What its reference implementation computes: the largest magnitude, its reciprocal, the nearest of all numbers."""
    blocks, code = x.reshape(-1, block), torch.tensor(table, dtype=x.dtype)
    scale = blocks.abs().amax(-1, keepdim=True)
    scaled = torch.clamp(blocks * (1 / scale), -1, 1)
    return (code[(scaled.unsqueeze(-1) - code).abs().argmin(-1)] * scale).reshape(x.shape)


@pytest.mark.parametrize("name", ["nf4", "fp4_bnb"])
def test_blocks_are_those_of_bitsandbytes(name):
    x = torch.randn(100, 512, generator=torch.Generator().manual_seed(0))
    x = x * torch.exp2(torch.randint(-20, 20, (100, 1)))
    fmt = Format.parse(name)
    assert (fmt.bits, fmt.block, fmt.bits_per_number) == (4, 64, 4.5)
    assert same_bits(roundoff.round(x, fmt), bitsandbytes(x, fmt.numbers) + 0.0)


def test_the_numbers_of_nf4_follow_their_definition():
    """Dettmers et al. (2023), eq. 4 and appendix E: quantiles of the normal distribution, with an exact zero."""
    normal, offset = torch.distributions.Normal(0.0, 1.0), 0.9677083
    positive = normal.icdf(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    negative = -normal.icdf(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    numbers = torch.cat([negative, torch.zeros(1, dtype=torch.float64), positive]).sort().values
    held = torch.tensor(Format.parse("nf4").numbers, dtype=torch.float64)
    assert torch.allclose(numbers / numbers.max(), held, atol=1e-6)


SCALED = ["nf4", "nf4_b16", "nf4_b100_ax0", "binary_b16", "ternary_b7_ax0", "table[-3,1,2]_b5", "nf4_b2000_ax1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_blocks_in_every_mode(name, dtype):
    fmt = Format.parse(name)
    x = torch.randn(33, 130, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x * torch.exp2(torch.randint(-40, 40, (33, 1), generator=torch.Generator().manual_seed(1)))
    x[3], x[4, 7], x[5, 8], x[6], x[7] = 0.0, torch.inf, torch.nan, torch.finfo(dtype).max, -torch.finfo(dtype).tiny
    nearest = rounded(fmt, x)
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(1) if rounding is Rounding.STOCHASTIC else None}
        result = rounded(fmt, x, **how)
        assert same_bits(result, by_operations(fmt, x, **how)), rounding
        assert not result.isinf().any()
        if fmt.block < 2000 and "table" not in name:  # whose largest number is in every block
            assert same_bits(rounded(fmt, nearest, **how), nearest), rounding  # its numbers stay what they are
    finite = x[[0, 1, 2, 3, 7, 8]]
    stored = fmt.encode(finite)
    assert isinstance(stored, ScaledCodes)
    assert same_bits(fmt.decode(stored), rounded(fmt, finite))
    with pytest.raises(FormatError, match="has no NaN"):
        fmt.encode(x)


def test_neighbours_of_a_scaled_block():
    """Other modes choose between the two numbers of the block, found here by looking at all of them."""
    fmt = Format.parse("nf4_b50")
    x = torch.randn(20, 50, generator=torch.Generator().manual_seed(3))
    for row, up, down in zip(x, rounded(fmt, x, rounding="up"), rounded(fmt, x, rounding="down"), strict=True):
        grid = torch.tensor(fmt.numbers) * row.abs().max()
        above = torch.where(grid >= row[:, None], grid, torch.inf).amin(-1)
        below = torch.where(grid <= row[:, None], grid, -torch.inf).amax(-1)
        assert torch.equal(up, above)
        assert torch.equal(down, below)


def test_codes_are_places_in_the_table_as_given():
    fmt = TableFormat((3.0, -0.25, 7.0, 0.5, 3.0))
    assert fmt.bits == 3
    assert fmt.encode(torch.tensor([2.9, -9.0, 100.0, 0.4])).tolist() == [0, 1, 2, 3]
    assert fmt.decode(torch.arange(5)).tolist() == [3.0, -0.25, 7.0, 0.5, 3.0]
    with pytest.raises(FormatError, match="codes from 0 to 4, got 7"):
        fmt.decode(torch.tensor([7]))
    with pytest.raises(FormatError, match="has no NaN"):
        fmt.encode(torch.tensor([torch.nan]))


def test_names_and_text():
    for name, text in [("NF4_B64", "nf4"), ("nf4_b32_ax0", "nf4_b32_ax0"), ("ternary", "ternary"),
                       ("table[-1,0,1]_b8", "ternary_b8"), ("table[0.5,1e-3]", "table[0.5,0.001]"),
                       ("nf4_unscaled", "nf4_unscaled")]:  # fmt: skip
        assert str(Format.parse(name)) == text
        assert Format.parse(text) == Format.parse(name)
    fifteen = TableFormat(tuple(k / 7 for k in range(-7, 8)))
    assert Format.parse(str(fifteen)) == fifteen
    assert Format.parse("nf4").max is None
    assert (Format.parse("ternary").max, Format.parse("ternary").smallest) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1.0,), "from 2 different numbers to 65536, got 1"),
        ((1.0, 1.0), "got 2, 1 of them different"),
        ((1.0, math.inf), "must be finite"),
        (("a", 1.0), "must be a sequence of numbers"),
    ],
)
def test_what_is_no_table_is_refused(numbers, message):
    with pytest.raises(FormatError, match=message):
        TableFormat(numbers)


def test_other_refusals():
    with pytest.raises(FormatError, match="with scales has from 2 different numbers to 256"):
        TableFormat(tuple(range(300)), block=16)
    with pytest.raises(FormatError, match=r"as in table\[-1,0,1.5\]"):
        Format.parse("table[1,x]")
    with pytest.raises(FormatError, match=r"does not fit in torch\.float32"):
        roundoff.round(torch.ones(1), TableFormat((0.0, 1.0, 1.0 + 2.0**-40)))
    with pytest.raises(FormatError, match="takes its range from the data"):
        roundoff.round(torch.ones(1), "nf4", gradient="clipped")
    assert TableFormat((0.0, 1e300)).carrier is torch.float64


@pytest.mark.parametrize("mode", MODES)
def test_a_block_of_zeros_has_the_codes_of_zero(mode):
    x = torch.ones(2, 64)
    x[1] = 0.0
    codes, scales = Format.parse("nf4").encode(x, mode)
    assert codes[1].unique().tolist() == [TABLES["nf4"].index(0.0)]
    assert scales.flatten().tolist() == [1.0, 0.0]
    negative = Format.parse("table[-2,-1]_b8")  # which has no zero
    assert negative.decode(negative.encode(torch.zeros(8), mode)).tolist() == [0.0] * 8
