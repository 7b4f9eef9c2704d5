"""Roles that a program says itself: averages of weights, and targets of values."""

import pytest
import torch

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import FormatError
from roundoff.remedies import KahanEMA, PlainEMA


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


def test_a_step_that_an_exception_has_ended_is_over():
    """PyTorch tells nobody of it; what follows is a forward pass again, not a part of the step."""

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError

    network = torch.nn.Linear(2, 1)
    optimizer = Failing(network.parameters(), lr=0.5)
    with simulate("e5m10", observe=True) as simulation:
        with pytest.raises(ArithmeticError):
            optimizer.step()
        network(torch.ones(3, 2)).sum().backward()
        torch.optim.SGD(network.parameters(), lr=0.5).step()
    table = simulation.report().table
    assert table.set_index("operation")["role"]["addmm"] == "forward"
    assert {"backward", "optimizer"} <= set(table["role"])


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


POLICIES = {
    "every operation": Policy("e5m7"),
    "products": Policy.mixed_precision("e5m7"),
    "storage": Policy.storage("e5m7"),
    "fp8": Policy.fp8("tensorwise"),
    "a part": Policy("fp32").with_rules(Rule(module="*.0", role=["forward", "backward"], format="e5m4")),
    "the optimizer": Policy("fp32").with_rules(Rule(role="optimizer", format="e5m4")),
    "stochastic": Policy.mixed_precision("e5m7").with_rules(Rule(rounding="stochastic")),
}


@pytest.mark.parametrize("how", ["by place", "by name", "of a subclass"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_closure_of_a_step_is_no_part_of_it(policy, how):
    """Loops such as Lightning's hand the forward and the backward pass to the step; a program's own do not."""

    class Behind(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def trained(*, closed):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        x = torch.randn(32, 8)
        optimizer = (Behind if how == "of a subclass" else torch.optim.SGD)(net.parameters(), lr=0.1, momentum=0.9)

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        with simulate(POLICIES[policy], observe=True) as simulation:
            for _ in range(3):
                if not closed:
                    closure()
                    optimizer.step()
                elif how == "by name":
                    optimizer.step(closure=closure)
                else:
                    optimizer.step(closure)
        counts = simulation.report().table.sort_values(["role", "module", "operation"]).to_dict("records")
        return [p.detach().clone() for p in net.parameters()], [str(row) for row in counts]

    weights, counts = trained(closed=True)
    expected, also_expected = trained(closed=False)
    assert all(map(torch.equal, weights, expected))
    assert counts == also_expected


def test_lbfgs_computes_its_losses_outside_of_its_steps():
    net = torch.nn.Linear(8, 1)
    x = torch.randn(32, 8)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    with simulate("e8m7", observe=True) as simulation:
        optimizer.step(closure)
    roles = simulation.report().table.groupby("operation")["role"].agg(set)
    assert roles["addmm"] == roles["mean"] == {"forward"}
    assert roles["mm"] == {"backward"}
    assert "optimizer" in roles["dot"]


def test_after_a_closure_that_raises_no_step_is_begun():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        raise FloatingPointError

    with simulate("e5m10", observe=True) as simulation:
        with pytest.raises(FloatingPointError):
            optimizer.step(closure)
        weight * 2
    assert set(simulation.report().table["role"]) == {"forward"}
