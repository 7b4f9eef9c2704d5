import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from comparing import same_bits
from families_exact import DETERMINISTIC, float_element, rounded
from tensor_roundings import by_operations

from roundoff.formats import Format, FormatError, round
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.base.random_words import random_words
from roundoff.formats.families.nvfp4 import NVFP4Format

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def exact(rows: list[list[float]], dtype, rounding: Rounding) -> list[list[float]]:
    """The class's formula: numpy scalars for the arithmetic of the carrier, rational numbers for the two roundings."""
    f = NUMPY[dtype]
    top = f(max(abs(x) for row in rows for x in row))
    g = max(top / f(448 * 6), f(2.0**-126)) if top else f(1)
    result = []
    for row in rows:
        block = []
        for start in range(0, len(row), 16):
            part = row[start : start + 16]
            d = float_element(
                Fraction(float(f(max(map(abs, part))) / (f(6) * g))),
                -6,
                3,
                Fraction(448),
                Rounding.NEAREST_EVEN,
                negative=False,
            )
            t = f(float(d)) * g
            for x in part:
                negative = math.copysign(1, x) < 0
                q = Fraction(abs(float(f(x) / t))) if t else Fraction(0)
                e = float(float_element(q, 0, 1, Fraction(6), rounding, negative=negative))
                block.append(float(f(-e if negative else e) * t))
        result.append(block)
    return result


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("rounding", DETERMINISTIC)
def test_equals_the_formula(rounding, dtype):
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 2.0**-140, 2.0**120, 2.0**-20):
        x = torch.randn(12, 40, dtype=dtype, generator=generator) * 2.0 ** -torch.arange(12)[:, None] * scale
        x[3], x[4], x[5, :3] = 0.0, -0.0, torch.tensor([-0.0, 0.0, 1e-30 * scale])
        x[6] *= 2.0**-20
        x = x.to(dtype)
        expected = torch.tensor(exact(x.tolist(), dtype, rounding), dtype=dtype)
        assert same_bits(rounded(NVFP4Format(), x, rounding=rounding), expected)
        assert same_bits(by_operations(NVFP4Format(), x, rounding=rounding), expected)
        assert same_bits(NVFP4Format().decode(NVFP4Format().encode(x, rounding)), expected)


def test_codes_are_those_of_ml_dtypes():
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    codes, scales, tensor_scale = NVFP4Format().encode(x)
    elements = codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    block_scales = scales.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert block_scales.max() == 448
    numbers = torch.from_numpy(elements) * (torch.from_numpy(block_scales) * tensor_scale).repeat_interleave(16, 1)
    assert same_bits(numbers, rounded(NVFP4Format(), x))
    theirs = (x.abs().view(8, 4, 16).amax(-1) / (6 * tensor_scale)).numpy().astype(ml_dtypes.float8_e4m3fn)
    assert scales.tolist() == theirs.view(np.uint8).tolist()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_shape_and_order_of_memory(axis):
    fmt = NVFP4Format(block=5, axis=axis)
    x = torch.randn(7, 12)
    expected = rounded(NVFP4Format(block=5), x.movedim(axis, -1).contiguous()).movedim(-1, axis).contiguous()
    assert same_bits(rounded(fmt, x).contiguous(), expected)
    assert same_bits(fmt.decode(fmt.encode(x)).contiguous(), expected)
    other_order = x.t().contiguous().t()
    assert same_bits(rounded(fmt, other_order).contiguous(), expected)
    for shape in ((), (1,), (0,), (3, 0)):
        assert rounded(NVFP4Format(), torch.ones(shape)).tolist() == torch.ones(shape).tolist()


def test_nan_and_infinity_leave_no_scale():
    for poison in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(4, 20)
        x[2, 3] = poison
        assert rounded(NVFP4Format(), x).isnan().all()
        assert NVFP4Format().encode(x).tensor_scale.isnan()


def test_stochastic_is_unbiased_over_all_random_words():
    words = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2).contiguous()
    x = torch.tensor([6.0 * 448, 448 * 1.125]).expand(256, 2).contiguous()
    y = rounded(NVFP4Format(), x, rounding=Rounding.STOCHASTIC, random=words)
    assert y.double().mean(0).tolist() == [6.0 * 448, 448 * 1.125]
    draws = [
        rounded(NVFP4Format(), torch.randn(3, 20), rounding=Rounding.STOCHASTIC, random=RandomBits(s)) for s in (1, 2)
    ]
    assert not same_bits(*draws)


def test_text_and_refusals():
    assert str(NVFP4Format()) == "nvfp4"
    assert str(NVFP4Format(32, 0)) == "nvfp4_b32_ax0"
    assert NVFP4Format().bits_per_number == 4.5
    for arguments, message in (((0,), "block .* got 0"), ((16, 9), "axis")):
        with pytest.raises(FormatError, match=message):
            NVFP4Format(*arguments)
    with pytest.raises(FormatError, match="must be saturate"):
        rounded(NVFP4Format(), torch.ones(2), overflow=Overflow.INFINITY)
    with pytest.raises(FormatError, match="empty"):
        NVFP4Format().encode(torch.empty(0))
    with pytest.raises(FormatError, match="no such axis"):
        rounded(NVFP4Format(axis=1), torch.ones(2))


@pytest.mark.parametrize("shape", [(40, 70), (16, 16), (3, 40, 20), (5,), (), (8, 6, 3, 3)], ids=str)
def test_squares_share_a_scale(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    fmt = Format.parse("nvfp4_square")
    y = round(x, fmt)
    assert str(fmt) == "nvfp4_square"
    assert same_bits(fmt.decode(fmt.encode(x)), y)
    assert same_bits(by_operations(fmt, x), y)
    if x.dim() == 2:
        assert same_bits(round(x.t().contiguous(), fmt).t().contiguous(), y)  # a square is one from either side
        top = x.abs().max() / (448 * 6)
        for i in range(0, shape[0], 16):
            for j in range(0, shape[1], 16):
                part = x[i : i + 16, j : j + 16]
                scale = (part.abs().max() / (6 * top)).to(torch.float8_e4m3fn).float() * top
                assert same_bits(round(part / scale, "e2m1_finite") * scale, y[i : i + 16, j : j + 16].contiguous())


@pytest.mark.parametrize("shape", [(21, 40), (3, 10, 17)])
def test_random_bits_of_squares_are_those_of_the_places_of_numbers(shape):
    fmt, x = Format.parse("nvfp4_b8_square"), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    bits = RandomBits(1, 2)
    for random in (bits, random_words(bits, x)):
        found = fmt.rounded(x, Rounding.STOCHASTIC, None, random)
        assert same_bits(found, by_operations(fmt, x, Rounding.STOCHASTIC, None, bits))
        assert same_bits(found, fmt.decode(fmt.encode(x, Rounding.STOCHASTIC, random=random)))
