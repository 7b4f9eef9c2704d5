"""Stochastic targets: bit for bit what they say, right on average, the same compiled, and a critic that arrives."""

import math
from fractions import Fraction

import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_agents import THE_SIX, check_halving, check_same_in_float64, problems
from runs import check_together, outcome, stopped_and_continued

import roundoff
from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.categorical import projected
from roundoff.agents.algorithms.stochastic_targets import (
    stochastic_projection,
    stochastic_returns,
    stochastic_target,
)
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.experience.replay import Replay
from roundoff.formats import Format, RandomBits

FORMATS = ["e5m2", "e5m3", "e4m3", "e5m10", "e8m7", "e8m20"]
few_bits = st.sampled_from(FORMATS)
DISCOUNT = float(torch.tensor(0.99))  # as kernels have it
SEED = 5


def numbers(format, shape, seed=0, scale=1.0):
    drawn = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    return roundoff.round(drawn.to(Format.parse(format).carrier), format)


def rounded(exact, format, number=0):
    random = RandomBits(SEED, number)
    return roundoff.round(exact, format, rounding="stochastic", random=random)


def as_tensor(fractions):
    return torch.tensor([float(x) for x in fractions], dtype=torch.float64)


@settings(max_examples=20)
@given(few_bits, st.integers(0, 1000))
def test_the_target_is_one_operation_rounded_once(format, seed):
    r, q, log_prob = (numbers(format, (20, 1), seed + k, scale=8.0) for k in range(3))
    d = (torch.arange(20).view(-1, 1) % 4 > 0).to(r.dtype)
    alpha = numbers(format, (1,), seed + 3).abs()
    with roundoff.simulate(format, seed=SEED):
        plain = stochastic_target(r, d, q, DISCOUNT)
        soft = stochastic_target(r, d, q, DISCOUNT, alpha, log_prob)
        mean = stochastic_target(r, d, q, DISCOUNT, alpha, log_prob, copies=2)
        scaled = stochastic_target(r, d, q, DISCOUNT, alpha, log_prob, reward_scale=0.25)
    exact = [
        [Fraction(a) + Fraction(b) * Fraction(DISCOUNT) * (Fraction(c) - Fraction(weight * alpha.item()) * Fraction(e))
         for weight in (0.0, 1.0, 0.25)]
        for a, b, c, e in zip(*(x.flatten().tolist() for x in (r, d, q, log_prob)), strict=True)
    ]  # fmt: skip
    hard, entropic, less_entropic = (as_tensor(one) for one in zip(*exact, strict=True))
    assert torch.equal(plain.double().flatten(), rounded(hard, format, 0))
    assert torch.equal(soft.double().flatten(), rounded(entropic, format, 1))
    over = as_tensor([(one[1] + other[1]) / 2 for one, other in zip(exact[:10], exact[10:], strict=True)])
    assert torch.equal(mean.double().flatten(), rounded(over, format, 2).repeat(2))
    assert torch.equal(scaled.double().flatten(), rounded(less_entropic, format, 3))


@pytest.mark.parametrize("format", ["e5m2", "e4m3", "e5m10"])
def test_the_target_is_right_on_average(format):
    """40 000 targets of each of 12 problems: at 5 standard errors, one test in 100 000 would fail by chance."""
    r, q = numbers(format, (12, 1), 1), numbers(format, (12, 1), 2, scale=20.0)
    exact = r.double() + DISCOUNT * q.double()
    with roundoff.simulate(format, seed=0):
        drawn = stochastic_target(*(x.expand(12, 40_000).clone() for x in (r, torch.ones_like(r), q)), DISCOUNT)
    error = drawn.double() - exact
    assert (error.mean(1).abs() <= 5 * error.std(1) / 200 + 1e-12).all()
    assert (error.abs() < 2.0 ** -Format.parse(format).significand_bits * exact.abs()).all()


