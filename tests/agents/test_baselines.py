"""The paper's baselines do what docs/agents.md says, simulated and natively, and change nothing else."""

import copy
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils._pytree import tree_leaves

from roundoff.agents import BASELINES, FIXES, SAC, TrainConfig, train
from roundoff.agents.experience.replay import Replay
from roundoff.agents.optimizers.network_optimizer import NetworkOptimizer
from roundoff.analysis import read_experiment
from roundoff.analysis.tables.summary import summarize
from roundoff.formats import Format, round
from roundoff.remedies import Adam, LossScaler, MasterWeights, coerce_
from roundoff.simulate import simulate

OBSERVATION, ACTION = 5, 2
CPU = torch.device("cpu")
HALF = Format.parse("e5m10")
NAMES = [name for name in BASELINES if name != "none"]
natively = pytest.mark.parametrize("native", [False, True], ids=["simulated", "native"])


def make(format="e5m10", **keys):
    defaults = {"hidden_units": 8, "batch_size": 8, "lr": 1e-3}
    return SAC(OBSERVATION, ACTION, TrainConfig(format=format, **(defaults | keys)), CPU)


def steps(agent, updates, seed=1):
    replay = Replay(100, OBSERVATION, ACTION, dtype=agent.dtype, device=CPU)
    values = torch.randn(replay.rows.shape, generator=torch.Generator().manual_seed(0))
    values[:, -1] = 1
    replay.rows.copy_(round(values.double(), agent.config.format))
    replay.added = len(values)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        agent.update(replay.sample(agent.config.batch_size, generator))
        yield


def run(agent, updates, seed=1):
    for _ in steps(agent, updates, seed):
        pass
    return agent


def leaves(agent):
    return [x for x in tree_leaves(agent.state_dict()) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in zip(a, b, strict=True))


def optimizer_of(weights, baseline, **keys):
    """The optimizer of some weights in e5m10, simulated if they are float32."""
    config = TrainConfig(format="e5m10", native=weights.dtype is torch.float16, baseline=baseline, **keys)
    return NetworkOptimizer(weights, config, HALF, kahan=True)


# --- configuration


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_has_no_fixes_and_goes_through_json(name):
    config = TrainConfig(baseline=name)
    assert config.fixes == ()
    assert TrainConfig(**config.as_json()) == config
    assert TrainConfig(baseline=name, fixes="none") == config
    with pytest.raises(ValidationError, match=rf"baseline: {name} takes .* got fixes: hadam, softplus_fix; leave"):
        TrainConfig(baseline=name, fixes=["hadam", "softplus_fix"])


def test_without_a_baseline_the_fixes_are_as_chosen():
    assert TrainConfig().baseline == "none"
    assert TrainConfig().fixes == TrainConfig(baseline="none").fixes == FIXES
    assert TrainConfig(baseline="none", fixes=["hadam"]).fixes == ("hadam",)
    with pytest.raises(ValidationError, match=r'unknown baseline "loss_scalin" \(did you mean "loss_scaling"\?\)'):
        TrainConfig(baseline="loss_scalin")
    with pytest.raises(ValidationError, match="valid string"):
        TrainConfig(baseline=1)


# --- the parts


def test_the_loss_scale_is_that_of_torchs_amp():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.ones(5, requires_grad=True) for _ in range(2))
    adam = torch.optim.Adam([theirs], lr=1e-2)
    amp = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scaler = LossScaler(Adam([ours], lr=1e-2), initial_scale=1024.0, growth_interval=3)
    scales = []
    for step in range(40):
        gradient = torch.randn(5, generator=generator)
        if step in (2, 3, 17, 18):
            gradient[step % 5] = (math.inf, -math.inf, math.nan)[step % 3]
        before, finite = ours.detach().clone(), bool(gradient.isfinite().all())
        assert scaler.scale == amp.scale(torch.tensor(1.0)).item()
        ours.grad, theirs.grad = gradient * scaler.scale, gradient * scaler.scale
        assert scaler.step() == finite
        amp.step(adam)
        amp.update()
        assert torch.equal(ours, before) != finite  # a step is skipped whole
        assert torch.allclose(ours, theirs, atol=1e-6)
        scales.append(scaler.scale)
    assert scales[1:6] == [1024, 512, 256, 256, 256]
    assert max(scales) > 1024


def test_a_loss_scale_does_not_become_zero():
    weight = torch.ones(1, requires_grad=True)
    scaler = LossScaler(Adam([weight]), initial_scale=1.0)
    for _ in range(100):
        weight.grad = torch.tensor([math.nan])
        scaler.step()
    assert scaler.scale == 2.0**-64


