"""The equivalence tool tells rewrites from changes, also from changes too small for float64 to show."""

import math

import pytest
import torch
from hypothesis import given

from roundoff.formats import FormatError
from roundoff.testing import NotEquivalentError, assert_equivalent, equivalence, tensors


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


REWRITES = {
    "square of a quotient": (
        lambda x, s: x**2 / s**2,
        lambda x, s: (x / s) ** 2,
        (normal(500), normal(500, seed=1).exp()),
    ),
    "hypot": (
        lambda a, b: torch.sqrt(a * a + b * b),
        lambda a, b: torch.maximum(a, b) * torch.sqrt(1 + (torch.minimum(a, b) / torch.maximum(a, b)) ** 2),
        (normal(500).abs(), normal(500, seed=1).abs()),
    ),
    "tanh squared": (
        lambda u: torch.log(1 - torch.tanh(u) ** 2),
        lambda u: 2 * (math.log(2) - u - torch.log(1 + torch.exp(-2 * u))),
        (normal(500),),
    ),
    "order of a sum": (lambda x: x.cumsum(0)[-1], lambda x: x.flip(0).cumsum(0)[-1], (normal(300, 3),)),
    "a tree of results, and integers": (
        lambda x, n: {"a": [x * n], "b": x + x},
        lambda x, n: {"a": [x + (n - 1) * x], "b": 2 * x},
        (normal(100), 3),
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites_are_equivalent(name):
    first, second, inputs = REWRITES[name]
    result = assert_equivalent(first, second, *inputs)
    assert result.slope < -0.75 or math.isnan(result.slope)
    assert max(result.first_errors[0], result.second_errors[0]) > 2.0**-14  # rounding did take place


def test_gradients_can_be_compared():
    def first(x):
        y = torch.log(1 + x.exp())
        return torch.autograd.grad(y.sum(), x)

    def second(x):
        return torch.sigmoid(x)

    result = assert_equivalent(first, second, normal(100).requires_grad_())
    assert -1.2 < result.slope < -0.8


def test_a_change_is_found():
    with pytest.raises(NotEquivalentError, match="differ in float64"):
        assert_equivalent(torch.sin, lambda x: x - x**3 / 6, normal(50))


def test_a_change_that_float64_would_let_pass_is_found_by_the_slope():
    """The difference never goes below 1e-10, whatever the width: no rewrite, though within exact_tolerance."""
    with pytest.raises(NotEquivalentError, match="does not shrink"):
        assert_equivalent(lambda x: x * x, lambda x: x * x + 1e-10, normal(50).clamp(-2, 2))


def test_even_smaller_changes_are_found_by_their_growth():
    with pytest.raises(NotEquivalentError, match="times as large at the widest width"):
        assert_equivalent(lambda x: x * x, lambda x: x * x + 4e-12, normal(50).clamp(-2, 2))


def test_a_small_result_does_not_hide_behind_a_large_one():
    with pytest.raises(NotEquivalentError, match=r"Most in result 1 at \(3,\)"):
        assert_equivalent(
            lambda x: (x * 100, x), lambda x: (x * 100, x + 1e-8 * (torch.arange(9) == 3).double()), normal(9).double()
        )


@given(tensors("e5m10", shape=10, min_value=-8, max_value=8), tensors("e5m10", shape=10, min_value=-8, max_value=8))
def test_no_false_alarms_on_few_numbers(a, b):
    """A difference of one or two elements is zero at some widths by chance."""
    assert_equivalent(lambda a, b: (a + b) * (a - b), lambda a, b: (a - b) * a + (a - b) * b, a, b)


def test_one_side_failing_is_found():
    with pytest.raises(NotEquivalentError):
        assert_equivalent(lambda x: torch.log(1 + torch.exp(x)), lambda x: x, torch.full((3,), 1000.0))


def test_identical_programs_have_no_slope():
    result = assert_equivalent(torch.tanh, torch.tanh, normal(20))
    assert math.isnan(result.slope)
    assert result.differences == (0.0,) * len(result.widths)


def test_bits_needed():
    result = equivalence(torch.tanh, lambda x: torch.tanh(x) * 1.0, normal(1000), widths=[4, 8, 12])
    for tolerance, bits in ((1.0, 4), (2.0**-7, 8), (2.0**-11, 12), (2.0**-20, None)):
        assert result.bits_needed(tolerance)[0] == bits


def test_inputs_are_not_changed_and_programs_may_work_in_place():
    x = normal(10).float()
    before = x.clone()
    assert_equivalent(lambda v: v.mul_(3), lambda v: v.add_(v * 2), x)
    assert torch.equal(x, before)


def test_nan_on_both_sides_is_equal_and_empty_results_too():
    assert equivalence(torch.log, torch.log, -normal(5).abs()).exact_difference == 0
    assert equivalence(torch.log, torch.log, torch.ones(0)).exact_difference == 0


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        (lambda x: x, lambda x: x[:1], {}, "different shapes"),
        (lambda x: 3, lambda x: 3, {}, "no tensor"),
        (torch.sin, torch.sin, {"widths": [60]}, "from 0 to 48"),
        (torch.sin, torch.sin, {"widths": []}, "from 0 to 48"),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, options, message):
    with pytest.raises(FormatError, match=message):
        equivalence(first, second, normal(4), **options)
