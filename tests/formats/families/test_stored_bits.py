"""How many bits a tensor takes in a format: numbers, scales, and what fills the last blocks."""

import math

import pytest
import torch

from roundoff.formats import Format

SIZES = [
    ("e5m10", (3, 5), 15 * 16),
    ("posit8", (7,), 7 * 8),
    ("mxfp4", (2, 40), 2 * 2 * (32 * 4 + 8)),
    ("mxfp4", (5,), 5 * 4 + 8),  # a block is no longer than its axis
    ("mxfp4", (), 4 + 8),
    ("mxfp4", (0, 32), 0),
    ("mxfp8_e4m3_ax0", (40, 3), 3 * 2 * (32 * 8 + 8)),
    ("bfp8_16", (2, 16), 2 * (16 * 8 + 8)),
    ("nvfp4", (2, 20), 2 * 2 * (16 * 4 + 8) + 32),
    ("nvfp4_square", (20, 20), 4 * (256 * 4 + 8) + 32),
    ("fp8_e4m3_tensor", (4, 4), 16 * 8 + 32),
    ("fp8_e4m3_row", (4, 6), 24 * 8 + 4 * 32),
    ("int8", (4, 6), 24 * 8 + 32),
    ("uint8", (4, 6), 24 * 8 + 32 + 8),
    ("int8_ax0", (4, 6), 24 * 8 + 4 * 32),
    ("int8_row", (4, 6), 24 * 8 + 4 * 32),
    ("int4_g4", (2, 6), 2 * 2 * (4 * 4 + 32)),
    ("int8_s0.5", (4, 6), 24 * 8),
    ("nf4", (2, 64), 2 * (64 * 4 + 32)),
    ("nf4_unscaled", (2, 64), 2 * 64 * 4),
]


@pytest.mark.parametrize(("name", "shape", "bits"), SIZES)
def test_sizes_by_hand(name, shape, bits):
    assert Format.parse(name).stored_bits(shape) == bits


@pytest.mark.parametrize(
    "name", ["mxfp4", "mxfp8_e5m2", "bfp8_16", "nvfp4", "int4_g32", "nf4", "fp8_e4m3_b128", "e4m3"]
)
def test_full_blocks_take_what_the_format_says_of_one_number(name):
    fmt = Format.parse(name)
    numbers = 1 << 14
    share = fmt.bits_per_number if name != "int4_g32" else 4 + 32 / 32
    assert fmt.stored_bits((numbers,)) == pytest.approx(numbers * share, abs=32)


@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "bfp8_16", "nvfp4", "nvfp4_square"])
@pytest.mark.parametrize("shape", [(64,), (32, 32), (2, 32, 16)])
def test_as_many_scales_as_codes_have(name, shape):
    fmt = Format.parse(name)
    codes, scales, *tensor = fmt.encode(torch.randn(shape))
    bits = math.prod(codes.shape) * fmt.bits + scales.numel() * 8 + (32 if tensor else 0)
    if all(size % fmt.block == 0 for size in (shape if "square" in name else shape[-1:])):
        assert fmt.stored_bits(shape) == bits