@settings(max_examples=15)
@given(few_bits, st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_each_return_is_one_operation_of_those_that_follow(format, seed, lam):
    steps, environments = 5, 3
    shape = (steps, environments)
    r, v, following = (numbers(format, shape, seed + k) for k in range(3))
    d = (torch.randint(4, shape, generator=torch.Generator().manual_seed(seed)) > 0).to(r.dtype)
    last = (d == 0) | (numbers(format, shape, seed + 4) > 1)
    with roundoff.simulate(format, seed=SEED):
        advantages, returns = stochastic_returns(r, d, v, following, last, DISCOUNT, lam)
    sums, after = [], None
    for number, t in enumerate(reversed(range(steps))):
        exact = r[t].double() + d[t].double() * DISCOUNT * following[t].double()
        if after is not None:
            exact = exact + (d[t].double() * DISCOUNT * lam).masked_fill(last[t], 0.0) * after.double()
        sums.append(exact)
        after = rounded(exact - v[t].double(), format, number)
        assert torch.equal(advantages[t].double(), after)
    assert torch.equal(returns.double(), rounded(torch.stack(sums[::-1]), format, steps))


@pytest.mark.parametrize("format", ["e5m2", "e4m3", "e5m10"])
def test_a_distribution_keeps_its_mass_and_its_mean_on_average(format):
    atoms = roundoff.round(torch.linspace(-8, 8, 9), format)  # which are numbers of all of these formats
    p = roundoff.round(torch.softmax(torch.randn(1, 9, generator=torch.Generator().manual_seed(0)), 1), format)
    r, d = torch.tensor([[0.0625]]), torch.ones(1, 1)
    exact = projected(p.double(), r.double(), d.double(), atoms.double(), DISCOUNT, (-8.0, 8.0))
    many = [x.expand(20_000, -1).clone() for x in (p, r, d)]
    with roundoff.simulate(format, seed=0):
        drawn = stochastic_projection(*many, atoms, DISCOUNT, (-8.0, 8.0)).double()
        nearest = projected(p, r, d, atoms, DISCOUNT, (-8.0, 8.0)).double()
    error = drawn - exact
    assert (error.mean(0).abs() <= 5 * error.std(0) / math.sqrt(20_000) + 1e-9).all()
    if format != "e5m10":  # there is a loss that this makes good
        assert ((nearest - exact).abs() > 5 * error.mean(0).abs()).any()


def test_what_is_not_finite_and_what_is_too_large():
    r = torch.tensor([math.nan, 1.0, 1.0, 448.0, 1.0])
    v = torch.tensor([1.0, math.inf, math.nan, 57344.0, math.inf])
    d = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    with roundoff.simulate("e5m2", seed=0):
        found = stochastic_target(r, d, v, 1.0)
    assert found[[0, 2, 4]].isnan().all()  # 0 times infinity, as without the fix
    assert found[1] == math.inf
    assert found[3] in (57344, math.inf)


def test_a_value_arrives_that_nearest_rounding_leaves_halfway():
    """V <- 1 + 0.99 V, in as many bits as bfloat16 has: 75 of 100, as bf16 autocast gives it; and in three bits."""
    one, averaged = torch.ones(2000), {}
    for m in (3, 7):
        with roundoff.simulate(f"e8m{m}", seed=0) as simulation:
            v = torch.zeros(2000)
            for simulation.step in range(1500):
                v = stochastic_target(one, one, v, 0.99)
            sticks = torch.zeros(1)
            for _ in range(1500):
                sticks = torch.addcmul(one[:1], one[:1], sticks, value=0.99)
        averaged[m] = sticks.item(), v.double().mean().item(), v.double().std().item()
    assert averaged[7][0] == 75
    assert averaged[3][0] == 16
    for m, (_, mean, deviation) in averaged.items():
        # By itself the recursion multiplies its noise by 1 / (1 - g^2), over which 2000 of them are the mean.
        assert abs(mean - 100) <= 5 * deviation / math.sqrt(2000), m


# Statement 1

TARGETS = (*THE_SIX, "stochastic_targets")


@pytest.mark.parametrize("algorithm", ["sac", "d4pg"])
@settings(max_examples=2)
@given(data=st.data())
def test_in_float64_agents_are_the_same(algorithm, data):
    problem = data.draw(problems(algorithm=algorithm))
    check_same_in_float64(problem, TARGETS)


@settings(max_examples=1)
@given(problems(largest_rate=1e-3))
def test_differences_halve_with_each_bit(problem):
    check_halving(problem, TARGETS)


# In runs

TINY = {
    "task": "gym:Goal-v0", "hidden_units": 16, "batch_size": 16, "steps": 80, "eval_every": 40, "eval_episodes": 1,
    "checkpoint_every": 25, "seed_steps": 20, "fixes": ["all", "stochastic_compensation", "stochastic_targets"],
}  # fmt: skip


def test_interrupted_or_in_a_population_it_leaves_the_same_bytes(tmp_path, uncompiled):
    keys = {**TINY, "algorithm": "d4pg", "atoms": 11, "v_min": -5.0, "v_max": 25.0, "target_every": 1, "tau": 0.1}
    configs = [TrainConfig(**keys, format="e5m3", seed=seed) for seed in range(2)]
    check_together(configs, tmp_path)
    stopped_and_continued(configs[0], tmp_path / "stopped", at=55)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "alone0")


def test_a_population_is_of_one_format_and_without_a_format_nothing_is_drawn():
    from roundoff.agents.algorithms.arithmetic import simulation_of
    from roundoff.agents.programs.population import shared_kind

    kinds = {shared_kind(TrainConfig(**{**TINY, "algorithm": "td3", "last_hidden_units": 16, "format": name}))
             for name in ("e5m3", "e4m3")}  # fmt: skip
    assert len(kinds) == 2
    assert simulation_of(TrainConfig(**TINY, format="fp32")) is None


@pytest.mark.slow
def test_an_agent_whose_value_is_the_same_everywhere_gets_further():
    """A reward of 1 at every step, discount 0.98, in E4M3: rounded to the nearest, values stop at 16."""
    found = {}
    for name in ("all", "stochastic_targets"):
        fixes = ["all", "stochastic_compensation", *([name] if name != "all" else [])]
        config = TrainConfig(
            algorithm="td3", format="e4m3", fixes=fixes, hidden_units=32, last_hidden_units=32, batch_size=32, lr=5e-3,
            tau=0.05, policy_delay=1, discount=0.98,
        )  # fmt: skip
        agent = TD3(4, 1, config, torch.device("cpu"))
        replay = Replay(1, 4, 1, dtype=agent.dtype, device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        for _ in range(900):
            rows = torch.randn(32, replay.rows.shape[1], generator=generator)
            rows[:, 4:5].tanh_()
            rows[:, -2:] = 1
            metrics = agent.update(replay.as_batch(roundoff.round(rows, "e4m3")))
        found[name] = metrics["q"].double().mean().item()
    assert found["all"] == 16
    assert found["stochastic_targets"] > 19
