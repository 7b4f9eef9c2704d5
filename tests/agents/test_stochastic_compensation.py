"""Stochastic compensation: bit for bit what it says, right on average, no lag, and the same compiled and natively."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_agents import THE_SIX, check_halving, check_same_in_float64, problems
from sac_pairs import RESTLESS, pair
from sac_pairs import differences as different

import roundoff
from roundoff.agents import FIXES, TrainConfig
from roundoff.agents.algorithms.arithmetic import simulation_of
from roundoff.agents.config.fixes import parse_fixes
from roundoff.agents.optimizers.stochastic_compensation import step_towards, stochastic_kahan_add_
from roundoff.agents.programs import compiled as compiled_updates
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.formats import Format, FormatError, RandomBits
from roundoff.remedies import HAdam, KahanEMA, kahan_add_

FORMATS = ["e5m2", "e5m3", "e4m3", "e5m10", "e8m7", "e8m20"]
STOCHASTIC = (*THE_SIX, "stochastic_compensation")
MIXED = {
    "rules": [
        {"role": "averages", "format": "e5m7"},
        {"operation": ["mul", "add", "hypot"], "role": "optimizer", "rounding": "stochastic"},
    ]
}
few_bits = st.sampled_from(FORMATS)


def numbers(format, count=24, seed=0, scale=1.0):
    drawn = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    return roundoff.round(drawn.to(Format.parse(format).carrier), format)


def rounded(exact, format, step):
    """Fractions, rounded with the random bits of the first rounding of a step."""
    wide = torch.tensor([float(x) for x in exact], dtype=torch.float64)
    return roundoff.round(wide, format, rounding="stochastic", random=RandomBits(3, step << 32))


@settings(max_examples=30)
@given(few_bits, st.integers(0, 1000), st.floats(-9, 1))
def test_the_increment_is_one_operation_rounded_once(format, step, exponent):
    total, lost, values = numbers(format), numbers(format, seed=1, scale=0.01), numbers(format, seed=2)
    factor = float(torch.tensor(2.0**exponent / 3))
    y = [Fraction(v) * Fraction(factor) - Fraction(c) for v, c in zip(values.tolist(), lost.tolist(), strict=True)]
    increment = rounded(y, format, step)
    expected_total = roundoff.round(total.double() + increment, format)
    expected_lost = roundoff.round(roundoff.round(expected_total - total, format) - increment, format)
    with roundoff.simulate(format, seed=3) as simulation:
        simulation.step = step
        stochastic_kahan_add_(total, lost, values, factor)
    assert torch.equal(total.double(), expected_total)
    assert torch.equal(lost.double(), expected_lost)


@settings(max_examples=30)
@given(few_bits, st.integers(0, 1000), st.sampled_from([1.0, 4.0, 16.0]))
def test_the_step_of_an_average_is_one_operation_rounded_once(format, step, scale):
    average, lost, source = numbers(format, scale=scale), numbers(format, seed=1, scale=0.01), numbers(format, seed=2)
    tau = float(torch.tensor(0.005))
    exact = [
        Fraction(tau) * (Fraction(scale) * Fraction(s) - Fraction(a)) - Fraction(c)
        for a, c, s in zip(average.tolist(), lost.tolist(), source.tolist(), strict=True)
    ]
    with roundoff.simulate(format, seed=3) as simulation:
        simulation.step = step
        found = step_towards(average, lost, source, scale, -tau)
    assert torch.equal(found.double(), rounded(exact, format, step))


@given(st.floats(-1e3, 1e3), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(-2, 2))
def test_without_rounding_it_is_kahans_sum(start, values, factor):
    ours, theirs = (torch.tensor([start], dtype=torch.float64) for _ in range(2))
    lost, other = torch.zeros_like(ours), torch.zeros_like(theirs)
    for value in values:
        stochastic_kahan_add_(ours, lost, torch.tensor([value], dtype=torch.float64), factor)
        kahan_add_(theirs, other, torch.tensor([value * factor], dtype=torch.float64))
    assert ours.item() == theirs.item()


@pytest.mark.parametrize("format", ["e5m2", "e5m3", "e4m3"])
@pytest.mark.parametrize("relative", [1e-2, 1e-3, 1e-4])
def test_what_is_added_arrives_on_average(format, relative):
    """What Kahan's sum absorbs arrives, too. 20 000 sums, each of 60 additions: the test is at 5 standard errors."""
    arrived = {}
    for add in (kahan_add_, stochastic_kahan_add_):
        total = roundoff.round(torch.linspace(1, 2, 20_000), format)
        values = total * relative  # no numbers of the format: the factor below makes them of what is
        begin, lost = total.clone(), torch.zeros_like(total)
        with roundoff.simulate(format, seed=0) as simulation:
            for simulation.step in range(60):
                if add is kahan_add_:
                    add(total, lost, values)
                else:
                    add(total, lost, begin, relative)
        arrived[add] = (total.double() - lost.double() - begin.double()) / (60 * values.double())
    share = arrived[stochastic_kahan_add_]
    assert abs(share.mean().item() - 1) < 5 * share.std().item() / math.sqrt(len(share)) + 1e-6
    if relative <= 1e-3:  # below 2^-(2 m + 2), which is 2^-8 and 2^-6
        assert arrived[kahan_add_].mean() < 0.5


