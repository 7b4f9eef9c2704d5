"""Adam, hAdam and the loss scaler: equal to torch's Adam in float64, and what becomes of them in half."""

import functools
import math
import sys
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_steps import gradients, parameters, run

from roundoff.agents import RunError
from roundoff.agents.optimizers import adam, decisions
from roundoff.formats import round
from roundoff.remedies import Adam, CompoundLossScaler, HAdam, KahanEMA
from roundoff.simulate import Policy, Rule, simulate
from roundoff.simulate.dispatch import whole
from roundoff.simulate.watching import integers

HALF = "e5m10"
LARGEST = 65504.0
both = pytest.mark.parametrize("optimizer", [Adam, HAdam])


METHODS = ("add_param_group", "state_dict", "load_state_dict")


@both
@pytest.mark.parametrize("is_there", [False, True])
def test_only_where_the_compiler_is_it_is_asked_to_leave_optimizers_alone(optimizer, is_there, monkeypatch):
    """PyTorch would import it to ask."""
    asked = []
    for name in METHODS:
        method = getattr(torch.optim.Optimizer, name)

        @functools.wraps(method.__wrapped__)
        def asking(*given, name=name, method=method):
            asked.append(name)
            return method(*given)

        monkeypatch.setattr(torch.optim.Optimizer, name, asking)
    if is_there:
        import_module("torch._dynamo")
    else:
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    one, other = (optimizer(parameters(), lr=0.1) for _ in range(2))
    run(one, parameters(), [])
    other.load_state_dict(one.state_dict())
    assert asked == ([METHODS[0], METHODS[0], *METHODS[1:]] if is_there else [])


@both
@pytest.mark.parametrize("kahan", [False, True])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-6, 3), eps=st.sampled_from([1e-8, 1e-3]))
def test_equal_to_torchs_adam_in_float64(optimizer, kahan, seed, exponent, eps):
    steps = gradients(seed, 12, 10.0**exponent)
    ours, theirs = parameters(seed), parameters(seed)
    result = run(optimizer(ours, lr=1e-2, betas=(0.8, 0.99), eps=eps, kahan=kahan), ours, steps)
    expected = run(torch.optim.Adam(theirs, lr=1e-2, betas=(0.8, 0.99), eps=eps), theirs, steps)
    assert torch.allclose(result, expected, rtol=1e-11, atol=1e-13)


@both
@given(exponent=st.integers(-20, 20), at=st.integers(0, 5))
def test_scaled_gradients_give_the_same_steps_also_when_the_scale_changes(optimizer, exponent, at):
    steps = gradients(3, 6)
    plain, scaled = parameters(), parameters()
    expected = run(optimizer(plain, lr=1e-2, eps=1e-2), plain, steps)
    other = optimizer(scaled, lr=1e-2, eps=1e-2)
    run(other, scaled, steps[:at])
    other.rescale_(2.0**exponent)
    assert torch.allclose(run(other, scaled, steps[at:], 2.0**exponent), expected, rtol=1e-12)


def test_groups_and_missing_gradients():
    first, second = parameters()
    optimizer = HAdam([{"params": [first], "lr": 1.0}, {"params": [second]}], lr=0.1)
    before = first.clone(), second.clone()
    first.grad = torch.ones_like(first)
    optimizer.step()
    second.grad = torch.ones_like(second)
    first.grad = None
    optimizer.step()
    # The first step of Adam is lr in the direction of the gradient, whenever it comes.
    assert torch.allclose(first, before[0] - 1.0)
    assert torch.allclose(second, before[1] - 0.1)


@both
def test_state_goes_through_a_state_dict(optimizer):
    steps = gradients(5, 8)
    straight, interrupted = parameters(), parameters()
    expected = run(optimizer(straight, kahan=True), straight, steps)
    one = optimizer(interrupted, kahan=True)
    run(one, interrupted, steps[:4])
    two = optimizer(interrupted, kahan=True)
    two.load_state_dict(one.state_dict())
    assert torch.equal(run(two, interrupted, steps[4:]), expected)


