"""Roles that a program says itself: averages of weights, and targets of values."""

import pytest
import torch

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.agents import KahanEMA, PlainEMA
from roundoff.formats import FormatError


def test_a_rule_reaches_what_is_said_and_nothing_else():
    third = torch.tensor([1 / 3])
    with simulate(Policy("fp32").with_rules(Rule(role="averages", format="e5m2"))) as simulation:
        plain = third + 0
        with roundoff.in_role("averages"):
            average = third + 0
            with roundoff.in_role("targets"):  # the innermost one counts
                target = third + 0
            with torch.no_grad():
                again = third + 0
        after = third + 0
    assert average.item() == again.item() == 0.3125
    assert plain.item() == target.item() == after.item() == third.item()
    assert {plan.role for plan in simulation.plans()} == {"forward", "averages", "targets"}


@pytest.mark.parametrize("clip", [torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_])
def test_clipping_gradients_is_part_of_the_optimizer(clip):
    """Clipping has its role by whatever name it was imported, and for as long as a simulation is entered."""

    def clipped(*rules):
        weight = torch.nn.Parameter(torch.ones(3))
        weight.grad = torch.tensor([1.1, 2.3, 3.7])
        with simulate(Policy("e5m2").with_rules(*rules)) as simulation:
            clip([weight], 1.3)
        return weight.grad, {plan.role for plan in simulation.plans()}

    rounded, roles = clipped(Rule(role="backward", format="fp32"))
    exact, _ = clipped(Rule(role="optimizer", format="fp32"))
    assert roles == {"optimizer"}
    assert torch.equal(rounded, roundoff.round(rounded, "e5m2"))
    assert not torch.equal(exact, roundoff.round(exact, "e5m2"))
    names = clip.__code__.co_freevars
    plain = clip.__closure__[names.index("func")].cell_contents
    assert plain.__module__ == "torch.nn.utils.clip_grad"
    assert not hasattr(plain, "__wrapped__")


def test_inside_of_an_optimizers_step_what_is_said_counts():
    weight = torch.nn.Parameter(torch.ones(2))
    copy = torch.zeros(2)

    class Averaging(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            with roundoff.in_role("averages"):
                copy.lerp_(weight, 0.5)

    with simulate("e5m10", observe=True) as simulation:
        optimizer = Averaging([weight], lr=0.5)
        weight.sum().backward()
        optimizer.step()
    roles = simulation.report().table.set_index("operation")["role"]
    assert roles["lerp_"] == "averages"
    assert "optimizer" in set(roles)


@pytest.mark.parametrize("kind", [KahanEMA, PlainEMA])
def test_moving_averages_have_their_role_wherever_they_are(kind):
    source = torch.linspace(-1, 1, 9)
    found = {}
    for role in ("forward", "averages"):
        average = kind(torch.zeros(9), tau=0.01)
        with simulate(Policy("e5m3").with_rules(Rule(role=role, format="fp32"))):
            for _ in range(600):
                average.update_(source)
        found[role] = float((average.average - source).abs().mean() / source.abs().mean())
    # In e5m3 the compensation itself is absorbed; in fp32 nothing but 0.99^600 is missing.
    assert found["averages"] < 0.003
    assert found["forward"] > 0.05


@pytest.mark.parametrize("role", ["weights", "average", "", None])
def test_no_other_role_can_be_said(role):
    with pytest.raises(FormatError, match="role must be forward, backward, optimizer, averages, targets, got"):
        roundoff.in_role(role).__enter__()
