"""Products under recipes in C++: operands told apart, seen in blocks along what is contracted, as through Python."""

from contextlib import nullcontext

import pytest
import torch
from both_ways import assert_same, both_ways, check_operators, one_operator_in
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff.simulate.aten.tables import CONTRACTIONS
from roundoff.simulate.native.stand_ins import meaning_of

pytestmark = [pytest.mark.usefixtures("asked_for"), pytest.mark.filterwarnings("ignore")]

_ALL = ("weights", "activations", "gradients")


def rule(role, format, **how):
    return roundoff.Rule(CONTRACTIONS, role=role, format=format, **how)


POLICIES = {
    "rowwise": roundoff.Policy.fp8("rowwise"),
    "rowwise in fp16": roundoff.Policy.fp8("rowwise", "e5m10"),
    "tensorwise": roundoff.Policy.fp8("tensorwise"),
    "weight's gradient in high precision": roundoff.Policy.fp8("rowwise_with_gw_hp"),
    "leaving a module": roundoff.Policy.fp8("rowwise", but="*inner*"),
    "mx": roundoff.Policy.mx(),
    "mx in bf16": roundoff.Policy.mx("mxfp4", "bf16"),
    "blocks of five": roundoff.Policy.mx("bfp8_5"),
    "stochastic": roundoff.Policy("e5m7", rounding="stochastic", rules=(rule(_ALL, "mxfp6_e2m3"),)),
    "in modes": roundoff.Policy(
        "fp32",
        rules=(
            rule("weights", "fp8_e4m3_b3"),
            rule("activations", "mxfp8_e5m2_b4", rounding="up"),
            rule("gradients", "fp8_e5m2_row", rounding="stochastic"),
            rule("gradients", "mxint8_b8", rounding="stochastic", product="grad-input"),
        ),
    ),
    "as in the forward pass": roundoff.Policy(
        "e5m10", rules=(rule(("weights", "activations"), "fp8_e4m3_row", backward="rounded"), rule("gradients", "e5m2"))
    ),
    "backward unrounded": roundoff.Policy(
        "fp32", rules=(rule(("weights", "activations"), "mxfp4_b3", backward="unrounded"),)
    ),
    "and all operands": roundoff.Policy("e5m10", operands="e5m4", rules=(rule(_ALL, "mxfp8_e4m3_b6"),)),
    "operands in blocks": roundoff.Policy.mixed_precision("mxfp8_e4m3_b6"),
    "everything in rows": roundoff.Policy("fp8_e4m3_row"),
    "blockwise": roundoff.Policy.fp8("blockwise"),
    "squares": roundoff.Policy(
        "e5m10",
        rules=(rule("weights", "fp8_e4m3_b3_square"), rule(("activations", "gradients"), "fp8_e4m3_b3")),
    ),
    "squares in modes": roundoff.Policy(
        "fp32",
        rules=(
            rule("weights", "fp8_e4m3_b5_square_pow2", rounding="up", backward="rounded"),
            rule("activations", "fp8_e5m2_b4_square"),
            rule("gradients", "fp8_e5m2_b4_square", rounding="stochastic", product="grad-input"),
        ),
    ),
    "everything in squares": roundoff.Policy("fp8_e5m2_b4_square"),
}

QUICK = ("rowwise", "mx", "stochastic", "in modes", "as in the forward pass")


