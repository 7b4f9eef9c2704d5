"""Plain operations in C++ against the same operations through Python: bits, audits, and everything around them."""

import copy
import gc
import threading

import pytest
import torch
from both_ways import assert_same, both_ways, check_operators, one_operator_in
from comparing import same_bits
from each import each
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff.formats import Format, Rounding
from roundoff.simulate.dispatch.simulation import Simulation
from roundoff.simulate.native import library

pytestmark = pytest.mark.usefixtures("asked_for")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operators", one_operator_in(6))
def test_operators_give_the_same_bits_and_audit(operators, monkeypatch):
    check_operators(monkeypatch, operators, "e5m6")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def stepping(net=None, **adam):
    """A function that trains a network, and its parameters."""
    net = net or network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-4, **adam)
    dtype = next(net.parameters()).dtype
    x = torch.linspace(-1, 1, 40, dtype=dtype).view(8, 5)
    y = torch.linspace(-0.3, 0.7, 16, dtype=dtype).view(8, 2)

    def steps(number):
        for _ in range(number):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()

    return steps, list(net.parameters())


def trained(net=None, **adam):
    steps, parameters = stepping(net, **adam)
    steps(4)
    return [p.detach().clone() for p in parameters]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fmt", ["e5m10", "e4m3", "e8m7", "e5m10_saturate", "q4.6", "fp32"])
@pytest.mark.parametrize("adam", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}])
def test_training_gives_the_same_bits_and_audit(fmt, adam, monkeypatch):
    assert_same(both_ways(monkeypatch, lambda: trained(**adam), fmt))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fmt", ["posit8", "posit16_1", "q3.8_wrap", "mxfp8_e4m3", "bfp8_16", "fp16", "e11m12", "int8"])
@each("rounding", ["nearest-even", "nearest-away", "down", "stochastic"])
def test_every_family_gives_the_same_bits_and_audit(fmt, rounding, monkeypatch):
    net = network().to(Format.parse(fmt).carrier)
    assert_same(both_ways(monkeypatch, lambda: trained(copy.deepcopy(net)), fmt, rounding=rounding))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "how",
    [
        *({"rounding": str(rounding)} for rounding in Rounding if rounding != Rounding.NEAREST_EVEN),
        {"rounding": "stochastic", "seed": -3},
        {"granularity": "primitive"},
        {"scalars": "once"},
        {"whole": "rounded"},
        {"islands": "exact"},
        {"accumulate": "e5m10/32"},
    ],
    ids=str,
)
def test_other_arithmetic_gives_the_same_bits_and_audit(how, monkeypatch):
    assert_same(both_ways(monkeypatch, trained, "e5m8", **how))


def test_plain_operations_do_not_come_through_python(through_python):
    x = torch.randn(4, 4)
    with roundoff.simulate("e5m10"):
        for _ in range(3):
            torch.mm(x, x.t()).relu() + x
    assert sorted(through_python) == ["add", "mm", "relu", "t"]


def test_of_a_training_step_only_what_is_noted_comes_through_python(through_python):
    steps, _ = stepping()
    with roundoff.simulate("e5m10"):
        steps(2)
        through_python.clear()
        steps(1)
    # Results that are saved for the backward pass; and the gradient of ones, which is a whole number.
    noted = {"detach", "ones_like"}
    if library._reads_are_told:  # since a test of this process has read a number that was not finite
        noted.add("_local_scalar_dense")
    assert set(through_python) <= noted


def test_numbers_that_are_not_finite_are_noted_when_they_are_read():
    with roundoff.simulate("e5m10") as simulation:
        for number in (1.0, 2.0, float("nan")):
            torch.tensor(number).item()
    assert "nan was read" in str(simulation.last_read)


