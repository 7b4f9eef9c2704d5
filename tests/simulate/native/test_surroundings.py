"""What calls operations or is called by them: hooks, custom operators, functions of autograd; workers and ranks."""

import pytest
import torch
import two_ranks
from both_ways import assert_same, both_ways
from comparing import same_bits
from processes import PATIENCE

import roundoff

pytestmark = [pytest.mark.usefixtures("asked_for"), pytest.mark.filterwarnings("ignore")]

POLICIES = {
    "everywhere": roundoff.Policy("e5m6"),
    "stochastic": roundoff.Policy("e5m6", rounding="stochastic"),
    "modules and roles": roundoff.Policy(
        "e5m8",
        rules=(
            roundoff.Rule(module="*1*", format="e5m4"),
            roundoff.Rule(role="backward", format="e5m5"),
            roundoff.Rule(role="optimizer", format="e8m7"),
        ),
    ),
    "recipe": roundoff.Policy.fp8("rowwise", "e5m7"),
}


@pytest.fixture(params=POLICIES)
def policy(request):
    return POLICIES[request.param]


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def learned(net, steps=3):
    """The parameters after some steps, and the gradients by the inputs of each."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-3)
    parts = []
    for _ in range(steps):
        x = torch.linspace(-1, 1, 40).view(8, 5).requires_grad_()
        optimizer.zero_grad()
        (net(x) - 0.3).square().mean().backward()
        optimizer.step()
        parts.append(x.grad)
    return [*parts, *(p.detach().clone() for p in net.parameters())]


def test_hooks_of_modules(policy, monkeypatch):
    def program():
        net, seen = layers(), []
        net[0].register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 1.1,))
        net[1].register_forward_hook(lambda _module, _inputs, output: output / 1.3 + 0.1)
        net[2].register_full_backward_pre_hook(lambda _module, gradients: (gradients[0] * 0.7,))
        net[2].register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0] + 0.01,))
        net.register_full_backward_hook(lambda _module, inputs, _outputs: seen.append(inputs[0] * 3.3))
        return [*learned(net), *seen]

    assert_same(both_ways(monkeypatch, program, policy))


def test_hooks_of_tensors_parameters_and_optimizers(policy, monkeypatch):
    def program():
        net, seen = layers(), []

        def forward(x):
            hidden = net[1](net[0](x))
            hidden.register_hook(lambda gradient: gradient * 0.7)
            hidden.retain_grad()
            seen.append(hidden)
            hidden.grad_fn.register_prehook(lambda gradients: (gradients[0] / 1.1,))
            return net[2](hidden)

        def decaying(p):
            p.grad.mul_(0.9).add_(p.detach(), alpha=0.03)

        def scaling(_optimizer, _args, _kwargs):
            net[0].bias.grad.mul_(1.3)

        net[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01) * 1.7)
        net[2].weight.register_post_accumulate_grad_hook(decaying)
        net.forward = forward
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(scaling)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.linspace(-1, 1, 40).view(8, 5)).square().mean().backward()
            optimizer.step()
        return [*learned(net), *(hidden.grad for hidden in seen)]

    assert_same(both_ways(monkeypatch, program, policy))


@torch.library.custom_op("roundoff_tests::bent", mutates_args=())
def bent(x: torch.Tensor, by: float) -> torch.Tensor:
    """A custom operator that computes with several operations of PyTorch."""
    return (x * by).tanh() + x / 3


@bent.register_fake
def _(x, _by):
    return torch.empty_like(x)


@torch.library.custom_op("roundoff_tests::grown", mutates_args=("x",))
def grown(x: torch.Tensor, by: float) -> None:
    """A custom operator that writes to its argument."""
    x.mul_(by).add_(0.01)


def _kept(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]


def _slope(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * ((1 - (x * ctx.by).tanh().square()) * ctx.by + 1 / 3), None


bent.register_autograd(_slope, setup_context=_kept)


def test_custom_operators(policy, monkeypatch):
    class Bent(torch.nn.Module):
        def forward(self, x):
            y = bent(x, 0.7) * 1.1
            with torch.no_grad():
                grown(y, 1.3)
            return y

    def program():
        net = layers()
        net[1] = Bent()
        x = torch.linspace(0.1, 0.9, 12)
        return [*learned(net), *(bent(x, 0.3 + i) for i in range(3))]

    assert_same(both_ways(monkeypatch, program, policy))


class Doubly(torch.autograd.Function):
    """A function that saves what it has made; its backward pass can be differentiated."""

    @staticmethod
    def forward(ctx, x, weight):
        y = (x * weight).exp()
        ctx.save_for_backward(x, weight, y)
        return y, x + 0.1

    @staticmethod
    def backward(ctx, gradient, other):
        x, weight, y = ctx.saved_tensors
        return gradient * y * weight + other, (gradient * y * x).sum(0)


class InPlace(torch.autograd.Function):
    """A function that writes to its argument; its backward pass runs autograd itself."""

    @staticmethod
    def forward(x):
        return x.mul_(0.9)

    @staticmethod
    def setup_context(ctx, inputs, _output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(_ctx, gradient):
        with torch.enable_grad():
            inner = gradient.detach().requires_grad_()
            return torch.autograd.grad((inner * 0.3).tanh().sum(), inner)[0]


def test_functions_of_autograd(policy, monkeypatch):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 16))

        def forward(self, x):
            y, z = Doubly.apply(x, self.weight)
            return InPlace.apply(y * 1.1) + z

    def program():
        net = layers()
        net[1] = Both()
        parts = learned(net)
        for _ in range(2):
            x = torch.linspace(-1, 1, 32).view(2, 16).requires_grad_()
            (slope,) = torch.autograd.grad(Doubly.apply(x, net[1].weight)[0].sum(), x, create_graph=True)
            parts += [slope, *torch.autograd.grad(slope.square().sum(), [x, net[1].weight])]
        return parts

    assert_same(both_ways(monkeypatch, program, policy))


def test_two_ranks_of_which_one_was_spawned(tmp_path, monkeypatch):
    """Two ranks learn the same, in C++ as through Python; a spawned process has C++, too."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    store, into = str(tmp_path / "store"), str(tmp_path / "found")
    worker = torch.multiprocessing.get_context("spawn").Process(target=two_ranks.spawned, args=(store, into))
    worker.start()
    try:
        ranks = [two_ranks.rank_of_two(0, store)]
    finally:
        worker.join(PATIENCE)
    assert worker.exitcode == 0
    ranks.append(torch.load(into))
    for native, python in ranks:
        assert all(map(same_bits, native["parameters"], python["parameters"]))
        assert native["audit"] == python["audit"]
        assert native["through Python"] < python["through Python"] / 2
    assert all(map(same_bits, ranks[0][0]["parameters"], ranks[1][0]["parameters"]))