@pytest.mark.parametrize("format", ["e5m2", "e5m3", "e4m3"])
def test_an_average_arrives_within_the_rounding_of_its_format(format):
    generator = torch.Generator().manual_seed(0)
    source, start = torch.randn(2, 2000, generator=generator)
    errors = []
    for stochastic in (False, True):
        average = roundoff.round(start, format)
        with roundoff.simulate(format, seed=0) as simulation:
            followed = source * 1.0
            ema = KahanEMA(average, 0.01, largest=Format.parse(format).max, stochastic=stochastic)
            for simulation.step in range(600):
                ema.update_(followed)
        errors.append(float((average - followed).abs().mean() / followed.abs().mean()))
    assert errors[0] > 0.15  # lag
    assert errors[1] < 2.0 ** -(Format.parse(format).significand_bits + 2)


def test_tensors_in_half_precision_take_the_random_bits_of_a_simulation_that_rounds_nothing():
    total = torch.full((4000,), -2.296875, dtype=torch.bfloat16)
    lost, ones = torch.zeros_like(total), torch.ones_like(total)
    with pytest.raises(FormatError, match="random"):
        stochastic_kahan_add_(total, lost, ones)
    with roundoff.simulate("fp32", seed=0) as simulation:
        for simulation.step in range(100):
            stochastic_kahan_add_(total, lost, ones, -(2.0**-20))
    moved = (total.double() - lost.double() + 2.296875) / (-100 * 2.0**-20)
    assert moved.mean().item() == pytest.approx(1, abs=0.01)
    parameter = torch.full((4000,), -2.3, dtype=torch.bfloat16, requires_grad=True)
    optimizer = HAdam([parameter], lr=2.0**-20, eps=1e-3, kahan=True, stochastic=True)
    with roundoff.simulate("fp32", seed=0) as simulation:
        for simulation.step in range(10):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    lost = optimizer.state[parameter]["compensation"].double()
    assert (parameter.detach().double() - lost + 2.296875).mean().item() == pytest.approx(-10 * 2.0**-20, rel=0.1)


def test_nan_infinity_and_overflow():
    total = torch.tensor([1.0, 1.0, 448.0, 0.0, -0.0])
    lost = torch.zeros(5)
    with roundoff.simulate("e5m2", seed=0):
        stochastic_kahan_add_(total, lost, torch.tensor([math.nan, math.inf, 57344.0, 2.0**-40, 0.0]))
    assert total[0].isnan()
    assert total[1].isinf()
    assert total[2] == 57344
    assert total[3] in (0, 2.0**-16)  # the smallest number, or nothing
    assert total[4] == 0
    assert lost[1].isnan()


