"""Policies that depend on roles and modules, and rounded operands: in C++ as through Python."""

import threading

import pytest
import torch
from both_ways import assert_same, both_ways, check_operators, one_operator_in
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff.simulate.dispatch.simulation import Simulation
from roundoff.simulate.native import library

pytestmark = pytest.mark.usefixtures("asked_for")

POLICIES = {
    "mixed": roundoff.Policy.mixed_precision("e5m10"),
    "mixed e4m3": roundoff.Policy.mixed_precision("e4m3"),
    "mixed mx": roundoff.Policy.mixed_precision("mxfp8_e4m3"),
    "storage": roundoff.Policy.storage("e4m3"),
    "operands": roundoff.Policy("e5m10", operands="e5m4"),
    "operands once": roundoff.Policy("e5m10", operands="e5m4", scalars="once"),
    "operands and numbers": roundoff.Policy("e5m10", operands="e5m4", scalars="rounded"),
    "roles": roundoff.Policy(
        "e5m7",
        rules=(
            roundoff.Rule(role="backward", format="e5m2"),
            roundoff.Rule(role="optimizer", format="e5m10"),
            roundoff.Rule(role="averages", format="e8m3"),
        ),
    ),
    "modules": roundoff.Policy("e5m10", rules=(roundoff.Rule(module="*inner*", format="e4m3", operands="e5m2"),)),
    "parts": roundoff.Policy("e5m10").with_rules(
        roundoff.Rule(within="Net.convolved", format="e5m4"),
        roundoff.Rule(within="learn", format="e5m8"),
        roundoff.Rule(within="learn", role="optimizer", format="e8m4"),
        roundoff.Rule(within="average", format="e8m3"),
        roundoff.Rule(within="Tripled.backward", format="e5m3"),
    ),
    "outside": roundoff.Policy("e5m10", rules=(roundoff.Rule(module="", format="e5m4"),)),
    "nothing else": roundoff.Policy("fp32", rules=(roundoff.Rule("mm", role="backward", format="e4m3"),)),
    "recipe": roundoff.Policy.fp8("rowwise", "e5m10"),
    "recipe tensorwise": roundoff.Policy.fp8("tensorwise"),
    "recipe mx": roundoff.Policy.mx(),
    "recipe nvfp4": roundoff.Policy.nvfp4(),
    "engine": roundoff.Policy.engine("e4m3"),
    "parameters": roundoff.Policy(
        "e8m7", rules=(roundoff.Rule(role="parameters", format="e4m3", rounding="stochastic"),)
    ).with_rules(
        roundoff.Rule("mm", role="backward", format="fp32"), roundoff.Rule("addmm", role="parameters", format="e5m1")
    ),
    "inputs": roundoff.Policy("e5m8", rules=(roundoff.Rule(role=("inputs", "parameters"), format="e4m3"),)),
    "weights": roundoff.Policy("e5m8", rules=(roundoff.Rule(role="weights", format="e4m3", rounding="stochastic"),)),
    "stochastic mixed": roundoff.Policy("e5m7", rounding="stochastic").with_rules(
        roundoff.Rule(role="optimizer", format="e8m10", rounding="up"), roundoff.Rule(role="backward", operands="e5m3")
    ),
}


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 0.3 * 0.9


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(5, 16)
        self.inner = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16))
        self.conv = torch.nn.Conv1d(1, 3, 3)
        self.last = torch.nn.Linear(42, 2)

    def forward(self, x):
        x = checkpoint(self.inner, self.first(x).relu(), use_reentrant=False)
        return self.last(self.convolved(x[:, None]).flatten(1))

    def convolved(self, x):
        return Tripled.apply(self.conv(x)) * 1.1


