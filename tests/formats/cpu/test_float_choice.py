"""The compiled loops of the families other than floats give the bits that tensor operations do."""

import pytest
import torch
from comparing import same_bits
from each import each
from tensor_roundings import by_operations

from roundoff.formats import Format, RandomBits, Rounding

BLOCKS = [
    *(
        "mxfp8_e4m3",
        "mxfp8_e5m2_b35_rceil",
        "mxfp6_e3m2_ax0_ceil",
        "mxfp4_e2m1_ax1_even",
        "mxint8_ax0",
        "mxfp4_e2m1_b1",
    ),
    *("bfp8_16", "bfp23_7_ax1", "bfp2_100", "bfp23_10_ax0", "nvfp4", "nvfp4_ax0", "nvfp4_b35_ax1", "nvfp4_b100"),
    *("fp8_e4m3_tensor", "fp8_e5m2_row", "fp8_e4m3_row_ax0_pow2", "fp8_e4m3_b35", "int8_row", "int5_row_ax0"),
]
INTEGERS = [
    *("int8", "uint8", "int16_ax0", "uint4_ax1", "int8_ax2", "int4_g32", "uint8_g7_ax0", "int8_g7_ax1", "int3_g100"),
    *("int8_s0.02", "uint8_s0.5_z7", "int8_p99", "uint8_ax1_p90", "int4_g7_ax1_p80"),
]
NUMBERS = [
    *("q3.4", "uq4.4", "q8.16_wrap", "uq24.0_wrap", "q0.1", "q20.3", "q12.12_wrap"),
    *(
        "posit8",
        "posit16_1",
        "posit16",
        "posit2",
        "posit6_4",
        "posit3_0",
        "lns8_3",
        "lns3_0",
        "lns16_8",
        "e8m0fnu",
        "ternary",
    ),
]
WIDE = ["q20.32", "q30.22_wrap", "uq52.0_wrap", "posit32", "posit32_4", "lns22_12", "lns20_9"]


def numbers(dtype, shape, seed=0):
    """Blocks and channels of very different sizes, ties, zeros, subnormals, and the special values here and there."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    magnitudes = torch.randint(-12, 9, (*shape[:-1], 1), generator=generator)
    x = x * torch.exp2(magnitudes) * torch.exp2(torch.randint(-3, 3, shape, generator=generator))
    tied = torch.randint(0, 2, shape, generator=generator).bool()
    x = torch.where(tied, (x * 64).round() / 64, x)
    x[0, :, : shape[-1] // 8] = 0.0
    x[:, 1, 5] = -0.0
    x[1, 1] *= 1e-36
    x[1, 2] *= 1e-39 if dtype == torch.float32 else 1e-300
    x[2, 0] *= 2.0**110
    return x


def with_specials(x):
    y = x.clone()
    y[0, 0, -1], y[1, 0, 7], y[2, 1, -40] = torch.inf, torch.nan, -torch.inf
    return y


def sources(shape):
    return [
        RandomBits(5, 2),
        RandomBits(5, 3, 5),
        torch.arange(shape[0] * shape[1] * shape[2]).view(shape) * 0x9E3779B1,
    ]


def check(name, x, rounding, overflow=None):
    fmt = Format.parse(name)
    for random in sources(tuple(x.shape)) if rounding == Rounding.STOCHASTIC else [None]:
        expected = by_operations(fmt, x, rounding, overflow, random)
        into = torch.empty_like(x)
        fmt.round_into(x, into, rounding, overflow, random)
        in_place = x.clone()
        fmt.round_into(in_place, in_place, rounding, overflow, random)
        assert same_bits(into, expected), (name, x.dtype, rounding)
        assert same_bits(in_place, expected), (name, x.dtype, rounding)


@pytest.mark.parametrize("name", [*BLOCKS, *INTEGERS, *NUMBERS, *WIDE])
def test_the_same_bits(name):
    fits = Format.parse(name).fits_in(torch.float32)
    for dtype in (torch.float32, torch.float64) if fits else (torch.float64,):
        x = numbers(dtype, (3, 37, 45))
        special = with_specials(x)
        for rounding in Rounding:
            check(name, x, rounding)
            check(name, special, rounding)


@pytest.mark.parametrize("name", ["mxfp8_e4m3_b1500", "bfp2_2000", "nvfp4_b1100", "int3_g1500", "int8_row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_longer_than_a_scratch(name, dtype):
    for rounding in (Rounding.NEAREST_EVEN, Rounding.UP, Rounding.STOCHASTIC):
        check(name, numbers(dtype, (3, 3, 2300)), rounding)


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3_ax1", "mxfp4", "nvfp4_ax1", "int8_ax1", "int4_g7_ax1", "int8", "q3.4", "posit8"]
)
@each("rounding", [Rounding.NEAREST_EVEN, Rounding.UP, Rounding.STOCHASTIC])
def test_any_strides(name, rounding):
    x = with_specials(numbers(torch.float32, (6, 40, 50)))
    fmt = Format.parse(name)
    for view in (
        x.permute(2, 0, 1),
        x.permute(1, 2, 0),
        x.transpose(1, 2),
        x[:, ::2],
        x[::2, :, ::3],
        x[:1].expand(5, 40, 50),
    ):
        random = RandomBits(1) if rounding == Rounding.STOCHASTIC else None
        expected = by_operations(fmt, view.contiguous(), rounding, None, random)
        y = torch.empty_like(view)
        fmt.round_into(view, y, rounding, None, random)
        assert same_bits(y, expected), view.stride()
        z = torch.empty_strided(view.shape, (1, view.shape[0] + 3, (view.shape[0] + 3) * view.shape[1]))
        fmt.round_into(view, z, rounding, None, random)
        assert same_bits(z, expected), view.stride()


@pytest.mark.parametrize(
    "name",
    ["mxfp4_e2m1_ax0", "mxfp8_e4m3", "bfp8_16", "nvfp4", "int8", "int8_ax0", "int4_g32", "q3.4", "posit8", "lns8_3"],
)
@each("shape", [(), (0,), (3, 0), (0, 3), (1,), (1, 1), (5, 1), (1, 70), (70, 1)])
def test_small_shapes(name, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    fmt = Format.parse(name)
    for rounding in Rounding:
        random = RandomBits(1) if rounding == Rounding.STOCHASTIC else None
        y = torch.empty_like(x)
        fmt.round_into(x, y, rounding, None, random)
        assert same_bits(y, by_operations(fmt, x, rounding, None, random))


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3", "mxfp8_e4m3_ax0", "nvfp4", "int8", "int8_ax0", "int4_g32", "q3.4", "posit8", "lns8_3"]
)
def test_threads_change_nothing(name):
    x = numbers(torch.float32, (4, 600, 333))
    threads = torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            for rounding, random in ((Rounding.DOWN, None), (Rounding.STOCHASTIC, RandomBits(7))):
                y = x.clone()
                Format.parse(name).round_into(y, y, rounding, None, random)
                results.append(y)
        finally:
            torch.set_num_threads(threads)
    assert same_bits(results[0], results[2])
    assert same_bits(results[1], results[3])