def test_the_closure_is_called():
    p = torch.ones(1, requires_grad=True)
    optimizer = Adam([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert p.item() == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [{"lr": 0}, {"lr": math.nan}, {"betas": (1.0, 0.9)}, {"eps": -1}, {"loss_scale": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(RunError, match="needs lr > 0"):
        Adam(parameters(), **bad)


def steps_in_half(optimizer, gradient, scale=1.0, steps=3, **options):
    with simulate(HALF):
        p = torch.ones(2)
        made = optimizer([p], lr=1e-2, **options)
        if scale != 1:
            made.rescale_(scale)
        for _ in range(steps):
            p.grad = torch.tensor([gradient, 0.0]) * scale
            made.step()
    return p


@pytest.mark.parametrize("given", [{"keep": torch.round}, {"stochastic": True}])
def test_what_is_of_compensated_steps_is_refused_without_them(given):
    weights = [torch.ones(2, requires_grad=True)]
    with pytest.raises(RunError, match=f"{next(iter(given))} is for compensated steps"):
        HAdam(weights, **given)
    HAdam([{"params": weights, "kahan": True}], **given)


def test_second_moment_underflows_in_half_and_hadam_repairs_it():
    gradient = 3e-3
    assert not steps_in_half(Adam, gradient, eps=1e-4).isnan().any()
    assert steps_in_half(Adam, gradient, eps=1e-4)[0] < 0.5  # v is 0: steps are m / eps, 30 times too long
    assert steps_in_half(HAdam, gradient, eps=1e-4)[0].item() == pytest.approx(0.97, abs=4e-3)


def test_eps_underflows_in_half_and_compound_scaling_repairs_it():
    assert steps_in_half(Adam, 1.0, eps=1e-8)[1].isnan()
    assert steps_in_half(HAdam, 1.0, eps=1e-8)[1].isnan()
    repaired = steps_in_half(HAdam, 1.0, scale=2.0**13, eps=1e-8)
    assert repaired[1] == 1
    assert repaired[0].item() == pytest.approx(0.97, abs=2e-3)


def test_small_gradients_vanish_in_half_and_compound_scaling_repairs_it():
    assert not (steps_in_half(HAdam, 1e-7, eps=1e-12, eps_floor=2.0**-24)[0] < 0.99)
    assert steps_in_half(HAdam, 1e-7, scale=1e4, eps=1e-12, eps_floor=2.0**-24)[0].item() == pytest.approx(
        0.97, abs=4e-3
    )


def test_small_steps_are_absorbed_in_half_and_kahan_gradients_repair_it():
    results = {}
    for kahan in (False, True):
        with simulate(HALF):
            p = torch.full((1,), -2.3)
            optimizer = HAdam([p], lr=1e-4, eps=1e-4, kahan=kahan)
            for _ in range(300):
                p.grad = torch.ones(1)
                optimizer.step()
        results[kahan] = p.item()
    assert results[False] == pytest.approx(-2.3, abs=1e-3)
    assert results[True] == pytest.approx(-2.33, abs=4e-3)  # two ulps


def test_eps_never_falls_below_its_floor():
    assert steps_in_half(HAdam, 1.0, eps=1e-8, eps_floor=2.0**-24).isfinite().all()


def scaler_of(p, **options):
    return CompoundLossScaler(HAdam([p], lr=1e-2), **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_with_bad_gradients_is_skipped_and_halves_everything(bad):
    p = torch.ones(2)
    scaler = scaler_of(p, initial_scale=1024.0)
    p.grad = torch.tensor([1024.0, -1024.0])
    assert scaler.step()
    before, state = p.clone(), scaler.optimizer.state[p]
    moment, second = state["moment"].clone(), state["second"].clone()
    p.grad = torch.tensor([1.0, bad])
    assert not scaler.step()
    assert torch.equal(p, before)
    assert scaler.scale == scaler.optimizer.param_groups[0]["loss_scale"] == 512
    assert torch.equal(state["moment"], moment / 2)
    assert torch.equal(state["second"], second / 2)
    assert state["step"] == 1


def test_the_largest_number_counts_as_overflow():
    p = torch.ones(1)
    scaler = scaler_of(p, largest=448.0)  # fp8_e4m3fn saturates there
    for gradient, taken in ((416.0, True), (448.0, False), (-448.0, False)):
        p.grad = torch.tensor([gradient])
        assert scaler.step() == taken


def test_it_doubles_after_finite_steps_in_a_row():
    p = torch.ones(1)
    scaler = scaler_of(p, initial_scale=8.0, growth_interval=3)
    scales = []
    for bad in (False, False, True, False, False, False, False):
        p.grad = torch.tensor([math.nan if bad else 1.0])
        scaler.step()
        scales.append(scaler.scale)
    assert scales == [8, 8, 4, 4, 4, 8, 8]


@pytest.mark.parametrize(("gradient", "grows"), [(29000.0, True), (31000.0, False)])
def test_it_grows_only_if_the_buffers_stay_finite_with_headroom(gradient, grows):
    # After 50 steps m = (1 - 0.9^50) g = 0.995 g; doubled and with a tenth to spare 2.19 g <= 65504, g <= 29931.
    p = torch.ones(1)
    scaler = scaler_of(p, initial_scale=1.0, growth_interval=50, largest=LARGEST)
    p.grad = torch.tensor([gradient])
    for _ in range(50):
        assert scaler.step()
    assert scaler.scale == (2 if grows else 1)


def test_gradients_that_are_always_nan_do_not_drive_the_scale_to_zero():
    p = torch.ones(1)
    scaler = scaler_of(p)
    for _ in range(2000):
        p.grad = torch.full((1,), math.nan)
        scaler.step()
    assert 0 < scaler.scale < 1e-15
    p.grad = torch.full((1,), scaler.scale)
    assert scaler.step()
    assert p.item() == pytest.approx(0.99)


def test_scaler_state_goes_through_a_state_dict():
    p = torch.ones(1)
    one, two = scaler_of(p, growth_interval=5), scaler_of(p, growth_interval=5)
    p.grad = torch.ones(1)
    for _ in range(7):
        one.step()
    two.load_state_dict(one.state_dict())
    two.optimizer.load_state_dict(one.optimizer.state_dict())
    assert two.state_dict() == one.state_dict() == {"scale": 2e4, "finite_steps": 2}
    assert two.optimizer.param_groups[0]["loss_scale"] == 2e4


def test_a_group_added_later_has_the_scale():
    """The group has the eps of the others: its steps are the same as without any scale."""
    steps = {}
    for scale in (1.0, 1024.0):
        first, second = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        scaler = CompoundLossScaler(HAdam([first], eps=1e-2), initial_scale=scale)
        saved = scaler.optimizer.state_dict()
        scaler.optimizer.load_state_dict(saved)
        scaler.optimizer.add_param_group({"params": [second]})
        first.grad, second.grad = (torch.full((3,), 1e-3 * scale, dtype=torch.float64) for _ in range(2))
        assert scaler.step()
        assert torch.equal(first, second)
        steps[scale] = second.detach()
    torch.testing.assert_close(steps[1.0], steps[1024.0], rtol=1e-14, atol=0)


def test_groups_that_are_added_have_the_scale_that_was_loaded():
    first, second = (torch.ones(3, requires_grad=True) for _ in range(2))
    one = HAdam([first])
    one.load_state_dict(HAdam([first], loss_scale=64.0).state_dict())
    one.add_param_group({"params": [second]})
    assert [float(group["loss_scale"]) for group in one.param_groups] == [64, 64]


def test_empty_parameters_are_no_obstacle():
    empty, full = torch.zeros(0, 3, requires_grad=True), torch.ones(2, requires_grad=True)
    scaler = CompoundLossScaler(HAdam([empty, full]), growth_interval=1, largest=65504.0)
    empty.grad, full.grad = torch.zeros(0, 3), torch.ones(2)
    assert scaler.step()
    assert scaler.scale == 2e4
    average = torch.zeros(0)
    KahanEMA(average, 0.1, largest=65504.0).update_(torch.zeros(0))
    assert average.shape == (0,)


@both
@pytest.mark.parametrize("kahan", [False, True])
def test_no_number_is_read_where_it_is_not_at_hand(optimizer, kahan, monkeypatch):
    """Numbers on another device are not read: decisions are computed both ways, and the bits are the same."""
    results = []
    for number_or_tensor in (True, False):
        with simulate(HALF):
            p, average = torch.ones(3), torch.ones(3)
            made = optimizer([p], lr=1e-2, kahan=kahan, eps_floor=2.0**-24)
            scaler = CompoundLossScaler(made, initial_scale=1024.0, growth_interval=5, largest=LARGEST)
            ema = KahanEMA(average, 0.1, scale=2.0**15, largest=LARGEST)
            if not number_or_tensor:
                monkeypatch.setattr(decisions, "is_readable", lambda _: False)
                monkeypatch.setattr(adam, "is_readable", lambda _: False)
                monkeypatch.setattr(whole, "is_traced", lambda: True)  # nor does the simulation read there
                monkeypatch.setattr(integers, "in_memory", lambda _: False)
                for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
                    monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a number was read"))
            for step in range(12):
                p.grad = torch.tensor([1.0, -math.inf if step in (2, 8) else 3e4, 0.1])
                scaler.step_if_finite()
                ema.update_(p * (step + 1))
        monkeypatch.undo()
        results.append([p, average, scaler.state_dict(), *made.state[p].values(), ema.state_dict()["scale"]])
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*results, strict=True))
    assert results[0][2]["scale"] != 1024


def test_groups_of_one_optimizer_that_differ_in_annealing_have_tables_of_their_own(monkeypatch):
    results = []
    for number_or_tensor in (True, False):
        groups, overs = [torch.ones(3) for _ in range(4)], (2, 4, 6, None)
        made = Adam([{"params": [p], "anneal_over": over} for p, over in zip(groups, overs, strict=True)], lr=0.1)
        if not number_or_tensor:
            monkeypatch.setattr(decisions, "is_readable", lambda _: False)
            monkeypatch.setattr(adam, "is_readable", lambda _: False)
        for _ in range(3):
            for p in groups:
                p.grad = torch.tensor([1.0, -2.0, 0.1])
            made.step()
        results.append(torch.stack(groups))
    assert torch.equal(*results)
    assert len(torch.unique(results[0][:, 0])) == 4


def test_a_table_has_the_numbers_of_the_steps_of_its_optimizer():
    """Also where tables were made before, of which each differs in one thing."""
    changes = [{}, {"lr": 2e-3}, {"betas": (0.8, 0.95)}, {"betas": (0.9, 0.9)}, {"anneal_over": 500}]
    for optimizer in (Adam, HAdam):
        for change in changes:
            one = optimizer([torch.ones(1, requires_grad=True)], **{"lr": 1e-3, "betas": (0.9, 0.95)} | change)
            (group,) = one.param_groups
            table = one.table(group, torch.device("cpu"))
            expected = [one.numbers(group, step) for step in range(1, len(table) + 1)]
            assert torch.equal(table, torch.tensor(expected, dtype=torch.float64))
            assert one.numbers(group, len(table) + 1) == expected[-1]


def test_what_cannot_be_scaled_is_refused():
    p = torch.ones(2, requires_grad=True)
    with pytest.raises(RunError, match=r"got a torch\.optim\.adam\.Adam; use roundoff\.remedies\.HAdam"):
        CompoundLossScaler(torch.optim.Adam([p]))
    with pytest.raises(RunError, match="got initial_scale=0"):
        CompoundLossScaler(HAdam([p]), initial_scale=0)
    p.grad = torch.ones(2).to_sparse()
    with pytest.raises(RunError, match="dense gradients"):
        HAdam([p]).step()


def test_a_change_of_scale_is_computed_as_steps_are():
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.full((3,), 1.3)
    optimizer = HAdam([parameter])
    policy = Policy("e5m2", rules=(Rule(role="optimizer", format="fp32"),))
    with simulate(policy):
        optimizer.step()
    moment = optimizer.state[parameter]["moment"]
    before = moment.clone()
    assert not torch.equal(round(before, "e5m2"), before)
    with simulate(policy):
        optimizer.rescale_(2.0)
    assert torch.equal(moment, 2 * before)
