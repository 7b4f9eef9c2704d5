"""Nearest-even in IEEE formats: PyTorch's own types and exact rational arithmetic, bit for bit."""

import math

import pytest
import torch
from each import each
from families_exact import rounded
from formats_exact import round_float
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError
from roundoff.formats.base.modes import Overflow

NATIVE = {"fp16": torch.float16, "bf16": torch.bfloat16}
IEEE = [FloatFormat(e, m) for e in (2, 3, 4, 5, 6, 7, 8) for m in (0, 1, 2, 3, 5, 7, 9, 10, 13, 22, 23)]


def bits(x):
    return x.view({torch.float32: torch.int32, torch.float64: torch.int64}[x.dtype])


def assert_same_bits(a, b):
    """Equal bit patterns, except that one NaN is as good as another of the same sign."""
    a, b = a.clone(), b.clone()
    assert torch.equal(a.isnan(), b.isnan())
    a[a.isnan()] = b[b.isnan()] = 0.0
    different = bits(a) != bits(b)
    assert not different.any(), f"{a[different][:3]} and {b[different][:3]}"


def all_codes_and_neighbours(dtype):
    """All 2^16 numbers of a 16-bit type, the midpoints between them, and the float32 neighbours of all these."""
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ordered = values[~values.isnan()].sort().values
    middles = ((ordered[1:].double() + ordered[:-1].double()) / 2).float()
    points = torch.cat([values, middles[~middles.isnan()]])
    up, down = (torch.nextafter(points, torch.tensor(limit)) for limit in (math.inf, -math.inf))
    return torch.cat([points, up, down])


@pytest.mark.parametrize("name", NATIVE)
def test_all_codes_midpoints_and_neighbours_equal_the_native_conversion(name):
    x = all_codes_and_neighbours(NATIVE[name])
    assert len(x) > 380_000
    assert_same_bits(roundoff.round(x, name), x.to(NATIVE[name]).float())


@pytest.mark.parametrize("name", NATIVE)
def test_millions_of_random_patterns_equal_the_native_conversion(name):
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=generator).to(torch.int32).view(torch.float32)
        assert_same_bits(roundoff.round(x, name), x.to(NATIVE[name]).float())
        wide = x.double() * (1 + torch.rand(len(x), generator=generator, dtype=torch.float64) * 2.0**-30)
        direct = roundoff.round(wide, name)
        # float64 directly, not through float32: at most one step from the twice rounded, mostly none
        assert (direct != roundoff.round(wide.float(), name).double()).float().mean() < 2e-2
        assert torch.equal(roundoff.round(direct.float(), name).double().nan_to_num(7), direct.nan_to_num(7))


@each("fmt", IEEE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_width_equals_exact_rational_arithmetic(fmt, dtype):
    generator = torch.Generator().manual_seed(fmt.exponent_bits * 100 + fmt.significand_bits)
    exponents = torch.randint(fmt.emin - fmt.significand_bits - 3, fmt.emax + 3, (300,), generator=generator)
    x = torch.ldexp(1 + torch.rand(300, generator=generator, dtype=torch.float64), exponents).to(dtype)
    # halfway cases on purpose: few significant bits
    ties = torch.ldexp(
        torch.randint(1, 2 << (min(fmt.significand_bits, 20) + 1), (300,), generator=generator).double(),
        exponents - min(fmt.significand_bits, 20) - 1,
    ).to(dtype)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, fmt.max, -fmt.smallest_subnormal / 2], dtype=dtype)
    x = torch.cat([x, -x, ties, -ties, special])
    expected = [round_float(value, fmt) for value in x.tolist()]
    assert_same_bits(roundoff.round(x, fmt), torch.tensor(expected, dtype=torch.float64).to(dtype))


def test_special_values_keep_sign_and_payload():
    # (a signalling NaN may become the quiet one of the same payload)
    patterns = torch.tensor([0x7FC01234, -0x3FEDCC, 0, -(1 << 31)], dtype=torch.int32)
    x = patterns.view(torch.float32)
    assert torch.equal(roundoff.round(x, "e5m10").view(torch.int32), patterns)
    assert math.copysign(1, roundoff.round(torch.tensor(-1e-30), "e5m10").item()) == -1