class Net(torch.nn.Module):
    """Layers, attention with a projection, a product with data, products of vectors, and one in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner = torch.nn.Linear(7, 18), torch.nn.Linear(18, 18, bias=False)
        self.project, self.last = torch.nn.Linear(18, 54), torch.nn.Linear(18, 3)
        self.register_buffer("fixed", torch.randn(18, 18) * 0.1)
        self.vector = torch.nn.Parameter(torch.randn(18) * 0.1)
        self.batched = torch.nn.Parameter(torch.randn(2, 18, 18) * 0.1)

    def forward(self, x):
        x = self.inner(self.first(x).tanh())
        query, key, value = self.project(x).view(2, -1, 3, 2, 9).permute(2, 0, 3, 1, 4).unbind()
        weights = (query.flatten(0, 1) @ key.flatten(0, 1).mT).softmax(-1)
        x = (weights @ value.flatten(0, 1)).view(2, 2, -1, 9).transpose(1, 2).flatten(2)
        x = torch.baddbmm(x, x, self.batched, beta=0.5, alpha=0.3)[:, ::2].flatten(0, 1)
        x = x @ self.fixed + (x @ self.vector)[:, None] * self.fixed.mv(self.vector).dot(self.vector)
        wide = x.double() @ self.inner.weight.double()
        return self.last(x + wide.float() + checkpoint(self.inner, x, use_reentrant=False))


def trained():
    net, parts = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    x = torch.linspace(-1, 1, 84).view(12, 7)
    for _ in range(4):
        optimizer.zero_grad()
        y = net(x)
        y.sum().backward(retain_graph=True)  # of a gradient that is one number, seen at every place
        (slope,) = torch.autograd.grad(y.square().mean(), net.last.weight, create_graph=True)
        slope.square().sum().backward()
        optimizer.step()
        parts += [y.detach(), *(p.grad.clone() for p in net.parameters())]
    return parts


@pytest.mark.parametrize("name", POLICIES)
def test_training_gives_the_same_bits_and_audit(name, monkeypatch):
    found = both_ways(monkeypatch, trained, POLICIES[name])
    assert_same(found)
    assert all(x.isfinite().all() for x in found[0][0])


def test_a_product_that_a_checkpoint_has_not_come_to_again_is_of_a_weights_gradient(monkeypatch):
    """The checkpoint computes what the product multiplies, and ends before the forward product itself."""
    policy = roundoff.Policy("fp32", rules=(rule(("activations", "gradients"), "mxfp4_b3", product="grad-weight"),))

    def program():
        torch.manual_seed(0)
        first, last = torch.nn.Linear(5, 8), torch.nn.Linear(8, 6)
        x = torch.linspace(-1, 1, 60).view(12, 5)
        for _ in range(3):
            checkpoint(lambda x: last(first(x).tanh()), x, use_reentrant=False).square().sum().backward()
        return [p.grad for p in (*first.parameters(), *last.parameters())]

    found = both_ways(monkeypatch, program, policy)
    assert_same(found)
    plain = program()
    assert not torch.equal(found[0][0][2], plain[2])  # the rule is about it


@pytest.mark.parametrize(
    "name", ["rowwise", "tensorwise", "mx in bf16", "stochastic", "operands in blocks", "blockwise"]
)
def test_products_do_not_come_through_python(name, through_python):
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.linspace(-1, 1, 40).view(8, 5)

    def step():
        optimizer.zero_grad()
        torch.autograd.backward(net(x), torch.full((8, 2), 0.3))
        optimizer.step()

    with roundoff.simulate(POLICIES[name]):
        step()
        assert "addmm" in through_python
        step()
        through_python.clear()
        step()
    assert set(through_python) <= {"detach", "full"}


@pytest.mark.parametrize("name", ["rowwise", "rowwise in fp16"])
def test_numbers_are_read_without_python(name):
    with roundoff.simulate(POLICIES[name]) as simulation:
        torch.tensor([0.3]).item()
    (plan,) = (plan for plan in simulation.plans() if plan.name == "_local_scalar_dense")
    meaning = meaning_of(plan.kernel)
    assert meaning is not None
    assert meaning.reads


class Convolutional(torch.nn.Module):
    """Convolutions of every kind: with strides, in groups, transposed, of one and of three axes, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        nn = torch.nn
        self.first, self.inner = (
            nn.Conv2d(3, 10, 3, stride=2, padding=1),
            nn.Conv2d(10, 10, 3, padding="same", bias=False),
        )
        self.groups, self.up = (
            nn.Conv2d(10, 10, (1, 3), groups=5),
            nn.ConvTranspose2d(10, 7, 3, output_padding=1, stride=2),
        )
        self.line, self.deep = nn.Conv1d(7, 9, 3, dilation=2), nn.Conv3d(1, 2, 2)
        self.wide = nn.Conv1d(7, 4, 2).double()

    def forward(self, x):
        x = self.inner(self.first(x).tanh())
        x = self.groups(x.to(memory_format=torch.channels_last)) + self.groups.bias[:, None, None]
        x = self.up(x).tanh()
        deep = self.deep(x[:, None, :3, :3, :3])
        lines = x.flatten(2)
        moved = torch.nn.functional.conv2d(x, x[:2, :, :2, :2] * 0.1)  # of two activations
        return self.line(lines).square().mean() + self.wide(lines.double()).mean() + deep.mean() + moved.square().mean()


