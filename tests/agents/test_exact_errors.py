"""Exact errors: the error of a critic as one operation, rounded once; and nothing else in exact arithmetic."""

from fractions import Fraction
from types import SimpleNamespace

import odd_goal  # noqa: F401  registers the task
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_agents import THE_SIX, check_halving, check_same_in_float64, problems
from runs import check_together

import roundoff
from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.a2c.agent import A2C
from roundoff.agents.algorithms.d4pg.agent import D4PG
from roundoff.agents.algorithms.dqn.agent import DQN
from roundoff.agents.algorithms.exact_errors import exact_error, exact_target
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.formats import Format

ERRORS = (*THE_SIX, "exact_errors")
DISCOUNT = float(torch.tensor(0.99))  # as kernels have it


@settings(max_examples=20)
@given(st.sampled_from(["e4m3", "e5m2", "e5m10", "e8m7"]), st.integers(0, 1000))
def test_the_error_is_one_operation_rounded_once(format, seed):
    generator = torch.Generator().manual_seed(seed)
    carrier = Format.parse(format).carrier
    r, v, q = (roundoff.round(torch.randn(20, 1, generator=generator).to(carrier) * 8, format) for _ in range(3))
    d = (torch.arange(20).view(-1, 1) % 4 > 0).to(carrier)
    with roundoff.simulate(format):
        error = exact_error(q.double(), exact_target(r, d, v, DISCOUNT), carrier)
    parts = zip(*(x.flatten().tolist() for x in (q, r, d, v)), strict=True)
    exact = [Fraction(a) - Fraction(b) - Fraction(c) * Fraction(DISCOUNT) * Fraction(e) for a, b, c, e in parts]
    expected = roundoff.round(torch.tensor([float(x) for x in exact], dtype=torch.float64), format)
    assert error.dtype == carrier
    assert torch.equal(error.double().flatten(), expected)


@pytest.mark.parametrize("size", [1.0, 16.0, 104.0])
def test_errors_below_an_ulp_of_the_values_have_bits_of_their_own(size):
    """The difference of rounded numbers is 0 or an ulp of the value: in e4m3 an eighth to a sixteenth of it."""
    values = torch.full((4000,), size, dtype=torch.float64)
    target = values + 0.03 * size
    with roundoff.simulate("e4m3"):
        error = exact_error(values, target, torch.float32)
    assert error.double().mean().item() == pytest.approx(-0.03 * size, rel=2**-4)
    assert roundoff.round(values, "e4m3").equal(roundoff.round(target, "e4m3"))


@settings(max_examples=2)
@given(problems())
def test_in_float64_agents_are_the_same(problem):
    check_same_in_float64(problem, ERRORS)


@settings(max_examples=1)
@given(problems(largest_rate=1e-3))
def test_differences_halve_with_each_bit(problem):
    check_halving(problem, ERRORS)


ALGORITHMS = {
    "sac": {},
    "td3": {"last_hidden_units": 16},
    "d4pg": {"atoms": 1, "n_steps": 1, "target_every": 1, "tau": 0.1},
    "dqn": {"dueling": True, "double": True},
    "ppo": {"environments": 1, "horizon": 16},
    "a2c": {"environments": 4, "horizon": 4},
}


def test_small_errors_of_large_values_reach_the_critics_of_every_algorithm():
    """Values near 104 have an ulp of 8 in e4m3; errors below 4 are 0 unless they are one operation."""
    for algorithm, keys in ALGORITHMS.items():
        for name, expected in (("exact_errors", True), ("scaled_norms", False)):
            agent = learner(algorithm, fixes=["all", name], format="e4m3", **keys)
            assert (0 < smallest_error(agent) < 4) == expected, (algorithm, name)


def learner(algorithm, **keys):
    config = TrainConfig(algorithm=algorithm, hidden_units=16, batch_size=16, discount=0.98, **keys)
    device = torch.device("cpu")
    if algorithm in ("ppo", "a2c"):
        sizes = SimpleNamespace(observation_size=3, observation_shape=(3,), action_size=2, discrete=False)
        return {"ppo": PPO, "a2c": A2C}[algorithm](sizes, config, device)
    if algorithm == "dqn":
        return DQN((3,), 2, config, device)
    return {"sac": SAC, "td3": TD3, "d4pg": D4PG}[algorithm](3, 2, config, device)


def smallest_error(agent):
    """The smallest error but 0 of values near 104, after an update by random transitions."""
    generator = torch.Generator().manual_seed(0)
    on_policy = isinstance(agent, PPO | A2C)
    targets = () if on_policy else agent.target["critic"] if isinstance(agent.target, dict) else agent.target
    network = agent.network if on_policy or isinstance(agent, DQN) else agent.networks["critic"]
    for layer in (*network.layers, *targets):
        if layer.shape in ((1,), (1, 1, 1), (2, 1, 1)):
            layer.fill_(104)  # the bias of values
    rows = torch.randn(16, agent.row_size, generator=generator)
    if on_policy:
        rows[:, -1] = 104 + 3 * torch.rand(16, generator=generator)
        rows[:, -3] = 104
    else:
        rows[:, -1] = 1
    metrics = agent.update(agent.unpacked(roundoff.round(rows, "e4m3")))
    errors = metrics["td_error"].abs()
    return float(errors[errors > 0].min()) if errors.any() else 0.0


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_alone_and_in_a_population_a_run_leaves_the_same_bytes(tmp_path, uncompiled, algorithm):
    keys = {
        "task": "gym:Goal-v0", "hidden_units": 16, "batch_size": 16, "steps": 80, "eval_every": 40, "eval_episodes": 1,
        "checkpoint_every": 25, "seed_steps": 20, "fixes": ["all", "stochastic_compensation", "exact_errors"],
        "algorithm": algorithm, "format": "e4m3", **({"last_hidden_units": 16} if algorithm == "td3" else {}),
    }  # fmt: skip
    check_together([TrainConfig(**keys, seed=seed) for seed in (0, 1)], tmp_path)


def test_configs_in_which_it_would_do_nothing_are_refused():
    exact = {"fixes": ["all", "exact_errors"]}
    with pytest.raises(
        ValueError, match="exact_errors is for the error of a value, and atoms: 51 learns distributions"
    ):
        TrainConfig(algorithm="d4pg", **exact)
    with pytest.raises(ValueError, match="exact_errors rounds no target, which stochastic_targets would round"):
        TrainConfig(fixes=["all", "exact_errors", "stochastic_targets"])
    TrainConfig(algorithm="ppo", task="gym:Goal-v0", fixes=["all", "exact_errors", "stochastic_targets"])
