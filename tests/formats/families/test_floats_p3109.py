"""IEEE P3109's unsigned formats, and its saturation that lets infinities through."""

import math

import pytest
import torch
from comparing import same_bits
from families_exact import around, random_patterns, rounded, special
from formats_exact import round_float
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError, RandomBits, Rounding
from roundoff.formats.base.random_words import random_words
from roundoff.formats.compiling.float_data import float_data
from roundoff.formats.compiling.float_data import round_float as operator

# From the value tables of the working group (github.com/P3109/Public, Value Tables): the numbers of codes from 0.
TABLES = {
    "binary4p2ue": [0, 0.0625, 0.125, 0.1875, 0.25, 0.375, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, math.inf, math.nan],
    "binary4p1ue": [0, *(2.0**e for e in range(-7, 6)), math.inf, math.nan],
    "binary4p1uf": [0, *(2.0**e for e in range(-7, 7)), math.nan],
    "binary4p4ue": [k / 8 for k in range(14)] + [math.inf, math.nan],
    "binary4p4uf": [k / 8 for k in range(15)] + [math.nan],
}
# The same of binary8p4uf, here and there.
SOME = {1: 2.0**-18, 7: 7 * 2.0**-18, 8: 2.0**-15, 0x40: 2.0**-8, 0x80: 1.0, 0x8F: 3.75, 0xFE: 1.75 * 2.0**15}


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_are_those_of_the_tables(name):
    fmt, expected = Format.parse(name), torch.tensor(TABLES[name], dtype=torch.float64)
    assert (str(fmt), fmt.bits) == (name, 4)
    assert same_bits(fmt.decode(torch.arange(16), torch.float64), expected)
    assert fmt.encode(expected).tolist() == list(range(16))
    finite = expected[expected.isfinite()]
    assert torch.equal(fmt.values(), finite)
    assert (fmt.min, fmt.max) == (0.0, finite.max().item())


def test_larger_ones():
    fmt = Format.parse("binary8p4uf")
    assert fmt.decode(torch.tensor(list(SOME)), torch.float64).tolist() == list(SOME.values())
    assert fmt.exponent_bias == 16
    assert Format.parse("binary8p4ue").max == 1.625 * 2.0**15
    with pytest.raises(FormatError, match="P from 1 to K, got K = 8 and P = 9"):
        Format.parse("binary8p9uf")
    with pytest.raises(FormatError, match="only fnuz and p3109 floats can be unsigned"):
        FloatFormat(5, 2, signed=False)
    other = FloatFormat(4, 3, "p3109", 3, signed=False)
    assert str(other) == "e4m3b3_p3109_unsigned"
    assert Format.parse(str(other)) == other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name", ["binary4p2ue", "binary4p1uf", "binary6p6ue", "binary8p4uf_saturate", "binary8p5ue_propagate"]
)
def test_rounding_in_every_mode(name, dtype):
    fmt = Format.parse(name)
    x = torch.cat(
        [around(fmt.values(), dtype), special(dtype), random_patterns(200, dtype), torch.tensor([fmt.max * 1.5])]
    )
    for rounding in Rounding:
        random = RandomBits(5) if rounding is Rounding.STOCHASTIC else None
        words = [None] * len(x) if random is None else random_words(random, x).tolist()
        numbers = [round_float(v, fmt, rounding, None, w) for v, w in zip(x.tolist(), words, strict=True)]
        assert all(v == 0 for v, given in zip(numbers, x.tolist(), strict=True) if given < 0)  # P3109: clamped at 0
        expected = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        how = {"rounding": rounding, "random": random}
        assert same_bits(rounded(fmt, x, **how), expected), rounding
        assert same_bits(by_operations(fmt, x, **how), expected), rounding
        assert same_bits(roundoff.round(x.flip(0), fmt, **how), rounded(fmt, x.flip(0), **how))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["e5m10", "e5m2", "bf16", "binary8p4", "e5m3_nosub"])
def test_propagating_saturation(name, dtype):
    """SatPropagate: infinities stay, and everything else is as with SatFinite."""
    fmt, saturating = Format.parse(f"{name}_propagate"), Format.parse(f"{name}_saturate")
    assert Format.parse(str(fmt)) == fmt
    x = torch.cat(
        [random_patterns(3000, dtype), special(dtype), torch.tensor([1.0, 1.001, -1.5, 1e9], dtype=dtype) * fmt.max]
    )
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(5) if rounding is Rounding.STOCHASTIC else None}
        expected = torch.where(x.isinf(), x, rounded(saturating, x, **how))
        assert same_bits(rounded(fmt, x, **how), expected)
        assert same_bits(by_operations(fmt, x, **how), expected)
        assert same_bits(roundoff.round(x, name, overflow="propagate", **how), expected)
        in_place = x.clone()
        fmt.round_into(in_place, in_place, rounding, None, how["random"])
        assert same_bits(in_place, expected)
    nearest = rounded(fmt, x)
    data = float_data(fmt, dtype, torch.device("cpu"))
    assert same_bits(operator(x, data.parameters, data.by_addition), nearest)
    assert same_bits(roundoff.round(x.view(1, -1), [fmt]).view(-1), nearest)
    assert fmt.encode(torch.tensor([torch.inf], dtype=dtype)) == Format.parse(name).encode(
        torch.tensor([torch.inf], dtype=dtype)
    )


def test_what_cannot_propagate_is_refused():
    with pytest.raises(FormatError, match="cannot overflow to 'propagate'"):
        Format.parse("fp8_e4m3_propagate")
    with pytest.raises(FormatError, match=r"overflow of q3\.4 must be"):
        roundoff.round(torch.ones(1), "q3.4", overflow="propagate")
    with pytest.raises(FormatError, match="must have a sign, and overflow as infinities do"):
        roundoff.simulate("fp32", accumulate="e5m10_propagate/8")


def test_compiled_steps_know_what_has_no_sign(uncompiled):
    x = torch.tensor([-3.0, 0.3, 1e9, torch.inf])

    def step(x):
        return x * 1.5

    with roundoff.simulate("binary8p4uf"):
        expected = step(x)
    assert same_bits(roundoff.compile(step, roundoff.simulate("binary8p4uf"))(x), expected)