def convolved():
    net, parts = Convolutional(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for wants_gradient in (False, True, False):
        x = torch.linspace(-1, 1, 2 * 3 * 81).view(2, 3, 9, 9).sin().requires_grad_(wants_gradient)
        optimizer.zero_grad()
        for parameter in net.inner.parameters():
            parameter.requires_grad_(not wants_gradient)
        y = net(x)
        y.backward()
        optimizer.step()
        parts += [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        parts += [x.grad] if wants_gradient else []
    return parts


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in POLICIES],
)
def test_convolutions_give_the_same_bits_and_audit(name, monkeypatch):
    found = both_ways(monkeypatch, convolved, POLICIES[name])
    assert_same(found)
    assert all(x.isfinite().all() for x in found[0][0])


@pytest.mark.parametrize("name", ["rowwise", "tensorwise", "mx in bf16", "stochastic", "operands in blocks"])
def test_convolutions_do_not_come_through_python(name, through_python):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 6, 3), torch.nn.ReLU(), torch.nn.ConvTranspose2d(6, 4, 2), torch.nn.BatchNorm2d(4)
    )
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.linspace(-1, 1, 2 * 2 * 25).view(2, 2, 5, 5)
    with roundoff.simulate(POLICIES[name]):
        for _ in range(3):
            through_python.clear()
            optimizer.zero_grad()
            torch.autograd.backward(net(x).square().mean())
            optimizer.step()
    assert {"convolution", "convolution_backward", "native_batch_norm"}.isdisjoint(through_python)


def test_nested_recipes_know_each_its_own_products(monkeypatch):
    def program():
        net, parts, x = Net(), [], torch.linspace(-1, 1, 84).view(12, 7)
        for _ in range(3):
            y = net(x)
            with roundoff.simulate(POLICIES["mx"]):
                parts += torch.autograd.grad(y.sum(), list(net.parameters()), retain_graph=True)
            parts += torch.autograd.grad(y.sum(), list(net.parameters()))
        return parts

    assert_same(both_ways(monkeypatch, program, POLICIES["rowwise"]))


def test_what_one_side_has_multiplied_is_an_activation_to_the_other():
    x, found = torch.linspace(-1, 1, 84).view(12, 7), []
    for in_python in ("", "forward", "backward"):
        net = Net()
        with roundoff.simulate(POLICIES["mx"]) as simulation:
            for _ in range(3):
                with simulation._runner.without_shortcut() if in_python == "forward" else nullcontext():
                    y = net(x).sum()
                with simulation._runner.without_shortcut() if in_python == "backward" else nullcontext():
                    gradients = torch.autograd.grad(y, list(net.parameters()))
        found.append(([y, *gradients], simulation.audit().table))
    assert_same(found[:2])
    assert_same(found[::2])


@pytest.mark.parametrize("operators", one_operator_in(12))
def test_operators_in_rows_give_the_same_bits_and_audit(operators, monkeypatch):
    check_operators(monkeypatch, operators, roundoff.Policy("fp8_e4m3_row", rules=(rule(_ALL, "fp8_e4m3_tensor"),)))