def test_what_is_computed_elsewhere_is_not_rounded(through_python):
    x = torch.full((3,), 0.1)
    plain = x * x
    with roundoff.simulate("e5m3"):
        assert torch.equal(x * x, x * x)
        assert not torch.equal(x * x, plain)
        with roundoff.exact():
            assert torch.equal(x * x, x * x)
            exact = x * x
        through_python.clear()
        with torch.utils._python_dispatch._disable_current_modes():
            disabled = x * x
    assert torch.equal(exact, plain)
    assert torch.equal(disabled, plain)
    assert not through_python


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outside", [True, False])
def test_another_mode_sees_every_operation(outside, monkeypatch):
    def program():
        x = torch.full((3,), 0.1)
        seen = Seen()
        for _ in range(3):
            x = x * 1.1
        if not outside:
            with seen:
                for _ in range(3):
                    x = x * 1.1
            assert seen.names == ["mul"] * 3
        return x

    if outside:
        with Seen() as seen:
            found = both_ways(monkeypatch, program, "e5m3")
        assert seen.names.count("mul") == 9
    else:
        found = both_ways(monkeypatch, program, "e5m3")
    assert_same(found)


def test_nested_simulations(monkeypatch):
    def program():
        x, parts = torch.linspace(0.1, 0.9, 7), []
        for _ in range(3):
            parts.append(x * x)
            with roundoff.simulate("e5m2"):
                parts += [x * x, x / 3]
                with roundoff.simulate("e8m5"):
                    parts.append(x * x)
            parts.append(x / 3)
        return parts

    assert_same(both_ways(monkeypatch, program, "e5m7"))


