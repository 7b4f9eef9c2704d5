"""Formats as data in an operator: the bits of roundoff.round, in both kinds of loops."""

import pytest
import torch
from formats_exact import round_float as exact
from hypothesis import given
from hypothesis import strategies as st
from strategies import float_formats

import roundoff
from roundoff.formats import Format
from roundoff.formats.compiling.float_data import float_data, round_float

CPU = torch.device("cpu")
BY_ADDITION = ["e5m10", "e5m2", "e4m7", "e3m4", "e2m1", "e6m9", "e7m10", "e5m21"]
BIT_BY_BIT = ["bf16", "e8m10", "fp8_e4m3", "float8_e5m2fnuz", "fp6_e2m3", "e5m0", "e4m3", "e5m22", "e5m23"]


def patterns(dtype):
    """Random bit patterns, and all near the ends of every exponent."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.float32:
        ends = torch.arange(0, 1 << 32, 1 << 22, dtype=torch.int64)
        near = (ends[:, None] + torch.arange(-3, 4)).flatten().to(torch.int32)
        return torch.cat((near, torch.randint(-(2**31), 2**31, (20_000,), generator=generator).int())).view(dtype)
    return torch.randint(-(2**63), 2**63 - 1, (20_000,), generator=generator).view(dtype)


def same(a, b):
    """Whether bits are the same; but a NaN need not be the same NaN: additions make signalling ones quiet."""
    integer = torch.int32 if a.dtype == torch.float32 else torch.int64
    return bool(((a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("name", BY_ADDITION + BIT_BY_BIT)
def test_has_the_bits_of_round(name):
    fmt, x = Format.parse(name), patterns(torch.float32)
    data = float_data(fmt, x.dtype, CPU)
    # "e4m3" saturates or not, has infinities or not: whatever it is, the kind must suit it.
    assert data.by_addition == (name in BY_ADDITION) or name in ("e4m3", "fp6_e2m3")
    rounded = round_float(x, data.parameters, data.by_addition)
    assert same(rounded, roundoff.round(x, fmt))


@pytest.mark.parametrize("name", ["e8m23", "e5m20", "e11m40", "e5m50", "e5m51", "e8m52", "e11m52"])
def test_wide_formats_in_float64(name):
    generator = torch.Generator().manual_seed(1)
    scales = torch.exp2(torch.randint(-160, 160, (20_000,), generator=generator).double())
    x = torch.cat((torch.randn(20_000, generator=generator, dtype=torch.float64) * scales, patterns(torch.float64)))
    data = float_data(Format.parse(name), x.dtype, CPU)
    rounded = round_float(x, data.parameters, data.by_addition)
    assert same(rounded, roundoff.round(x, name))


def test_one_graph_for_every_width():
    kinds = {float_data(Format.parse(f"e5m{m}"), torch.float32, CPU).by_addition for m in range(1, 11)}
    assert kinds == {True}


@given(float_formats(most_exponent_bits=11, most_significand_bits=30), st.booleans())
def test_any_width_bias_and_policy(fmt, wide):
    """One predicate says for all who round whether an addition does it; wrong, it gave NaN and infinity."""
    dtype = torch.float64 if wide else torch.float32
    if fmt.fits_in(dtype):
        x = patterns(dtype)[:: 8 if wide else 3]
        ends = torch.tensor([fmt.max, 2 * fmt.max, fmt.smallest_normal, fmt.smallest_subnormal], dtype=torch.float64)
        x = torch.cat((x, ends.to(dtype), -ends.to(dtype), x[:100].abs() * fmt.max))
        data = float_data(fmt, dtype, CPU)
        assert data.by_addition == fmt.parameters(dtype).rounds_by_addition(dtype)
        assert same(round_float(x, data.parameters, data.by_addition), roundoff.round(x, fmt))


@pytest.mark.parametrize("bias", [27, 28, 29, 30, 31, 40, 100, -90])
def test_biases_at_the_ends_of_the_range(bias):
    """From an exponent bias of 30 on, the largest number of e5m10 is less than 2, and no factor is left for it."""
    fmt, x = Format.parse(f"e5m10b{bias}"), patterns(torch.float32)
    data = float_data(fmt, x.dtype, CPU)
    assert same(round_float(x, data.parameters, data.by_addition), roundoff.round(x, fmt))
    reference = [exact(v, fmt) for v in x[:2000].tolist()]
    assert same(roundoff.round(x[:2000], fmt), torch.tensor(reference, dtype=torch.float32))
