"""Softplus, the normal log-probability, and compensated sums: the same in exact arithmetic, and safe in half."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from roundoff.agents import RunError
from roundoff.agents.models.normal_fix import normal_log_prob, normal_log_prob_naive
from roundoff.agents.models.softplus_fix import softplus, softplus_naive
from roundoff.formats import Format, round
from roundoff.remedies import KahanEMA, PlainEMA, kahan_add_
from roundoff.simulate import simulate

HALF = "e5m10"
finite = st.floats(-200, 200)


def value_and_gradient(function, x):
    x = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.item(), gradient.item()


@given(finite)
def test_softplus_is_the_function_itself(x):
    value, gradient = value_and_gradient(lambda t: softplus(t, 30.0), x)
    assert value == pytest.approx(math.log1p(math.exp(x)) if x < 30 else x, rel=1e-12, abs=1e-12)
    assert gradient == pytest.approx(1 / (1 + math.exp(-x)), rel=1e-12)


@given(st.floats(-30, 30))
def test_both_softplus_agree_where_nothing_overflows(x):
    naive, fixed = value_and_gradient(softplus_naive, x), value_and_gradient(lambda t: softplus(t, 40.0), x)
    assert fixed == pytest.approx(naive, rel=1e-12, abs=1e-12)


@given(finite, st.floats(0.5, 20))
def test_softplus_jumps_by_no_more_than_exp_of_minus_threshold(x, threshold):
    value, _ = value_and_gradient(lambda t: softplus(t, threshold), x)
    assert abs(value - (max(x, 0) + math.log1p(math.exp(-abs(x))))) <= math.exp(-threshold) + 1e-12


def test_softplus_passes_on_what_is_not_finite():
    x = torch.tensor([math.nan, math.inf, -math.inf], requires_grad=True)
    y = softplus(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.isnan().tolist() == [True, False, False]
    assert y[1:].tolist() == [math.inf, 0]
    assert gradient[1:].tolist() == [1, 0]


def test_softplus_computes_nothing_infinite_on_the_way():
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            assert not isinstance(result, torch.Tensor) or result.isfinite().all(), func  # else torch.equal's answer
            return result

    x = torch.linspace(-60000, 60000, 101, requires_grad=True)
    with Watch(), simulate(HALF):
        torch.autograd.grad(softplus(x), x, torch.ones(101))


def test_naive_softplus_fails_in_half_and_the_fix_repairs_it():
    with simulate(HALF):
        naive, naive_gradient = [], []
        for function, values in ((softplus_naive, naive), (softplus, naive_gradient)):
            x = torch.linspace(-20, 60, 161, requires_grad=True)
            y = function(x)
            values.extend([y.detach(), torch.autograd.grad(y.sum(), x)[0]])
    assert naive[0].isinf().any()
    assert naive[1].isnan().any()
    value, gradient = naive_gradient
    exact = torch.nn.functional.softplus(torch.linspace(-20, 60, 161, dtype=torch.float64))
    assert torch.allclose(value.double(), exact, rtol=2e-3, atol=2e-3)
    assert torch.allclose(
        gradient.double(), torch.sigmoid(torch.linspace(-20, 60, 161, dtype=torch.float64)), atol=2e-3
    )


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-5, 2))
def test_both_normal_log_probs_are_torchs(x, mean, log_sigma):
    arguments = [torch.tensor(v, dtype=torch.float64) for v in (x, mean, math.exp(log_sigma), log_sigma)]
    expected = torch.distributions.Normal(arguments[1], arguments[2]).log_prob(arguments[0])
    for function in (normal_log_prob, normal_log_prob_naive):
        assert torch.allclose(function(*arguments), expected, rtol=1e-12, atol=1e-12)


def test_naive_normal_fails_in_half_and_the_fix_repairs_it():
    sigma = 2.0**-14
    exact = -0.5 - math.log(sigma) - 0.5 * math.log(2 * math.pi)
    with simulate(HALF):
        arguments = [torch.tensor([v]) for v in (1.5 * sigma, 0.5 * sigma, sigma, math.log(sigma))]
        assert not normal_log_prob_naive(*arguments).isfinite().any()
        assert normal_log_prob(*arguments).item() == pytest.approx(exact, rel=1e-3)


@given(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=60))
def test_kahan_sum_is_exact_to_an_ulp(values):
    values = [round(torch.tensor([v]), HALF) for v in values]
    with simulate(HALF):
        total, compensation = torch.ones(1), torch.zeros(1)
        for value in values:
            kahan_add_(total, compensation, value)
    exact = 1 + sum(Fraction(value.item()) for value in values)
    magnitude = 1 + sum(abs(value.item()) for value in values)
    # Kahan's bound: 2 u + O(n u^2), relative to the sum of the magnitudes; u = 2^-11.
    assert abs(total.item() - exact) <= (2 * 2**-11 + 2 * len(values) * 2**-22) * magnitude + 2**-24


def test_plain_sum_absorbs_in_half_and_kahan_does_not():
    with simulate(HALF):
        plain, total, compensation = torch.ones(1), torch.ones(1), torch.zeros(1)
        for _ in range(1000):
            plain.add_(1e-4)
            kahan_add_(total, compensation, torch.full((1,), 1e-4))
    assert plain.item() == 1
    assert total.item() == pytest.approx(1.1, abs=2e-3)


@given(st.integers(0, 1000), st.floats(0.001, 1), st.floats(1, 1e5))
def test_both_averages_are_the_same_in_float64(seed, tau, scale):
    generator = torch.Generator().manual_seed(seed)
    start, *sources = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    plain, kahan = PlainEMA(start.clone(), tau), KahanEMA(start.clone(), tau, scale=scale)
    for source in sources:
        plain.update_(source)
        kahan.update_(source)
    assert torch.allclose(plain.average, kahan.average, rtol=1e-12, atol=1e-12)


def test_plain_average_stalls_in_half_and_kahan_momentum_does_not():
    with simulate(HALF):
        source = torch.tensor([1.01, -0.505])
        start = torch.tensor([1.0, -0.5])
        plain = PlainEMA(start.clone(), 0.005)
        kahan = KahanEMA(start.clone(), 0.005, scale=1e4, largest=65504.0)
        for _ in range(1000):
            plain.update_(source)
            kahan.update_(source)
    # It should close 99.3 % of the way.
    assert (plain.average - source).abs().ge(0.9 * (start - source).abs()).all()
    assert torch.allclose(kahan.average, source, rtol=1e-3)


def test_kahan_momentum_makes_room_before_it_overflows():
    largest = Format.parse(HALF).max
    with simulate(HALF):
        ema = KahanEMA(torch.tensor([1.0]), 0.5, scale=1e4, largest=largest)
        for weight in (1.0, 50.0, 1000.0, -60000.0, -60000.0):
            ema.update_(torch.tensor([weight]))
            assert ema.buffer.isfinite().all()
    assert ema.average.item() == pytest.approx(-44856.2, rel=2e-3)
    assert 0.5 < ema.scale <= 1


def test_room_is_made_where_a_source_needs_it_and_no_sooner():
    """C is halved where 2 C |source| is beyond the largest number, by however little."""
    most = torch.tensor(1024.0 / (2 * 16))
    for source, scale in ((most, 16.0), (torch.nextafter(most, torch.tensor(torch.inf)), 8.0)):
        assert KahanEMA(source.view(1), 0.5, scale=16.0, largest=1024.0).scale == scale


def test_making_room_changes_nothing_but_the_scale():
    sources = [2.0**-12 * k for k in range(40)]
    averages = []
    for largest in (math.inf, 65504.0):
        with simulate(HALF):
            ema = KahanEMA(torch.ones(1), 0.005, scale=2.0**13, largest=largest)
            for source in sources:
                ema.update_(torch.full((1,), 1 + source))
            ema.update_(torch.full((1,), 7.0))
            for source in sources:
                ema.update_(torch.full((1,), 1 + source))
        averages.append((ema.buffer.item() / ema.scale, ema.compensation.item() / ema.scale))
    assert ema.scale == 2.0**12
    assert averages[0] == averages[1]


def test_kahan_momentum_of_nan_ends_and_is_nan():
    ema = KahanEMA(torch.ones(2), 0.5, largest=65504.0)
    ema.update_(torch.tensor([math.nan, 1.0]))
    assert ema.average.isnan().tolist() == [True, False]
    ema.update_(torch.tensor([math.inf, 1.0]))
    assert ema.scale == 1e4


def test_averages_refuse_nonsense():
    with pytest.raises(RunError, match="tau=0"):
        KahanEMA(torch.ones(1), 0)
    with pytest.raises(RunError, match="scale=inf"):
        KahanEMA(torch.ones(1), 0.5, scale=math.inf)
