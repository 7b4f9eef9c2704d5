"""Norms and standardization: the same in exact arithmetic, and what each is worth in few bits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundoff.agents.optimizers.scaled_norms import norm_over, norm_over_naive, standardized, standardized_naive
from roundoff.simulate import simulate

numbers = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=30)


@pytest.mark.parametrize("norm", [norm_over, norm_over_naive])
@given(values=numbers, unit=st.floats(1e-3, 1e6))
def test_the_norm_is_mathematics(norm, values, unit):
    x = torch.tensor(values, dtype=torch.float64)
    assert norm(x, unit).item() == pytest.approx(math.hypot(*values) / unit, rel=1e-12, abs=1e-150)


@pytest.mark.parametrize("standardize", [standardized, standardized_naive])
@given(values=numbers)
def test_standardized_is_what_pytorch_says(standardize, values):
    x = torch.tensor(values, dtype=torch.float64)
    expected = (x - x.mean()) / (x.std() + 1e-8)
    assert torch.allclose(standardize(x), expected, rtol=1e-9, atol=1e-9)
    assert x.tolist() == values


@pytest.mark.parametrize("standardize", [standardized, standardized_naive])
def test_numbers_in_another_unit_are_standardized_alike_however_small(standardize):
    x = torch.tensor([1e-8, 3e-8, -2e-8], dtype=torch.float64)
    assert torch.equal(standardize(x * 1024, 1024.0), standardize(x))


@given(st.integers(-23, 13), st.integers(1, 2000))
def test_in_half_precision_the_norm_keeps_its_digits_at_any_magnitude(exponent, count):
    x = torch.full((count,), 2.0**exponent)
    with simulate("e5m10"):
        found = norm_over(x, 2.0**exponent).item()
    assert found == pytest.approx(math.sqrt(count), rel=2e-3)


def test_what_becomes_of_squares_in_half_precision():
    with simulate("e5m10"):
        assert norm_over_naive(torch.tensor([300.0, 0.0]), 1.0).isinf()
        assert norm_over_naive(torch.full((100,), 1e-4), 1e-4) == 0
        apart = torch.tensor([-400.0, 400.0])
        assert standardized_naive(apart).tolist() == [0, 0]
        assert standardized(apart).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-3)
        close = torch.tensor([1e-4, -1e-4])
        assert standardized_naive(close).isinf().all()
        assert standardized(close).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-3)


@pytest.mark.parametrize("format", ["fp32", "e5m10", "e4m3"])
def test_where_all_are_the_same_nothing_is_nan(format):
    with simulate(format):
        for value in (0.0, 3.0):
            assert standardized(torch.full((8,), value)).tolist() == [0] * 8
        assert norm_over(torch.zeros(8), 2.0) == 0
    with simulate("e5m10"):
        assert standardized_naive(torch.full((8,), 3.0)).isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(bad):
    x = torch.tensor([1.0, bad, 2.0])
    assert norm_over(x, 1.0).isnan()
    assert not norm_over_naive(x, 1.0).isfinite()
    assert standardized(x).isnan().all()
    assert standardized_naive(x).isnan().any()


def test_native_half_precision_too():
    x = torch.full((100,), 300.0, dtype=torch.float16)
    assert norm_over(x, 1000.0).item() == pytest.approx(3.0, rel=2e-3)
    assert norm_over_naive(x, 1000.0).isinf()
    assert norm_over(x, torch.tensor(1000.0)).dtype == torch.float16