def trained(steps=3, net=None):
    """What is left of a network, and of a moving average of its weights, after some steps."""
    net = net or Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-3)
    average = [p.detach().clone() for p in net.parameters()]
    x, y = torch.linspace(-1, 1, 40).view(8, 5), torch.linspace(-0.3, 0.7, 16).view(8, 2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        (slope,) = torch.autograd.grad(net.last.weight.square().sum() * loss, net.last.weight, create_graph=True)
        with roundoff.part("learn"):
            (loss + slope.square().mean()).backward()
            optimizer.step()
        with torch.no_grad(), roundoff.part("average"), roundoff.in_role("averages"):
            for mean, p in zip(average, net.parameters(), strict=True):
                mean.lerp_(p, 0.1)
    return [*(p.detach() for p in net.parameters()), *average]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", POLICIES)
def test_training_gives_the_same_bits_and_audit(name, monkeypatch):
    assert_same(both_ways(monkeypatch, trained, POLICIES[name]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["modules", "parts"])
def test_both_sides_find_the_same_place(name, monkeypatch):
    simulation = roundoff.simulate(POLICIES[name])
    dispatch, places = Simulation.__torch_dispatch__, set()

    def comparing(self, *args, **kwargs):
        here = self.places.here()
        assert self._runner._shortcut.here() in (here, *([None] if "Tripled" in here[1] else []))
        places.add(here)
        return dispatch(self, *args, **kwargs)

    monkeypatch.setattr(Simulation, "__torch_dispatch__", comparing)
    with simulation, simulation._runner.without_shortcut():  # so that every operation comes to Python
        trained()
    assert {role for role, _ in places} == {"forward", "backward", "optimizer", "averages"}
    learn, convolved = "learn: ", "Net.convolved: " if name == "parts" else ""
    assert {("backward", "Net.inner.0"), ("backward", f"{convolved}Net.conv"), ("averages", "average: ")} <= places
    assert {("optimizer", learn), ("backward", learn)} <= places
    if name == "parts":  # a part that begins in the backward pass, in the module of its forward operation
        assert ("backward", "learn/Tripled.backward: Net") in places


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mixed", "storage", "modules", "operands"])
def test_what_is_plain_does_not_come_through_python(name, monkeypatch):
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, seen, dispatch = torch.linspace(-1, 1, 40).view(8, 5), [], Simulation.__torch_dispatch__

    def step():
        optimizer.zero_grad()
        torch.autograd.backward(net(x), torch.full((8, 2), 0.3))
        optimizer.step()

    def seeing(self, func, *args, **kwargs):
        seen.append(func.overloadpacket.__name__)
        return dispatch(self, func, *args, **kwargs)

    monkeypatch.setattr(Simulation, "__torch_dispatch__", seeing)
    with roundoff.simulate(POLICIES[name]):
        step()
        assert "addmm" in seen
        step()
        seen.clear()
        step()
    assert set(seen) <= {"detach", "full"}


class Odd(torch.nn.Module):
    """Weights that are made anew, drawn, frozen, kept as buffers, looked up or written over; inputs with gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("fixed", torch.randn(6, 6))
        self.register_buffer("loose", torch.randn(6, 6), persistent=False)
        self.frozen = torch.nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.weight, self.other = (torch.nn.Parameter(torch.randn(6, 6)) for _ in range(2))
        self.table = torch.nn.Parameter(torch.randn(3, 6, 6))

    def forward(self, x):
        noisy = self.weight + torch.randn(6, 6) * 0.1
        scaled = (self.weight.detach() * 2).t().contiguous()
        both = torch.cat([self.weight, self.other]) * 0.5
        x = x @ noisy + x @ self.frozen.t() - x @ scaled
        x = (x @ both.t())[:, :6] + x @ (self.weight @ self.other)
        x = torch.addmm(x, self.weight, self.other * 0.5)  # the parameter itself is the weight
        one, other = self.table[torch.tensor([0, 2])]
        x = torch.addmm(x, one, other)  # either might be a weight: none is
        x = x.tanh() @ self.table[torch.tensor(1)] + x.relu() @ self.fixed + x @ self.loose
        with torch.no_grad():
            moved = torch.zeros(6, 6).copy_(self.other)
            before = x @ moved
            moved.mul_(x.sum())
            after = before + x @ moved
        return x + after + x @ x.t() @ x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["recipe", "recipe mx", "engine", "inputs", "weights"])
def test_weights_are_told_from_data(name, monkeypatch):
    def program():
        net, parts = Odd(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        for _ in range(3):
            x = torch.linspace(-1, 1, 36).view(6, 6).requires_grad_()
            y = net(x * 0.5)
            optimizer.zero_grad()
            (gradient,) = torch.autograd.grad(y.square().mean(), x, create_graph=True)
            (y.mean() + gradient.square().sum()).backward()
            optimizer.step()
            with torch.no_grad():
                net.fixed.mul_(0.9).add_(gradient * 0.01)
            parts += [y, gradient, net.fixed.clone()]
        return [*parts, *net.parameters()]

    assert_same(both_ways(monkeypatch, program, POLICIES[name]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["recipe", "recipe mx", "engine"])
def test_under_a_recipe_what_is_no_product_does_not_come_through_python(name, monkeypatch):
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, seen, dispatch = torch.linspace(-1, 1, 40).view(8, 5), [], Simulation.__torch_dispatch__

    def seeing(self, func, *args, **kwargs):
        seen.append(func.overloadpacket.__name__)
        return dispatch(self, func, *args, **kwargs)

    def step():
        optimizer.zero_grad()
        torch.autograd.backward(net(x), torch.full((8, 2), 0.3))
        optimizer.step()

    monkeypatch.setattr(Simulation, "__torch_dispatch__", seeing)
    with roundoff.simulate(POLICIES[name]):
        step()
        step()
        seen.clear()
        step()
    assert set(seen) <= {"detach", "full", "addmm", "mm", "t"} - ({"addmm", "mm"} if name == "engine" else set())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operators", one_operator_in(20))
def test_operators_under_a_recipe_give_the_same_bits_and_audit(operators, monkeypatch):
    check_operators(
        monkeypatch, operators, POLICIES["recipe mx"].with_rules(roundoff.Rule(role="parameters", format="e5m7"))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operators", one_operator_in(12))
def test_operators_with_rounded_operands_give_the_same_bits_and_audit(operators, monkeypatch):
    policy = POLICIES["operands"].with_rules(roundoff.Rule(role="backward", operands="e5m2"))
    check_operators(monkeypatch, operators, policy)
    check_operators(monkeypatch, operators, POLICIES["engine"])


@pytest.mark.filterwarnings("ignore")
def test_threads_are_in_modules_of_their_own(monkeypatch):
    def program():
        found, threads = {}, []
        for number, net in enumerate([Net(), Net(), Net()]):

            def work(number=number, net=net):
                with simulation:
                    found[number] = trained(2, net)

            threads.append(threading.Thread(target=work))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[number] for number in range(3)]

    found = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        simulation = roundoff.simulate(POLICIES["modules"])
        found.append((program(), simulation.audit().table))
    assert_same(found)


@pytest.mark.filterwarnings("ignore")
def test_a_block_is_left_and_entered_again_by_an_exception(monkeypatch):
    class Failing(torch.nn.Module):
        def forward(self, x):
            x = x * 1.1
            if self.fails:
                raise ValueError
            return x

    net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), Failing()), torch.linspace(0.1, 0.9, 6).view(2, 3)

    def program():
        parts = []
        for net[1].fails in (False, True, False):
            try:
                parts.append(net(x))
            except ValueError:
                parts.append(x * 1.7)
            parts.append(x * 1.3)
        return parts

    torch.nn.init.constant_(net[0].weight, 0.3)
    assert_same(both_ways(monkeypatch, program, POLICIES["outside"]))


@pytest.mark.filterwarnings("ignore")
def test_nested_simulations_follow_each_their_modules(monkeypatch):
    def program():
        net, x = Net(), torch.linspace(-1, 1, 40).view(8, 5)
        parts = []
        for _ in range(2):
            with roundoff.simulate(POLICIES["mixed e4m3"]):
                parts.append(net(x))
            parts.append(net(x))
            parts[-1].sum().backward()
        return [*parts, *(p.grad for p in net.parameters())]

    assert_same(both_ways(monkeypatch, program, POLICIES["modules"]))


def test_a_role_that_was_said_before_the_library_is_loaded(monkeypatch):
    x = torch.linspace(0.1, 0.9, 7)

    def program():
        return [x * x for _ in range(3)]

    with roundoff.in_role("averages"):
        monkeypatch.setattr(library, "_loaded", library.library())
        library.set_role(-1)  # as if it had come later
        found = both_ways(monkeypatch, program, POLICIES["roles"])
    assert_same(found)
    assert torch.equal(found[0][0][2], roundoff.round(x * x, "e8m3"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("computed", [True, False])
def test_what_was_computed_in_cpp_is_no_weight_that_a_rule_has_missed(computed, monkeypatch):
    missed = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        with roundoff.simulate(POLICIES["weights"]) as simulation:
            for _ in range(4):
                x, y = torch.full((3, 4), 0.3), torch.full((4, 3), 0.7)
                x, y = (x * 1.1, y * 1.1) if computed else (torch.from_numpy(x.numpy()), torch.from_numpy(y.numpy()))
                x @ y
        missed.append(sum(plan.outcome.missed for plan in simulation.plans()))
    assert missed == ([0, 0] if computed else [4, 4])