def test_a_loss_scale_counts_the_largest_number_of_a_saturating_format_as_infinite():
    weight = torch.ones(1, requires_grad=True)
    scaler = LossScaler(Adam([weight]), initial_scale=4.0, largest=1000.0)
    weight.grad = torch.tensor([-1000.0])
    assert not scaler.step()
    assert scaler.scale == 2


@natively
def test_unscaled_gradients_underflow_in_half_and_not_in_master_weights(native):
    for baseline, moment in (("loss_scaling", 0.0), ("master_weights", 1e-10)):
        weights = torch.ones(3, dtype=torch.float16 if native else torch.float32)
        optimizer = optimizer_of(weights, baseline)
        assert optimizer.scale == 1e4
        with simulate("fp32" if native else "e5m10"):
            weights.grad = round(torch.full((3,), 1e-9 * optimizer.scale), HALF).to(weights.dtype)
            assert (weights.grad > 0).all()
            optimizer.step()
        state = optimizer.optimizer.state[optimizer.parameters]
        assert state["moment"].tolist() == pytest.approx([moment] * 3, rel=1e-3)


@natively
def test_master_weights_keep_changes_that_half_loses(native):
    moved = {}
    for baseline in ("master_weights", "loss_scaling"):
        weights = torch.ones(2, dtype=torch.float16 if native else torch.float32)
        optimizer = optimizer_of(weights, baseline, lr=1e-4)
        seen = []
        with simulate("fp32" if native else "e5m10"):
            for _ in range(20):
                weights.grad = torch.full_like(weights, -1000.0)  # the step is lr, a tenth of an ulp of 1
                optimizer.step()
                seen.append(weights[0].item())
        moved[baseline] = seen
        if baseline == "master_weights":
            assert optimizer.parameters.dtype == torch.float32
            assert optimizer.parameters.tolist() == pytest.approx([1.002] * 2, abs=1e-6)
    assert set(moved["loss_scaling"]) == {1.0}
    assert moved["master_weights"][3:6] == [1.0, 1 + 2**-10, 1 + 2**-10]  # half an ulp is passed at the fifth step
    assert moved["master_weights"][-1] == 1 + 2 * 2**-10


@pytest.mark.parametrize("policy", [{}, "storage", {"rounding": "stochastic", "granularity": "primitive"}])
def test_everything_but_the_update_is_of_the_format_with_master_weights(policy):
    agent = run(make(baseline="master_weights", policy=policy), 12)
    low = agent.weights()
    masters = {
        "actor": agent.optimizers["actor"].parameters,
        "critic": agent.optimizers["critic"].parameters,
        "log_temperature": agent.optimizers["temperature"].parameters,
        "target": agent.averages["target"].state_dict()["master"],
    }
    for name, master in masters.items():
        assert torch.equal(low[name], round(master, HALF)), name
        assert not torch.equal(low[name], master), name
    buffers = agent.optimizers["critic"].optimizer.state[masters["critic"]]
    assert not torch.equal(buffers["moment"], round(buffers["moment"], HALF))
    if policy == {}:
        assert torch.equal(agent.critic.flat.grad, round(agent.critic.flat.grad, HALF))
        assert agent.critic.flat.grad.abs().max() > 0


@natively
def test_the_average_in_full_precision_follows_the_master_weights(native):
    agent = run(make(native=native, baseline="master_weights", tau=1.0), 2)
    master = agent.averages["target"].state_dict()["master"]
    assert torch.equal(master, agent.optimizers["critic"].parameters)
    assert torch.equal(agent.weights()["target"], agent.critic.flat)


def test_master_weights_are_as_wide_as_the_carrier():
    agent = run(make("e5m20", baseline="master_weights"), 2)
    assert agent.optimizers["critic"].parameters.dtype == torch.float64
    assert torch.equal(agent.critic.flat, round(agent.optimizers["critic"].parameters, "e5m20"))


def test_full_precision_ends_with_the_update():
    low = torch.ones(1)
    with simulate("e5m3"):
        masters = MasterWeights(low, Format.parse("e5m3"))
        with masters.updating():
            masters.weights.add_(0.3)
        assert masters.weights.item() == pytest.approx(1.3)
        assert low.item() == 1.25
        assert (torch.ones(1) + 0.3).item() == 1.25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_coercion_makes_finite_what_is_not(dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, largest, 1e-7], dtype=dtype)
    coerced = x.clone()
    coerce_([coerced], largest)
    assert coerced[:3].tolist() == [0, largest, -largest]
    assert torch.equal(coerced[3:], x[3:])
    assert torch.signbit(coerced[3])


