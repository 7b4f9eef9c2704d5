"""The seventh fix, the log-probability from the noise, held to the proof of the six."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf
from paired_agents import CPU, differences, problems, slopes, states, subsets

from roundoff.agents import FIXES, SAC, TrainConfig
from roundoff.agents.models.noise_log_prob import noise_log_prob
from roundoff.agents.models.normal_fix import normal_log_prob, normal_log_prob_naive
from roundoff.agents.models.softplus_fix import softplus
from roundoff.agents.models.squashed_normal import SquashedNormal
from roundoff.formats import round
from roundoff.simulate import simulate
from roundoff.testing import assert_equivalent

HALF = "e5m10"
U64, U16 = 2.0**-53, 2.0**-11
TINY16 = 2.0**-24  # the smallest positive number of e5m10


@pytest.fixture(autouse=True)
def precise():
    with mpmath.workprec(200):
        yield


def exact(noise, log_sigma):
    return -(mpf(noise) ** 2) / 2 - mpf(log_sigma) - mpmath.log(2 * mpmath.pi) / 2


def evaluate(noise, log_sigma, dtype):
    noise = torch.tensor([noise], dtype=dtype)
    log_sigma = torch.tensor([log_sigma], dtype=dtype, requires_grad=True)
    value = noise_log_prob(noise, log_sigma)
    return value.item(), torch.autograd.grad(value, log_sigma, torch.ones_like(value))[0].item()


def squashed_sample(function, mean, log_sigma, noise):
    """log pi of one action, as a policy takes it, and its whole gradients by mean and log sigma."""
    mean, log_sigma = mean.clone().requires_grad_(), log_sigma.clone().requires_grad_()
    sigma = torch.exp(log_sigma)
    u = mean + sigma * noise
    normal = noise_log_prob(noise, log_sigma) if function is None else function(u, mean, sigma, log_sigma)
    value = normal + 2 * (u + softplus(-2 * u, 11.0))
    return value.detach(), *torch.autograd.grad(value, (mean, log_sigma), torch.ones_like(value))


@settings(max_examples=50)
@given(noise=st.floats(-1e3, 1e3), log_sigma=st.floats(-700, 700))
def test_in_float64(noise, log_sigma):
    value, slope = evaluate(noise, log_sigma, torch.float64)
    # The square, and two sums whose terms may cancel.
    size = mpf(noise) ** 2 / 2 + abs(mpf(log_sigma)) + 1
    assert abs(mpf(value) - exact(noise, log_sigma)) <= 3.5 * U64 * size
    assert slope == -1


@pytest.mark.parametrize("granularity", ["kernel", "primitive"])
@settings(max_examples=30)
@given(noise=st.floats(-8, 8, width=16), log_sigma=st.floats(-20, 10, width=16))
def test_in_half(granularity, noise, log_sigma):
    """The bound knows no sigma: there is nothing to divide by it, and nothing to cancel."""
    with simulate(HALF, granularity=granularity):
        value, slope = evaluate(noise, log_sigma, torch.float32)
    size = mpf(noise) ** 2 / 2 + abs(mpf(log_sigma)) + 1
    assert abs(mpf(value) - exact(noise, log_sigma)) <= 3.5 * U16 * size + TINY16
    assert slope == -1


@pytest.mark.parametrize("function", [normal_log_prob, normal_log_prob_naive])
def test_is_the_density_at_the_sample_in_value_and_gradients(function):
    generator = torch.Generator().manual_seed(0)
    mean, noise = torch.randn(2, 64, generator=generator)
    log_sigma = 4 * torch.rand(64, generator=generator) - 3

    def by_noise(mean, log_sigma, noise):
        return squashed_sample(None, mean, log_sigma, noise)

    def by_density(mean, log_sigma, noise):
        return squashed_sample(function, mean, log_sigma, noise)

    result = assert_equivalent(by_noise, by_density, mean, log_sigma, noise, widths=(12, 24, 36, 48))
    assert result.slope == pytest.approx(-1, abs=0.1)


@pytest.mark.parametrize("granularity", ["kernel", "primitive"])
def test_in_half_it_holds_where_the_normal_fix_does_not(granularity):
    """mean 3 and sigma 2^-9: the sample has an ulp of half a sigma, and the fixed density is about what remains."""
    noise = round(torch.linspace(-2, 2, 17), HALF)
    mean = torch.full((17,), 3.0)
    (log_sigma,) = round(torch.tensor([-9 * 0.6931]), HALF)
    log_sigma = log_sigma.expand(17)
    right, right_by_mean, right_by_log_sigma = squashed_sample(None, mean.double(), log_sigma.double(), noise.double())
    errors = {}
    for name, function in (("noise", None), ("normal_fix", normal_log_prob), ("naive", normal_log_prob_naive)):
        with simulate(HALF, granularity=granularity):
            value, by_mean, by_log_sigma = squashed_sample(function, mean, log_sigma, noise)
        errors[name] = [
            float((got - expected).abs().max())
            for got, expected in ((value, right), (by_mean, right_by_mean), (by_log_sigma, right_by_log_sigma))
        ]
    assert max(errors["noise"]) < 2**-7
    for name in ("normal_fix", "naive"):
        value, by_mean, by_log_sigma = errors[name]
        assert not value < 0.5
        assert not by_log_sigma < 0.5
        assert not by_mean < 20 * errors["noise"][1]  # the squashing's part, absorbed by what cancels


def test_types_shapes_and_what_is_not_a_number():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        noise, log_sigma = torch.zeros(3, 2, dtype=dtype), torch.full((2,), -1.0, dtype=dtype)
        value = noise_log_prob(noise, log_sigma)
        assert value.dtype == dtype
        assert value.shape == (3, 2)
        assert float(value[0, 0]) == pytest.approx(1 - 0.9189385, rel=2**-6)
    nan, infinity = torch.tensor(float("nan")), torch.tensor(float("inf"))
    zero = torch.tensor(0.0)
    assert noise_log_prob(nan, zero).isnan()
    assert noise_log_prob(zero, nan).isnan()
    assert noise_log_prob(infinity, zero) == -infinity
    assert noise_log_prob(torch.tensor(300.0, dtype=torch.float16), zero.half()) == -infinity


# In the agent


SEVENTH = "noise_log_prob"
WIDTHS = (12, 30, 48)


@pytest.fixture
def forget():
    yield
    states.cache_clear()


def test_it_is_on_where_it_is_named_and_nowhere_else():
    assert TrainConfig(fixes="all").fixes == FIXES
    assert TrainConfig(fixes=[SEVENTH, "hadam"]).fixes == ("hadam", SEVENTH)
    for fixes, on in (("all", False), (["hadam", SEVENTH], True)):
        assert SAC(3, 1, TrainConfig(fixes=fixes, hidden_units=4), CPU).policy.from_noise == on
    with pytest.raises(ValueError, match='did you mean "noise_log_prob"'):
        TrainConfig(fixes=["noise_logprob"])


@pytest.mark.usefixtures("forget")
@settings(max_examples=4)
@given(problems(), subsets)
def test_it_changes_nothing_in_float64_beside_any_subset_of_the_six(problem, fixes):
    one, ten = differences(problem, "fp64", (*fixes, SEVENTH), (1, 10))
    assert one < 2**-49
    assert ten < 2**-48


@pytest.mark.usefixtures("forget")
@settings(max_examples=2)
@given(problems())
def test_the_difference_it_makes_halves_with_each_bit(problem):
    table = [differences(problem, f"e11m{m}", (SEVENTH,), (1, 10), seeds=3) for m in WIDTHS]
    for slope in slopes(WIDTHS, table):
        assert slope == pytest.approx(-1, abs=0.2)


def test_the_policy_takes_it_and_needs_it_in_half():
    """The case above, through the policy: log sigma is -6.2 for raw outputs of 0 between these bounds."""
    outputs, noise = torch.tensor([[3.0, 0.0]]).expand(17, 2), torch.linspace(-2, 2, 17)[:, None]
    errors = []
    for from_noise in (False, True):
        policy = SquashedNormal(-14.0, 1.6, True, True, 10.0, from_noise)
        found = []
        for format in ("fp64", HALF):
            dtype = torch.float64 if format == "fp64" else torch.float32
            leaf = outputs.to(dtype).requires_grad_()
            with simulate(format):
                action, log_prob = policy.sample_with_log_prob(leaf, round(noise.to(dtype), HALF))
                (gradient,) = torch.autograd.grad(log_prob.sum(), leaf)
            found.append([action.detach(), log_prob.detach(), gradient])
        errors.append([float((exact - half).abs().max()) for exact, half in zip(*found, strict=True)])
    (action, *without), (same_action, *with_it) = errors
    assert action == same_action
    assert max(with_it) < 2**-6
    assert min(without) > 0.5