@given(st.floats(width=32), st.integers(2, 8), st.integers(0, 23))
def test_rounding_is_idempotent_odd_and_close(value, exponent_bits, significand_bits):
    fmt = FloatFormat(exponent_bits, significand_bits)
    x = torch.tensor([value])
    y = roundoff.round(x, fmt)
    assert_same_bits(roundoff.round(y, fmt), y)
    assert_same_bits(roundoff.round(-x, fmt), -y)
    if y.isfinite():
        spacing = max(fmt.smallest_subnormal, 2.0 ** (math.frexp(value)[1] - 1 - significand_bits))
        assert abs(y.double().item() - value) <= spacing / 2


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20), st.integers(2, 8), st.integers(0, 23))
def test_rounding_is_monotone(values, exponent_bits, significand_bits):
    y = roundoff.round(torch.tensor(sorted(values)), FloatFormat(exponent_bits, significand_bits))
    assert torch.all(y[1:] >= y[:-1])


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0),
        torch.tensor(0.1),
        torch.arange(0, 2.4, 0.1).view(4, 6).t(),
        torch.arange(0, 2.4, 0.1).view(4, 6)[:, ::2],
        torch.tensor([0.1]).expand(5, 3),
        torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last),
        torch.tensor([0.1], requires_grad=True),
    ],
    ids=["empty", "0-d", "transposed", "strided", "expanded", "channels-last", "requires-grad"],
)
def test_any_layout(x):
    before = x.detach().clone()
    y = roundoff.round(x, "e4m3")
    assert y.shape == x.shape
    assert not y.requires_grad
    assert torch.equal(y, roundoff.round(before.contiguous().double(), "e4m3").float())
    assert torch.equal(x.detach(), before)
    assert y.data_ptr() != x.data_ptr() or not x.numel()


def test_large_tensors_are_split_over_threads():
    x = torch.randn(1 << 19, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(roundoff.round(x, "fp16"), x.half().float())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("x", "fmt", "message"),
    [
        (torch.ones(2), "e5m1O", "e5m10"),
        (torch.ones(2), "e5m99", "significand"),
        (torch.ones(2), "fp61", "fp"),
        (torch.ones(2), 16, "16"),
        (torch.ones(2, dtype=torch.int32), "e5m10", "float32 or float64"),
        (torch.full((2,), 65504.0, dtype=torch.float16), "e8m1", r"x\.float\(\)"),
        (torch.ones(2, dtype=torch.complex64), "e5m10", "float32 or float64"),
        (torch.eye(2).to_sparse(), "e5m10", "strided"),
        ([1.0], "e5m10", "list"),
        (torch.ones(2), "fp64", "does not fit"),
        (torch.ones(2), "e11m10", "does not fit"),
    ],
)
def test_bad_input_is_named(x, fmt, message):
    with pytest.raises(FormatError, match=message):
        roundoff.round(x, fmt)


@pytest.mark.parametrize("widths", [(1, 3), (12, 3), (5, -1), (5, 53), (True, 3), (5.0, 3)])
def test_widths_out_of_range(widths):
    with pytest.raises(FormatError, match="_bits of a float format must be an integer from"):
        FloatFormat(*widths)


def test_names_parse_back():
    for fmt in IEEE:
        assert Format.parse(str(fmt)) == fmt
    assert str(Format.parse("FP16 ")) == "e5m10"
    assert str(Format.parse("e8m23")) == "fp32"
    assert Format.parse("e5m10").carrier is torch.float32
    assert Format.parse("e5m11").carrier is torch.float64
    assert Format.parse("fp32").carrier is torch.float32


def test_facts_are_torchs():
    for name, dtype in NATIVE.items():
        fmt, info = Format.parse(name), torch.finfo(dtype)
        assert (fmt.bits, fmt.max, fmt.eps) == (info.bits, info.max, info.eps)
        assert (fmt.smallest_normal, fmt.smallest_subnormal) == (info.tiny, info.tiny * info.eps)


def test_infinity_alone_propagates_where_what_is_too_large_saturates():
    x = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 1.0])
    for path in (rounded, by_operations):
        found = path(Format.parse("e4m3"), x, overflow=Overflow.PROPAGATE)
        assert found.tolist() == [math.inf, -math.inf, 240.0, -240.0, 1.0]