# Statement 1


@settings(max_examples=4)
@given(problems(algorithm="sac"))
def test_in_float64_agents_are_the_same(problem):
    check_same_in_float64(problem, STOCHASTIC)


@settings(max_examples=1)
@given(problems(largest_rate=1e-3))
def test_differences_halve_with_each_bit(problem):
    check_halving(problem, STOCHASTIC)


# In agents


@pytest.mark.parametrize(
    "keys",
    [
        {"format": "e5m3", **RESTLESS},
        pytest.param({"format": "e5m3", "policy": {"rounding": "stochastic"}, **RESTLESS}, marks=pytest.mark.slow),
        pytest.param({"format": "e5m2", "policy": MIXED, **RESTLESS}, marks=pytest.mark.slow),
        {"format": "e4m3", "fixes": ["all", "stochastic_targets", "stochastic_moments"]},
    ],
    ids=["nearest", "stochastic", "by place", "targets and moments"],
)
def test_programs_have_the_bits_of_the_eager_agent(keys, uncompiled, monkeypatch):
    monkeypatch.setattr(compiled_updates, "_PROGRAMS", {})
    eager, mine, replay, generator = pair(**{"fixes": list(STOCHASTIC), **keys})
    mine.compiled = CompiledUpdates(mine)
    assert mine.compiled.reason is None
    for update in range(24):
        batch = replay.sample(8, generator)
        if update == 16:
            batch.rows[0, -2] = math.inf
        for agent in (eager, mine):
            agent.update(batch)
    assert different(eager, mine) == []


def test_all_networks_are_compensated_and_what_moves_moves():
    moved = {}
    for fixes in (FIXES, STOCHASTIC):
        agent, _, replay, generator = pair(format="e5m3", fixes=list(fixes), lr=1e-4)
        before = agent.actor.flat.clone()
        for _ in range(30):
            agent.update(replay.sample(8, generator))
        moved[fixes] = (agent.actor.flat != before).double().mean().item()
        state = agent.optimizers["actor"].optimizer.state[agent.actor.flat]
        assert ("compensation" in state) == (fixes == STOCHASTIC)
    assert moved[FIXES] < 0.2 < moved[STOCHASTIC]


def test_native_agents_draw_random_bits_from_the_seed():
    found = []
    for seed in (0, 0, 1):
        agent, _, replay, generator = pair(format="e5m10", native=True, fixes=list(STOCHASTIC))
        agent.simulation = simulation_of(agent.config.model_copy(update={"seed": seed}))
        for _ in range(5):
            agent.update(replay.sample(8, generator))
        found.append(agent.averages["target"].average.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("fixes", "parsed"),
    [
        (["all", "stochastic_compensation"], STOCHASTIC),
        (["stochastic_compensation", *reversed(FIXES)], STOCHASTIC),
        (["all", "stochastic_compensation_of_averages", "stochastic_compensation_of_weights"], STOCHASTIC),
        (
            ["stochastic_compensation_of_weights", "kahan_gradients"],
            ("kahan_gradients", "stochastic_compensation_of_weights"),
        ),
    ],
)
def test_equal_selections_are_equal(fixes, parsed):
    assert parse_fixes(fixes) == parsed


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fixes": ["stochastic_compensation"]}, "of weights changes how kahan_gradients rounds, which is not there"),
        ({"fixes": ["kahan_gradients", "stochastic_compensation"]}, "name only stochastic_compensation_of_weights"),
        (
            {"fixes": ["all", "stochastic_compensation", "stochastic_compensation_of_weights"]},
            'is part of "stochastic_compensation", which is also named',
        ),
        ({"fixes": ["all", "hadam"]}, "is named twice"),
        ({"fixes": ["all", "stochastic_compensations"]}, "did you mean"),
        (
            {"fixes": ["all", "stochastic_compensation"], "format": "e5m10", "storage": {"targets": "e4m3"}},
            "storage.targets replaces kahan_momentum",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**keys)
