"""RMSProp: PyTorch's own bits in float64, the same by hypot, under scales, in half, and annealed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_steps import gradients, parameters, run

from roundoff.agents import RunError, TrainConfig
from roundoff.agents.algorithms.td3.agent import TD3
from roundoff.agents.optimizers.adam import Adam
from roundoff.agents.optimizers.compound_loss_scaling import CompoundLossScaler
from roundoff.agents.optimizers.hadam import HAdam
from roundoff.agents.optimizers.rmsprop import HRMSProp, RMSProp
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.simulate import simulate

both = pytest.mark.parametrize("optimizer", [RMSProp, HRMSProp])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    exponent=st.integers(-6, 3),
    alpha=st.sampled_from([0.0, 0.9, 0.99]),
    eps=st.sampled_from([1e-8, 1e-5, 1e-3]),
)
def test_has_the_bits_of_torchs_in_float64(seed, exponent, alpha, eps):
    steps = gradients(seed, 8, 10.0**exponent)
    ours, theirs = parameters(seed), parameters(seed)
    result = run(RMSProp(ours, lr=7e-4, alpha=alpha, eps=eps), ours, steps)
    expected = run(torch.optim.RMSprop(theirs, lr=7e-4, alpha=alpha, eps=eps), theirs, steps)
    assert torch.equal(result, expected)


@both
@pytest.mark.parametrize("kahan", [False, True])
def test_by_hypot_and_compensated_it_is_the_same_but_for_rounding(optimizer, kahan):
    steps = gradients(1, 12)
    ours, theirs = parameters(), parameters()
    result = run(optimizer(ours, lr=1e-2, alpha=0.9, eps=1e-5, kahan=kahan), ours, steps)
    expected = run(torch.optim.RMSprop(theirs, lr=1e-2, alpha=0.9, eps=1e-5), theirs, steps)
    assert torch.allclose(result, expected, rtol=1e-11, atol=1e-13)


@both
@settings(max_examples=20)
@given(exponent=st.integers(-20, 20), at=st.integers(0, 5))
def test_scaled_gradients_give_the_same_steps_also_when_the_scale_changes(optimizer, exponent, at):
    steps = gradients(3, 6)
    plain, scaled = parameters(), parameters()
    expected = run(optimizer(plain, lr=1e-2, eps=1e-2), plain, steps)
    other = optimizer(scaled, lr=1e-2, eps=1e-2)
    run(other, scaled, steps[:at])
    other.rescale_(2.0**exponent)
    assert torch.allclose(run(other, scaled, steps[at:], 2.0**exponent), expected, rtol=1e-12)


@both
def test_keeps_no_first_moment_and_goes_through_a_state_dict(optimizer):
    steps = gradients(5, 8)
    straight, interrupted = parameters(), parameters()
    expected = run(optimizer(straight, kahan=True), straight, steps)
    one = optimizer(interrupted, kahan=True)
    run(one, interrupted, steps[:4])
    assert {name for state in one.state.values() for name in state} == {"step", "second", "compensation"}
    two = optimizer(interrupted, kahan=True)
    two.load_state_dict(one.state_dict())
    assert torch.equal(run(two, interrupted, steps[4:]), expected)


def test_the_second_moment_underflows_in_half_and_hypot_repairs_it():
    moved = {}
    for optimizer in (RMSProp, HRMSProp):
        with simulate("e5m10"):
            p = torch.ones(1)
            made = optimizer([p], lr=1e-2, eps=1e-4)
            p.grad = torch.tensor([1e-3])
            made.step()
        moved[optimizer] = 1 - p.item()
    exact = 1e-2 * 1e-3 / (math.sqrt(0.01) * 1e-3 + 1e-4)
    assert moved[HRMSProp] == pytest.approx(exact, rel=0.02)
    assert moved[RMSProp] > 1.7 * exact  # v is 0, and what is left of the denominator is eps


def test_a_scaler_takes_it():
    p = torch.ones(2)
    made = HRMSProp([p], lr=1e-2, eps=1e-5)
    scaler = CompoundLossScaler(made, initial_scale=4.0, growth_interval=1)
    p.grad = torch.tensor([math.inf, 1.0])
    assert not scaler.step()
    assert scaler.scale == 2.0
    p.grad = torch.tensor([0.5, 1.0])
    assert scaler.step()
    assert scaler.scale == 4.0


@pytest.mark.parametrize("bad", [{"lr": 0}, {"alpha": 1.0}, {"eps": -1}])
def test_nonsense_is_refused(bad):
    with pytest.raises(RunError, match="needs lr > 0"):
        RMSProp(parameters(), **bad)


@pytest.mark.parametrize("optimizer", [Adam, HAdam, RMSProp])
def test_the_learning_rate_falls_linearly_to_nothing(optimizer):
    steps = gradients(2, 5)
    annealed, by_hand = parameters(), parameters()
    result = run(optimizer(annealed, lr=1e-2, anneal_over=4), annealed, steps)
    made = optimizer(by_hand, lr=1e-2)
    for i, grads in enumerate(steps):
        made.param_groups[0]["lr"] = 1e-2 * max(0.0, 1 - i / 4)
        run(made, by_hand, [grads])
    assert torch.equal(result, torch.cat([p.flatten() for p in by_hand]))


def td3(**keys):
    small = {"hidden_units": 16, "last_hidden_units": 16, "batch_size": 16}
    return TD3(
        5, 2, TrainConfig(algorithm="td3", format="e5m10", optimizer="rmsprop", **small, **keys), torch.device("cpu")
    )


def test_any_algorithm_takes_it_and_compiled_it_has_the_same_bits(uncompiled):
    eager, mine = td3(adam_beta2=0.99), td3(adam_beta2=0.99)
    assert {type(one.optimizer) for one in eager.optimizers.values()} == {HRMSProp}
    assert {type(one.optimizer) for one in td3(fixes="none").optimizers.values()} == {RMSProp}
    mine.compiled = CompiledUpdates(mine)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        batch = eager.unpacked(torch.randn(16, 14, generator=generator).half().float())
        assert eager.summarize(eager.update(batch)) == mine.summarize(mine.update(batch))
    assert mine.compiled.reason is None
    for name, values in eager.weights().items():
        assert torch.equal(values, mine.weights()[name]), name


def test_it_is_a_key_that_older_runs_have_not():
    assert "optimizer" not in TrainConfig().as_json()
    assert TrainConfig(optimizer="rmsprop").as_json()["optimizer"] == "rmsprop"
    with pytest.raises(ValueError, match="'adam' or 'rmsprop'"):
        TrainConfig(optimizer="sgd")