def test_threads_round_to_formats_of_their_own(monkeypatch):
    def in_thread(fmt, net, into):
        with roundoff.simulate(fmt):
            into[fmt] = trained(net)

    found = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        into = {}
        formats = ("e5m10", "e8m7", "e8m5")
        threads = [threading.Thread(target=in_thread, args=(fmt, network(), into)) for fmt in formats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(into)
    for fmt, native in found[0].items():
        assert all(map(same_bits, native, found[1][fmt]))


def test_errors_of_kernels_are_pytorchs_own(monkeypatch):
    def program():
        x = torch.ones(2, 3)
        torch.mm(x, x.t())
        with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"):
            torch.mm(x, x)
        return torch.mm(x, x.t())

    assert_same(both_ways(monkeypatch, program, "e5m3"))


def test_generators_and_checkpoints(monkeypatch):
    def suspended(x):
        with roundoff.simulate("e5m2"):
            while True:
                yield x * x

    def program():
        x = torch.linspace(0.1, 0.9, 9, requires_grad=True)
        parts = [x * x for _ in range(2)]
        numbers = suspended(x)
        parts += [y for _ in range(2) for y in (next(numbers), x * x)]
        numbers.close()
        y = checkpoint(lambda x: (x * x).tanh().exp(), x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return [*parts, y, gradient]

    with pytest.warns(roundoff.SimulationWarning, match="generator"):
        assert_same(both_ways(monkeypatch, program, "e5m5"))


def test_transforms(monkeypatch):
    def program():
        x = torch.linspace(0.1, 0.9, 12).view(3, 4)

        def loss(row):
            return (row * row).tanh().sum()

        return [
            f(x)
            for _ in range(2)
            for f in (torch.func.vmap(loss), torch.func.vmap(torch.func.grad(loss)), torch.func.jacrev(loss))
        ]

    assert_same(both_ways(monkeypatch, program, "e5m5"))


@pytest.mark.filterwarnings("ignore")
def test_what_is_read_is_told_as_ever(monkeypatch):
    def program():
        x = torch.linspace(0.1, 0.9, 77)
        said = []
        for _ in range(3):
            mean = x.mean()
            said += [float(mean), float((mean * 2).sum())]
        return torch.tensor(said)

    assert_same(both_ways(monkeypatch, program, "e5m3"))


def test_a_lazy_copy_is_rounded_and_its_source_is_not(monkeypatch):
    def program():
        x = torch.linspace(0.1, 0.9, 7)
        return [y for _ in range(3) for y in (torch._lazy_clone(x), torch._lazy_clone(x).sqrt_(), x)]

    assert_same(both_ways(monkeypatch, program, "e5m3"))


@pytest.mark.parametrize("where", ["before", "on the way"])
def test_what_an_interrupted_operation_has_computed_reaches_no_other(where, monkeypatch):
    """A sum of one element is computed in C++, and looked at in Python."""
    dispatch, value, interrupt = Simulation.__torch_dispatch__, library._value, []

    def interrupted(given, function, *args, **kwargs):
        if interrupt == [given]:
            interrupt.clear()
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    monkeypatch.setattr(
        Simulation, "__torch_dispatch__", lambda *args, **kwargs: interrupted("before", dispatch, *args, **kwargs)
    )
    monkeypatch.setattr(library, "_value", lambda *args: interrupted("on the way", value, *args))
    x = torch.linspace(0.1, 0.9, 5)
    exponentials = roundoff.round(torch.exp(x), "e5m3")
    with roundoff.simulate("e5m3"):
        *_, expected = (x.sum() for _ in range(3))
        interrupt.append(where)
        with pytest.raises(KeyboardInterrupt):
            x.sum()
        assert not interrupt
        assert same_bits(torch.exp(x), exponentials)
        assert same_bits(x.sum(), expected)


def test_memory_stays_as_it_is():
    resource = pytest.importorskip("resource")
    x, y = torch.rand(64), torch.rand(64)
    with roundoff.simulate("e5m10"):

        def run(times):
            for _ in range(times):
                (x * y).add_(y)
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = run(20_000)
        assert run(80_000) - before < 4096  # KiB: 50 bytes an operation would be 8000


def test_a_simulation_that_changes_its_policy_or_ends_is_forgotten():
    x = torch.full((3,), 0.3)
    simulation = roundoff.simulate("e5m3")
    with simulation:
        coarse = [x * x for _ in range(2)]
    simulation.change(roundoff.Policy("e5m3", rounding="toward_zero"))
    with simulation:
        down = [x * x for _ in range(2)]
    assert torch.equal(coarse[0], coarse[1])
    assert torch.equal(down[0], down[1])
    assert not torch.equal(coarse[0], down[0])
    whole = simulation.whole
    del simulation
    gc.collect()
    whole.mark(torch.ones(1))  # what has outlived it
    for fmt in ("e5m2", "e8m7"):
        expected = roundoff.round(x * x, fmt)
        with roundoff.simulate(fmt):
            assert torch.equal(x * x, expected)
            assert torch.equal(x * x, expected)


def test_results_that_python_must_see_are_computed_once(monkeypatch):
    """A large result of small operands, which several threads round; one without order; a sum of one element."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:

        def program():
            column, x = torch.linspace(0.1, 0.9, 600).view(-1, 1), torch.linspace(0.1, 0.9, 60).view(6, 10)
            parts = []
            for _ in range(3):
                x[:, 2].mul_(1.01)  # in place, in memory with gaps
                parts += [torch.mm(column, column.t()), x.clone(), x.sum(), torch.normal(0.0, 1.0, (3,))]
            return parts

        assert_same(both_ways(monkeypatch, program, "e5m4"))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_tensors_are_rounded_in_pieces_with_the_same_bits(dtype, monkeypatch):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        x, y, z = (torch.rand(523, 601, dtype=dtype) + 0.1 for _ in range(3))  # no whole number of pieces or vectors
        one, other = torch.tensor(0.3, dtype=dtype), torch.rand(601, dtype=dtype)

        def program():
            parts = []
            for _ in range(3):
                parts += [x + y, torch.add(x, y, alpha=0.3), x - 1.1, x * y, x / 1.7, x.sqrt(), x * one, x * other]
                a = x.clone()
                parts += [a.add_(y, alpha=0.3).clone(), a.lerp_(z, 0.3).clone(), a.mul_(0.9).clone(), a.div_(y).clone()]
                parts += [a.addcmul_(y, z, value=0.1).clone(), a.addcdiv_(z, y, value=-0.1).clone(), a.add_(a)]
                parts += [a.t().mul_(0.7), torch.relu(a), a.view(-1)[1:].mul_(0.3)]
                with pytest.raises(RuntimeError, match="single memory location"):
                    a.view(-1)[1:].add_(a.view(-1)[:-1])
                parts.append(a)
            return parts

        assert_same(both_ways(monkeypatch, program, "e5m6"))
    finally:
        torch.set_num_threads(threads)
