"""QuaRL's rounding against its formula in NumPy, and against exact rational arithmetic in every mode."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import rounded
from formats_exact import round_to_integer
from hypothesis import given
from hypothesis import strategies as st
from strategies import float32_tensors
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, FormatError, QuarlFormat, RandomBits, Rounding

SMALLEST = 2.0**-126


def by_numpy(w, width, axis=None):
    """d rint(w / d) with d = (|min| + |max|) / 2^width, each operation in the dtype of ``w``."""
    w = w.numpy()
    others = None if axis is None else tuple(i for i in range(w.ndim) if i != axis % w.ndim)
    d = (np.abs(w.min(axis=others, keepdims=True)) + np.abs(w.max(axis=others, keepdims=True))) / w.dtype.type(2**width)
    return torch.from_numpy(np.rint(w / d) * d + w.dtype.type(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each("width", range(2, 17))
def test_is_the_formula_in_numpy(width, dtype):
    w = torch.randn(32, 8, 3, 3, generator=torch.Generator().manual_seed(width), dtype=dtype)
    w *= torch.logspace(-6, 6, 32, base=2).to(dtype)[:, None, None, None]
    for x in (w, w.transpose(0, 1), w[3], w[:, 1, 2], w.abs(), -w.abs()):
        for axis in (None, 0, -1):
            fmt = QuarlFormat(width, axis, affine=width == 16)
            right = by_numpy(x, width, axis)
            assert same_bits(rounded(fmt, x), right)
            assert same_bits(by_operations(fmt, x), right)


def test_has_one_level_more_than_codes():
    x = torch.linspace(-1, 1, 1001)
    for width in range(2, 9):
        assert len(roundoff.round(x, f"quarl{width}").unique()) == 2**width + 1
    assert roundoff.round(torch.tensor([0.0, 0.3, 1.0]), "quarl2").tolist() == [0, 0.25, 1]


def test_sixteen_is_fp16_unless_it_is_said_to_be_affine():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[:3] = torch.tensor([70000.0, torch.nan, -0.0])
    assert same_bits(roundoff.round(x, "quarl16"), x.half().float())
    bits = RandomBits(1, 2)
    stochastic = {"rounding": "stochastic", "random": bits}
    assert same_bits(roundoff.round(x, "quarl16", **stochastic), roundoff.round(x, "fp16", **stochastic))
    assert not same_bits(roundoff.round(x[3:], "quarl16_affine"), x[3:].half().float())


@given(float32_tensors(allow_nan=False, allow_infinity=False), st.sampled_from(list(Rounding)), st.integers(2, 8))
def test_chooses_as_rational_arithmetic_does(x, rounding, width):
    """Between the two multiples that a number lies between, as the carrier holds them; to nearest by the formula."""
    if rounding is Rounding.STOCHASTIC or not len(x):
        return
    fmt = QuarlFormat(width)
    got = rounded(fmt, x, rounding=rounding)
    assert same_bits(got, by_operations(fmt, x, rounding=rounding))
    low, high = x.min().abs() * 2.0**-width, x.max().abs() * 2.0**-width
    step = max(float(low + high), SMALLEST)
    for one, result in zip(x.tolist(), got.tolist(), strict=True):
        k = round(Fraction(result) / Fraction(step)) if math.isfinite(result) else None
        if k is None:  # beyond the carrier's largest
            assert abs(one) > 1e37
            continue
        assert result == float(np.float32(k) * np.float32(step))
        if rounding is Rounding.NEAREST_EVEN:
            assert k == int(np.rint(np.float32(one) / np.float32(step)))
        elif result != one:
            exact = Fraction(one) / Fraction(step)
            allowed = {round_to_integer(abs(exact), rounding, negative=one < 0) * (-1 if one < 0 else 1)}
            nearby = {math.floor(exact), math.ceil(exact)}
            assert k in allowed or (k in {n + i for n in nearby for i in (-1, 0, 1)} and abs(exact - k) <= 1)


def test_nan_and_infinity_leave_no_step_and_zeros_and_constants_stay():
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.tensor([[1.0, bad], [1.0, 0.4]])
        assert roundoff.round(x, "quarl3").isnan().all()
        by_channel = roundoff.round(x, "quarl3_ax0")
        assert by_channel[0].isnan().all()
        assert by_channel[1].isfinite().all()
    assert same_bits(roundoff.round(torch.tensor([0.0, -0.0]), "quarl4"), torch.zeros(2))
    for constant in (3.7, -1e-30, 1e38):
        x = torch.full((4,), constant)
        assert same_bits(roundoff.round(x, "quarl2"), x)
    assert not roundoff.round(torch.tensor([1.0, -0.01]), "quarl2").signbit().any()
    assert roundoff.round(torch.empty(0), "quarl4").shape == (0,)


def test_names_go_back_and_forth_and_mistakes_are_told():
    for text in ("quarl2", "quarl15_ax-1", "quarl16", "quarl16_affine", "quarl16_affine_ax0"):
        assert str(Format.parse(text)) == text
    for text, why in [
        ("quarl1", "2 to 16"), ("quarl17", "2 to 16"), ("quarl8_affine", "quarl16"), ("quarl16_ax0", "fp16"),
        ("quarl8_g4", "no suffix"),
    ]:  # fmt: skip
        with pytest.raises(FormatError, match=why):
            Format.parse(text)
    with pytest.raises(FormatError, match="no codes"):
        Format.parse("quarl8").encode(torch.ones(2))
    with pytest.raises(FormatError, match="axis"):
        roundoff.round(torch.ones(2), "quarl8_ax1")
