"""What ``roundoff.round`` takes beside float32 and names: half-precision tensors, and dtypes for formats."""

import pytest
import torch
from comparing import same_bits

import roundoff
from roundoff.formats import Format, FormatError

HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("format", ["e4m3fn", "e5m2", "e2m1", "q3.4", "fp32"])
def test_half_precision_tensors_are_rounded_as_their_numbers(format, dtype):
    x = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3, torch.tensor([0.0, -0.0, 1e-6])])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan])]) if format == "e5m2" else x
    x = x.to(dtype)
    y = roundoff.round(x, format)
    assert y.dtype == dtype
    assert same_bits(y.float(), roundoff.round(x.float(), format))


def test_a_half_that_lacks_a_number_is_refused():
    with pytest.raises(FormatError, match=r"torch.float16 does not have all of the rounded numbers of e8m1"):
        roundoff.round(torch.tensor([65504.0], dtype=torch.float16), "e8m1", rounding="up")
    with pytest.raises(FormatError, match=r"round x\.float"):
        roundoff.round(torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16(), "int8")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_dtype_stands_for_its_numbers(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert same_bits(roundoff.round(x, dtype), x.to(dtype).float())
    assert Format.parse(dtype) == Format.parse(str(dtype).removeprefix("torch."))


def test_other_dtypes_are_no_formats():
    with pytest.raises(FormatError, match="int64"):
        roundoff.round(torch.ones(2), torch.int64)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_simulation_around_does_not_round_half_precision_tensors_before(dtype):
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = roundoff.round(x, "e5m5")
    with roundoff.simulate("e5m2"):
        assert torch.equal(roundoff.round(x, "e5m5"), expected)
    assert not roundoff.round(x.requires_grad_(), "e5m5").requires_grad


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_empty_half_precision_tensors(dtype):
    assert roundoff.round(torch.zeros(0, 3, dtype=dtype), "e5m2").shape == (0, 3)


def test_a_seed_stands_for_its_random_bits():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = roundoff.round(x, "e5m2", rounding="stochastic", seed=7)
    assert same_bits(rounded, roundoff.round(x, "e5m2", rounding="stochastic", random=roundoff.RandomBits(7)))
    assert not same_bits(rounded, roundoff.round(x, "e5m2", rounding="stochastic", seed=8))
    with pytest.raises(FormatError, match="give seed or random"):
        roundoff.round(x, "e5m2", rounding="stochastic", seed=7, random=roundoff.RandomBits(7))
    with pytest.raises(FormatError, match="random bits"):
        roundoff.round(x, "e5m2", seed=7)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_a_gradient_changes_no_number(dtype):
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    rounded = roundoff.round(x, "e4m3", rounding="stochastic", seed=3, gradient="straight-through")
    assert torch.equal(rounded.detach(), roundoff.round(x, "e4m3", rounding="stochastic", seed=3))
    (rounded * 3).sum().backward()
    assert x.grad.tolist() == [3.0] * 200
    with pytest.raises(FormatError, match="a format is given as text"):
        roundoff.round(x, ["e5m2"], gradient="straight-through")