@natively
def test_coercion_keeps_everything_finite_where_the_naive_agent_is_nan(native):
    naive, coerced = (make(native=native, baseline=name) for name in ("naive", "coercion"))
    for _ in zip(steps(naive, 6), steps(coerced, 6), strict=True):
        assert all(x.isfinite().all() for x in leaves(coerced))
    assert coerced.critic.flat.abs().max() == HALF.max  # 0.1 / 0 was an infinite step
    coerced.averages["target"].average.fill_(-math.inf)
    coerced.update_target()
    assert coerced.averages["target"].average.tolist() == pytest.approx([-HALF.max] * len(coerced.critic.flat))
    # Infinity minus infinity within the network: large weights of both signs.
    for agent in (naive, coerced):
        signs = torch.randn(agent.actor.flat.shape, generator=torch.Generator().manual_seed(0)).sign()
        agent.actor.flat.copy_(HALF.max * signs)
    observations = torch.full((3, OBSERVATION), 100.0, dtype=naive.dtype)
    assert not naive.act(observations, deterministic=True).isfinite().all()
    for deterministic in (False, True):
        actions = coerced.act(observations, deterministic=deterministic)
        assert actions.isfinite().all()
        assert actions.abs().max() <= 1


@natively
def test_coercion_of_gradients_comes_before_the_optimizer(native):
    weights = torch.zeros(3, dtype=torch.float16 if native else torch.float32)
    optimizer = optimizer_of(weights, "coercion", adam_eps=1.0)
    with simulate("fp32" if native else "e5m10"):
        weights.grad = torch.tensor([math.nan, math.inf, -math.inf], dtype=weights.dtype)
        optimizer.step()
    moment = optimizer.optimizer.state[weights]["moment"]
    assert moment.tolist() == pytest.approx([0, 6550.4, -6550.4], rel=1e-3)


# --- the agents: where precision is high, all do the same


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("naive", {}),
        ("coercion", {}),
        ("loss_scaling", {"initial_loss_scale": 2.0**13}),
        ("amp", {"initial_loss_scale": 3.0}),  # has its own
        ("master_weights", {"initial_loss_scale": 2.0**13}),
    ],
)
def test_in_full_precision_a_baseline_is_the_naive_agent(name, keys):
    agent, naive = run(make("fp64", baseline=name, **keys), 20), run(make("fp64", fixes="none"), 20)
    assert equal(list(agent.weights().values()), list(naive.weights().values()))


def test_eps_is_ten_times_as_large():
    agent, naive = run(make("fp64", baseline="eps"), 5), run(make("fp64", fixes="none", adam_eps=1e-7), 5)
    assert equal(leaves(agent), leaves(naive))
    assert not equal(leaves(agent), leaves(run(make("fp64", fixes="none"), 5)))


def test_what_amp_and_loss_scaling_begin_with():
    for name, scale, interval in (
        ("amp", 2.0**16, 2000),
        ("loss_scaling", 1e4, 10_000),
        ("master_weights", 1e4, 10_000),
    ):
        scaler = make(baseline=name).optimizers["critic"].scaler
        assert isinstance(scaler, LossScaler)
        assert (scaler.scale, scaler.growth_interval, scaler.largest) == (scale, interval, 65504)


@natively
@pytest.mark.parametrize("name", NAMES)
def test_a_restored_agent_goes_on_as_if_never_stopped(name, native):
    agent = run(make(native=native, baseline=name), 3)
    assert {x.dtype for x in agent.weights().values()} == {torch.float16 if native else torch.float32}
    state = copy.deepcopy(agent.state_dict())
    again = make(native=native, baseline=name, seed=5)
    again.load_state_dict(state)
    assert equal(leaves(run(agent, 3, seed=2)), leaves(run(again, 3, seed=2)))


def test_runs_show_their_baseline(tmp_path):
    keys = {"steps": 400, "action_repeat": 20, "hidden_units": 8, "batch_size": 8, "seed_steps": 5, "eval_episodes": 1}
    results = {
        name: train(TrainConfig(format="e5m10", baseline=name, eval_every=400, **keys), tmp_path / name)
        for name in ("naive", "master_weights", "coercion")
    }
    assert results["naive"].status == "crashed"
    assert results["master_weights"].status == results["coercion"].status == "done"
    table = summarize(read_experiment(tmp_path)).set_index("baseline")
    assert set(table.index) == set(results)
    assert np.allclose(table["mean"], [results[name].return_mean for name in table.index])
