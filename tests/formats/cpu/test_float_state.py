"""Rounding does not depend on how the processor treats subnormal numbers, nor on how many threads there are."""

import ctypes
import platform
from contextlib import contextmanager

import pytest
import torch
from comparing import same_bits
from each import each

import roundoff
from roundoff.formats import Format, RandomBits, Rounding

FAMILIES = [
    *("bf16", "e8m10", "e8m3_nosub", "e8m3_ftz", "e8m3_daz", "e5m10", "fp8_e4m3", "e8m0fnu", "posit16", "lns8_3"),
    *("q3.4", "int8", "int8_ax0", "int8_g32", "int8_s0.1", "mxfp8_e4m3", "mxint8_ax0", "bfp8_16", "nvfp4", "ternary"),
]
pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"),
    reason="the register of this processor is unknown",
)


@contextmanager
def flushing():
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def subnormals(dtype, count=1 << 12):
    """Subnormal numbers and the smallest normal ones, of both signs."""
    if dtype == torch.float32:
        bits = torch.linspace(1, (1 << 24) - 1, count, dtype=torch.float64).to(torch.int32)
        x = bits.view(torch.float32)
    else:
        x = torch.linspace(1, (1 << 53) - 1, count, dtype=torch.float64).to(torch.int64).view(torch.float64)
    return torch.cat([x, -x]).view(-1, 64)


@each("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FAMILIES)
def test_flushed_subnormals_change_nothing(name, dtype):
    fmt, x = Format.parse(name), subnormals(dtype)
    for rounding in Rounding:
        random = RandomBits(0) if rounding is Rounding.STOCHASTIC else None
        expected = roundoff.round(x, fmt, rounding=rounding, random=random)
        with flushing():
            got = roundoff.round(x, fmt, rounding=rounding, random=random)
        assert same_bits(got, expected), rounding


@pytest.mark.parametrize("name", ["bf16", "e8m3_nosub", "fp8_e4m3", "e8m0fnu", "posit16", "lns8_3", "mxfp8_e4m3"])
def test_nor_do_they_change_codes(name):
    fmt, x = Format.parse(name), subnormals(torch.float32)
    codes = fmt.encode(x)
    numbers = fmt.decode(codes)
    with flushing():
        for mine, theirs in zip(fmt.encode(x) if isinstance(codes, tuple) else (fmt.encode(x),),
                                codes if isinstance(codes, tuple) else (codes,), strict=True):  # fmt: skip
            assert torch.equal(mine, theirs)
        again = fmt.decode(codes)
    assert same_bits(again, numbers)


@pytest.mark.parametrize("name", ["bf16", "e8m0fnu", "int8", "mxfp8_e4m3"])
def test_with_any_number_of_threads(name):
    x = subnormals(torch.float32).repeat(80, 1)  # large enough for two
    expected = roundoff.round(x, name, rounding="up")
    for count in (1, 2):
        with threads(count), flushing():
            assert same_bits(roundoff.round(x, name, rounding="up"), expected)


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="knows the modes of x86")
def test_the_rounding_mode_of_the_processor_does_not_matter_and_stays():
    libm, x = ctypes.CDLL("libm.so.6"), torch.randn(1000, generator=torch.Generator().manual_seed(0))
    upward = 0x800
    for name in ("e5m10", "fp8_e4m3", "mxfp8_e4m3", "int8_s0.1"):
        expected = roundoff.round(x, name)
        libm.fesetround(upward)
        try:
            got = roundoff.round(x, name)
            assert libm.fegetround() == upward
        finally:
            libm.fesetround(0)
        assert same_bits(got, expected)


def test_the_setting_is_left_as_it_was():
    tiny = torch.tensor([2.0**-140])
    with flushing():
        roundoff.round(torch.ones(10), "bf16", rounding="up")
        assert (tiny * 1).item() == 0.0
    assert (tiny * 1).item() != 0.0
