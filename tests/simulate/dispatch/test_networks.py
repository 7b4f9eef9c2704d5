"""Networks of all kinds in every mode: fp32 changes no bit; in e5m10 every result is of it, and twice the same."""

import pytest
import torch
from networks import NETWORKS, Draw
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.simulate.aten.tables import CONTRACTIONS

STEPS = 2


class Layers(torch.nn.Module):
    """Layers that PyTorch may run as one kernel: an LSTM, a transformer's encoder while it trains and in evaluation."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 8)
        self.encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def data(self, draw):
        return (draw.normal(3, 5, 4),)

    def loss(self, x):
        y = self.encoder(self.lstm(x)[0])
        with torch.no_grad():
            z = self.encoder.eval()(y)
        self.encoder.train()
        return (y - z).square().mean() + y.cos().mean()


KINDS = [*NETWORKS, Layers]

MODES = {
    "kernel": lambda: simulate("e5m10"),
    "primitive": lambda: simulate("e5m10", granularity="primitive"),
    "scalars": lambda: simulate("e5m10", scalars="rounded"),
    "up": lambda: simulate("e5m10", rounding="up"),
    "to odd": lambda: simulate("e5m10", rounding="to-odd"),
    "stochastic": lambda: simulate("e5m10", rounding="stochastic", seed=3),
    "stochastic, primitive": lambda: simulate("e5m10", rounding="stochastic", granularity="primitive"),
    "accumulated": lambda: simulate("e5m10", accumulate="e5m10/8"),
    "accumulated, exact": lambda: simulate("e5m10", accumulate="quire", rounding="stochastic"),
    "observed": lambda: simulate("e5m10", observe=True),
    "shadowed": lambda: simulate("e5m10", shadow="fp64"),
    "mx operands": lambda: simulate(Policy("e5m10").with_rules(Rule(list(CONTRACTIONS), operands="mxfp8_e4m3"))),
    "posit": lambda: simulate("posit12_1"),
    "fixed point": lambda: simulate("q3.7"),
}
UNCHANGED = {
    "observed": lambda: simulate("fp32", observe=True),
    "shadowed": lambda: simulate("fp32", shadow="fp64"),
    "primitive": lambda: simulate("fp32", granularity="primitive", observe=True),
    "a rule that matches nothing": lambda: simulate(Policy("fp32").with_rules(Rule("erf", format="e5m10"))),
}


QUICK = {"kernel", "primitive", "stochastic", "observed"}


def some_are_slow(modes):
    """Every network in the usual modes, and one in all of them; the rest is for ``make test-slow``."""
    return [
        pytest.param(
            kind, how, marks=[] if how in QUICK or kind is Layers else pytest.mark.slow, id=f"{kind.__name__}-{how}"
        )
        for kind in KINDS
        for how in modes
    ]


def _counts(func, x):
    """Whether a result counts targets or edges: whole numbers stay as they are. NumPy says so, and draws no bits."""
    counting = func.__name__.startswith(("nll_loss_forward", "index_add", "clamp"))
    return counting and bool((x.detach().numpy() % 1 == 0).all())


class OfFormat(TorchDispatchMode):
    """Sees what each operation gives back, and asserts that it is of a format."""

    def __init__(self, fmt):
        super().__init__()
        self.format, self.seen = fmt, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:
            for x in tree_leaves((result, args if func._schema.is_mutable else ())):
                if isinstance(x, torch.Tensor) and x.is_floating_point() and not _counts(func, x):
                    again = roundoff.round(x.detach(), self.format)
                    torch.testing.assert_close(x.detach(), again, rtol=0, atol=0, equal_nan=True, msg=f"{func}")
                    self.seen += 1
        return result


def trained(kind, simulation, fmt=None, watch=None):
    """All numbers after a few steps of Adam."""
    torch.manual_seed(0)
    network = kind()
    with torch.no_grad():
        for x in tree_leaves((list(network.parameters()), list(network.buffers()))):
            if fmt and x.is_floating_point():
                x.copy_(roundoff.round(x, fmt))
    optimizer = torch.optim.Adam(network.parameters(), lr=2.0**-6, eps=2.0**-10)
    draw, losses = Draw(1, torch.float32), []
    for _ in range(STEPS):
        data = network.data(draw)
        if fmt:
            data = [roundoff.round(x, fmt) if x.is_floating_point() else x for x in data]
        with simulation, watch or torch.enable_grad():
            optimizer.zero_grad()
            loss = network.loss(*data)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return [x.detach().clone() for x in [*losses, *network.parameters(), *network.buffers(), *gradients]]


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore::roundoff.SimulationWarning")
@pytest.mark.parametrize(("kind", "how"), some_are_slow(UNCHANGED))
def test_fp32_changes_no_bit(kind, how):
    assert_same(trained(kind, UNCHANGED[how]()), trained(kind, torch.enable_grad()))


@pytest.mark.filterwarnings("ignore::roundoff.SimulationWarning")
@pytest.mark.parametrize(("kind", "how"), some_are_slow(MODES))
def test_every_result_is_of_the_format_and_twice_the_same(kind, how):
    simulation = MODES[how]()
    watch = OfFormat(simulation.format)
    once = trained(kind, simulation, simulation.format, watch)
    assert watch.seen > 20 * STEPS
    assert_same(trained(kind, MODES[how](), simulation.format), once)
