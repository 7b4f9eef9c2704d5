"""Formats that flush: against exact arithmetic in every mode, and against what the processor itself does."""

import ctypes
import math
import platform
from dataclasses import replace
from fractions import Fraction

import numba
import numpy as np
import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, rounded
from formats_exact import exponent, round_float, round_to_integer
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError, RandomBits, Rounding
from roundoff.formats.arithmetic.float_layout import Flush
from roundoff.formats.base.random_words import random_words
from roundoff.formats.compiling.float_data import float_data
from roundoff.formats.compiling.float_data import round_float as operator

NAMES = ["e5m10", "fp4_e2m1", "e4m3fnuz", "binary8p4", "e8m7", "e8m22", "e8m23", "e5m3b40"]


def around_the_smallest_normal(fmt, dtype):
    generator = torch.Generator().manual_seed(0)
    steps = 1 + torch.arange(-40, 20, dtype=torch.float64) * 2.0 ** -(fmt.significand_bits + 3)
    points = torch.cat([steps, 2 * torch.rand(40, dtype=torch.float64, generator=generator), torch.tensor([0.0, 1e9])])
    x = (points * fmt.smallest_normal).to(dtype)
    limit = torch.tensor(torch.inf, dtype=dtype)
    x = torch.cat([x, torch.nextafter(x, limit), torch.nextafter(x, -limit), limit.view(1)])
    return torch.cat([x, -x, torch.full((1,), torch.nan, dtype=dtype)])


def by_definition(x, fmt, rounding, word=None):
    """A second reference: the flush before or after a rounding to the precision alone."""
    smallest = Fraction(fmt.smallest_normal)
    zero = math.copysign(0.0, x) if fmt.has_negative_zero else 0.0
    if fmt.flush is Flush.DAZ and abs(x) < smallest:
        return zero
    if fmt.flush is Flush.FTZ and 0 < abs(x) < smallest:
        magnitude = abs(Fraction(x))
        quantum = Fraction(2) ** (exponent(magnitude) - fmt.significand_bits)
        near = quantum * round_to_integer(magnitude / quantum, rounding, negative=x < 0, word=word)
        return zero if near < smallest else math.copysign(float(near), x)
    return round_float(x, replace(fmt, flush=None), rounding, None, word)


@each("dtype", [torch.float32, torch.float64])
@each("flush", Flush)
@pytest.mark.parametrize("name", NAMES)
def test_equal_exact_arithmetic(name, flush, dtype):
    fmt = replace(Format.parse(name), flush=flush)
    assert Format.parse(str(fmt)) == fmt
    if not fmt.fits_in(dtype):
        return
    x = around_the_smallest_normal(fmt, dtype)
    for rounding in Rounding:
        random = RandomBits(3) if rounding is Rounding.STOCHASTIC else None
        words = [None] * len(x) if random is None else random_words(random, x).tolist()
        numbers = [by_definition(v, fmt, rounding, w) for v, w in zip(x.tolist(), words, strict=True)]
        expected = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        how = {"rounding": rounding, "random": random}
        assert same_bits(rounded(fmt, x, **how), expected), rounding
        assert same_bits(by_operations(fmt, x, **how), expected), rounding
    data = float_data(fmt, dtype, torch.device("cpu"))
    assert same_bits(operator(x, data.parameters, data.by_addition), rounded(fmt, x))
    assert same_bits(roundoff.round(x.view(1, -1), [fmt]).view(-1), rounded(fmt, x))


@numba.njit
def narrowed(source, target):
    for i in range(len(source)):
        target[i] = np.float32(source[i])


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="knows the modes of x86")
@pytest.mark.parametrize(
    ("rounding", "mode"), [("nearest-even", 0), ("down", 0x400), ("up", 0x800), ("toward-zero", 0xC00)]
)
def test_equal_the_processor(rounding, mode):
    generator = np.random.default_rng(0)
    x = 2.0**-126 * np.concatenate([2 * generator.random(20_000), 1 - generator.random(20_000) * 2.0**-22, [0, 2**-24]])
    x = np.concatenate([x, -x])
    libm, theirs = ctypes.CDLL("libm.so.6"), np.empty(len(x), np.float32)
    narrowed(x, theirs)
    torch.set_flush_denormal(True)
    libm.fesetround(mode)
    try:
        narrowed(x, theirs)
    finally:
        libm.fesetround(0)
        torch.set_flush_denormal(False)
    ours = roundoff.round(torch.from_numpy(x), "e8m23_ftz", rounding=rounding).float()
    assert same_bits(ours, torch.from_numpy(theirs))


def test_the_processor_reads_denormals_as_zero():
    x = torch.linspace(1, (1 << 24) - 1, 5000, dtype=torch.float64).to(torch.int32).view(torch.float32)
    x = torch.cat([x, -x])
    for rounding in DETERMINISTIC:
        ours = roundoff.round(x, "e8m23_daz", rounding=rounding)
        torch.set_flush_denormal(True)
        theirs = x * 1.0
        torch.set_flush_denormal(False)
        assert same_bits(ours, theirs)


def test_what_differs_from_doing_without_subnormals():
    x = torch.tensor([0.49, 0.5, 0.51, 0.9, 1 - 2.0**-12, 1 - 2.0**-13]) * 2.0**-14
    units = {name: (roundoff.round(x, name) * 2.0**14).tolist() for name in ("e5m10_nosub", "fp16_ftz", "fp16_daz")}
    assert units == {"e5m10_nosub": [0, 0, 1, 1, 1, 1], "fp16_ftz": [0, 0, 0, 0, 1, 1], "fp16_daz": [0] * 6}


def test_codes_facts_and_text():
    for name in ("e5m10_ftz", "e5m10_daz"):
        fmt = Format.parse(name)
        assert fmt.smallest_subnormal == fmt.smallest_normal == 2.0**-14
        assert fmt.decode(torch.tensor([1, 0x8001, 0x400])).tolist() == [0.0, -0.0, 2.0**-14]
        numbers = fmt.values()
        assert torch.equal(fmt.decode(fmt.encode(numbers), torch.float64), numbers)
    assert str(FloatFormat(5, 10, flush="ftz")) == "e5m10_ftz"
    assert (
        Format.parse("fp16_saturate_daz")
        == Format.parse("e5m10_daz_saturate")
        == Format.parse("e5m10_nosub_saturate_daz")
    )
    with pytest.raises(FormatError, match="no subnormal numbers to flush"):
        Format.parse("e5m0_ftz")
