"""Stochastic moments: bit for bit what they say, right on average, and nothing in exact arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_agents import THE_SIX, check_halving, check_same_in_float64, problems

import roundoff
from roundoff.agents.optimizers.rmsprop import RMSProp
from roundoff.formats import RandomBits
from roundoff.remedies import HAdam, stochastic_mean_, stochastic_mean_square_, stochastic_root_

MOMENTS = (*THE_SIX, "stochastic_moments")
OF_MEANS = {
    stochastic_mean_: lambda m, x, b: b * m + (1 - b) * x,
    stochastic_mean_square_: lambda m, x, b: b * m + (1 - b) * x * x,
}


@settings(max_examples=25)
@given(
    st.sampled_from(["e5m2", "e4m3", "e5m10", "e8m7"]), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.9, 0.999])
)
def test_each_is_one_operation_rounded_once(format, seed, beta):
    generator = torch.Generator().manual_seed(seed)
    moment, x = (roundoff.round(torch.randn(20, generator=generator), format) for _ in range(2))
    moment.abs_()
    for number, (move_, formula) in enumerate(OF_MEANS.items()):
        pairs = zip(moment.tolist(), x.tolist(), strict=True)
        exact = [float(formula(Fraction(m), Fraction(g), Fraction(beta))) for m, g in pairs]
        random = RandomBits(2, (seed << 32) + number)
        wide = torch.tensor(exact, dtype=torch.float64)
        expected = roundoff.round(wide, format, rounding="stochastic", random=random)
        ours = moment.clone()
        with roundoff.simulate(format, seed=2) as simulation:
            simulation.step = seed
            for _ in range(number):
                stochastic_mean_(torch.zeros(20), torch.zeros(20), 0.5)  # which draws once
            assert move_(ours, x, beta) is ours
        assert torch.equal(ours.double(), expected)


@pytest.mark.parametrize("format", ["e5m2", "e4m3", "e8m7"])
@pytest.mark.parametrize("move_", [stochastic_mean_, stochastic_mean_square_, stochastic_root_])
def test_a_moment_decays_on_average_that_nearest_rounding_keeps(format, move_):
    """20 000 of each: at 5 standard errors."""
    moment, zeros = torch.full((20_000,), 1.5), torch.zeros(20_000)
    steps, factor = 400, math.sqrt(0.999) if move_ is stochastic_root_ else 0.999
    with roundoff.simulate(format, seed=0) as simulation:
        for simulation.step in range(steps):
            move_(moment, zeros, 0.999)
        nearest = torch.full((1,), 1.5)
        for _ in range(steps):
            nearest.mul_(factor)
    assert nearest == 1.5
    assert abs(moment.double().mean().item() - 1.5 * factor**steps) <= 5 * moment.double().std().item() / math.sqrt(
        20_000
    )


@given(st.floats(0, 100), st.floats(-100, 100), st.floats(0, 0.999))
def test_without_rounding_they_are_the_usual_ones(moment, x, beta):
    for move_, formula in {
        **OF_MEANS,
        stochastic_root_: lambda m, x, b: math.sqrt(b * m * m + (1 - b) * x * x),
    }.items():
        found = move_(torch.tensor([moment], dtype=torch.float64), torch.tensor([x], dtype=torch.float64), beta)
        assert found.item() == pytest.approx(formula(moment, x, beta), rel=1e-14, abs=1e-150)


def test_nan_infinity_zero_and_what_is_below_the_smallest_number():
    moment, x = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([math.nan, math.inf, 0.0, 2.0**-16])
    with roundoff.simulate("e5m2", seed=0):
        stochastic_root_(moment, x, 0.999)
    assert moment[0].isnan()
    assert moment[1] == math.inf
    assert moment[2] == 0
    assert moment[3] in (0, 2.0**-16)


@pytest.mark.parametrize("kind", [HAdam, RMSProp])
def test_an_optimizer_has_them_for_every_parameter(kind):
    weights = [torch.ones(5, requires_grad=True), torch.ones(2, 3, requires_grad=True)]
    optimizer = kind(weights, lr=0.1, stochastic_moments=True)
    plain = kind([weight.detach().clone().requires_grad_() for weight in weights], lr=0.1)
    for own in (weights, plain.param_groups[0]["params"]):
        for weight in own:
            weight.grad = torch.full_like(weight, 0.5)
    for one in (optimizer, plain):
        for _ in range(3):
            one.step()
    for weight, other in zip(weights, plain.param_groups[0]["params"], strict=True):
        assert torch.allclose(weight, other, rtol=1e-6)
    with roundoff.simulate("e5m2", seed=0):
        optimizer.step()
    for state in optimizer.state.values():
        for name in ("moment", "second"):
            if name in state:
                assert torch.equal(state[name], roundoff.round(state[name], "e5m2"))


@settings(max_examples=2)
@given(problems(algorithm="sac"))
def test_in_float64_agents_are_the_same(problem):
    check_same_in_float64(problem, MOMENTS)


@settings(max_examples=1)
@given(problems(largest_rate=1e-3))
def test_differences_halve_with_each_bit(problem):
    check_halving(problem, MOMENTS)
