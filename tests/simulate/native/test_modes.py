"""Stochastic and directed rounding in C++: random bits, exact results, and the counts that both sides share."""

import copy
import os
import subprocess
import sys
import threading

import pytest
import torch
from both_ways import assert_same, both_ways, check_operators, one_operator_in
from comparing import same_bits
from each import each
from torch.utils.checkpoint import checkpoint

import roundoff
from roundoff.formats import RandomBits
from roundoff.simulate.native import library

pytestmark = pytest.mark.usefixtures("asked_for")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rounding", ["stochastic", "up"])
@pytest.mark.parametrize("operators", one_operator_in(12))
def test_operators_give_the_same_bits_and_audit(operators, rounding, monkeypatch):
    check_operators(monkeypatch, operators, roundoff.Policy("e5m6", rounding=rounding))


def arithmetic(x, y):
    """Every formula, with tensors and with numbers, in place and of lists."""
    lists = [x, y], [y, x + 1]
    return [
        *(x + y, x - 0.3, 1 - x, torch.add(x, y, alpha=0.3), torch.rsub(x, y, alpha=2), x * y, x * 0.7, x / y, 3 / x),
        *(x.sqrt(), x.pow(2), x.pow(0.5), x.pow(-1), x.pow(3), x.reciprocal(), x * y[:1], x * y.mean()),
        *(torch.addcmul(x, y, y, value=0.3), torch.addcdiv(x, y, x), x.lerp(y, 0.3), x.lerp(y, y)),
        *(x.clone().mul_(y), x.clone().add_(y, alpha=-0.1), x.clone().addcdiv_(y, x, value=-0.1), x.clone().sqrt_()),
        *torch._foreach_add(*lists, alpha=0.3),
        *torch._foreach_mul(lists[0], [0.3, 0.7]),
        *torch._foreach_addcmul(*lists, lists[0], value=0.1),
        *torch._foreach_sqrt(lists[0]),
    ]


IN_PYTHON = {"mul", "mean", "slice"}  # of tensors that are not of one shape; results of one element


@pytest.mark.parametrize("rounding", ["stochastic", "up", "down", "toward-zero", "to-odd"])
def test_arithmetic_is_rounded_once(rounding, monkeypatch, through_python):
    x, y = torch.linspace(0.1, 0.9, 40), torch.linspace(-2, 3, 40)

    def program():
        results = [part for _ in range(2) for part in arithmetic(x, y)]
        through_python.clear()
        return [*results, *arithmetic(x, y)]

    assert_same(both_ways(monkeypatch, program, "e5m6", rounding=rounding))
    monkeypatch.setenv(library.VARIABLE, "1")
    with roundoff.simulate("e5m6", rounding=rounding):
        program()
    assert set(through_python) <= IN_PYTHON


def test_memory_that_overlaps_is_read_before_it_is_written(monkeypatch):
    def program():
        parts = []
        for _ in range(3):
            x = torch.linspace(0.1, 0.9, 2000)
            x[1:].mul_(x[:-1])
            parts.append(x.clone())
            x.mul_(x[3])
            parts.append(x.clone())
            x.mul_(x[0])
            parts.append(x.clone())
            x[700:].add_(x[0])
            parts.append(x)
        return parts

    assert_same(both_ways(monkeypatch, program, "e5m6", rounding="up"))


def test_what_moves_numbers_and_zeros_computes_where_zeros_are_negative(monkeypatch):
    x = torch.linspace(-1, 1, 6)

    def program():
        return [torch.nn.functional.pad(x, (1, 1), value=zero) for zero in (0.0, -0.0) for _ in range(3)]

    found = both_ways(monkeypatch, program, "e4m3fnuz")
    assert_same(found)
    assert not found[0][0][-1].signbit()[[0, -1]].any()  # the format has no negative zero


@each("fmt", ["e5m3", "q3.4", "posit8", "mxfp8_e4m3", "nf4", "e8m20"])
@each("bits", [1, 4, 32])
def test_stochastic_operations_stay_in_cpp_and_draw_the_bits_of_their_number(through_python, fmt, bits):
    x = torch.linspace(0.1, 0.9, 100, dtype=torch.float64 if fmt == "e8m20" else torch.float32)
    with roundoff.simulate(fmt, rounding="stochastic", random_bits=bits, seed=7) as simulation:
        for _ in range(3):
            torch.relu(x)
        through_python.clear()
        for step in (0, 5):
            simulation.step = step
            for number in range(3):
                random = RandomBits(7, (step << 32) + number, bits)
                assert same_bits(torch.relu(x), roundoff.round(x, fmt, rounding="stochastic", random=random))
        assert simulation.draws == 3
    assert "relu" not in through_python


def test_both_sides_count_on(monkeypatch):
    """Operations in C++, through Python, in another simulation, and again in C++."""

    def program():
        x, parts = torch.linspace(0.1, 0.9, 33), []
        for _ in range(3):
            parts += [x * x, torch.relu(x), x.view(3, 11).t().relu(), x.double().exp()]
            with roundoff.simulate("e5m2", rounding="stochastic"):
                parts += [torch.relu(x), x / 3]
            with roundoff.exact():
                parts.append(x * x)
        return parts

    assert_same(both_ways(monkeypatch, program, "e5m4", rounding="stochastic"))


def test_counts_that_cpp_has_forgotten_are_told_again(monkeypatch):
    def program():
        x, parts = torch.linspace(0.1, 0.9, 33), []
        simulations = [roundoff.simulate("e5m3", rounding="stochastic", seed=seed) for seed in range(20)]
        for _ in range(4):
            for simulation in simulations:
                with simulation:
                    parts += [torch.relu(x), torch.relu(x)]
        return parts

    assert_same(both_ways(monkeypatch, program, "e5m4"))


def test_threads_count_each_for_itself(monkeypatch):
    def in_threads():
        x, found = torch.linspace(0.1, 0.9, 33), {}

        def work(number):
            with simulation:
                found[number] = [torch.relu(x) for _ in range(4 + number)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        return found

    found = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        simulation = roundoff.simulate("e5m3", rounding="stochastic")
        found.append((in_threads(), simulation.audit().table))
    assert_same(found)
    assert same_bits(found[0][0][0][3], found[0][0][2][3])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_draws_again(use_reentrant, monkeypatch):
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(), torch.nn.Linear(8, 8))

    def program():
        net, parts = copy.deepcopy(layers), []
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        for _ in range(3):
            y = checkpoint(net, x, use_reentrant=use_reentrant)
            parts += [y.detach(), *torch.autograd.grad(y.sum(), x)] if not use_reentrant else [y.detach()]
            y.sum().backward() if use_reentrant else None
        return [*parts, *(p.grad for p in net.parameters() if p.grad is not None)]

    assert_same(both_ways(monkeypatch, program, "e5m4", rounding="stochastic"))


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_is_traced_and_eager_ones_count_on(monkeypatch):
    x = torch.linspace(0.1, 0.9, 33)

    def program():
        with roundoff.simulate("e5m3", rounding="stochastic") as simulation:
            parts = [torch.relu(x) for _ in range(3)]
            with simulation._runner.without_shortcut():
                parts.append(torch.relu(x))
            simulation.advance(draws=2)
            return [*parts, torch.relu(x), simulation.place]

    assert_same(both_ways(monkeypatch, program, "fp32"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_draws_the_same_bits():
    program = """
import os, torch, roundoff
x = torch.full((400,), 0.1)
with roundoff.simulate("e5m3", rounding="stochastic") as simulation:
    first = [torch.relu(x) for _ in range(3)]
    read, write = os.pipe()
    child = os.fork()
    bits = torch.relu(x).numpy().tobytes()
    if not child:
        os.write(write, bits)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 1 << 16) == bits
"""
    environment = {**os.environ, library.VARIABLE: "1"}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


class OfAUser(torch.Tensor):
    """A class that PyTorch does not ask what its operations do."""


@pytest.mark.parametrize("how", [{}, {"rounding": "up"}])
def test_tensors_of_other_classes_are_computed_as_through_python(how, monkeypatch):
    x = torch.linspace(0.1, 0.9, 333)

    def program():
        mine = x.as_subclass(OfAUser)
        return [y.as_subclass(torch.Tensor) for _ in range(3) for y in (x.sqrt(), mine.sqrt(), mine * mine, x * x)]

    assert_same(both_ways(monkeypatch, program, "e5m6", **how))


def test_counts_of_steps_draw_for_their_exact_sums(monkeypatch):
    """A step that is left whole is computed exactly all the same, and draws."""
    weights = torch.nn.Parameter(torch.linspace(0.1, 0.9, 7))

    def program():
        parameter = torch.nn.Parameter(weights.detach().clone())
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        for _ in range(4):
            parameter.grad = torch.full_like(parameter, 0.3)
            optimizer.step()
        return [parameter.detach(), optimizer.state[parameter]["step"]]

    assert_same(both_ways(monkeypatch, program, "e5m6", rounding="stochastic"))


FAMILIES = ["ternary", "binary", "nf4", "nf4_b5", "fp4_bnb", "lns8_3", "lns5_2", "fp8_e4m3_row", "fp8_e5m2_tensor_pow2"]


@pytest.mark.parametrize("rounding", ["nearest-even", "nearest-away", "stochastic", "up", "toward-zero", "to-odd"])
@each("name", FAMILIES)
def test_formats_of_every_family_have_loops_in_cpp(name, rounding, monkeypatch, through_python):
    x = torch.linspace(-2, 3, 210).view(3, 7, 10)
    x[0, 0, 0], x[1, 2, 3], x[2, 2, :5] = 0.0, float("nan"), 1e-30
    wide = x.double()

    def program():
        for _ in range(2):
            parts = [y for z in (x, wide) for y in (torch.relu(z), z.tanh(), z[0].t().exp())]
        return parts

    policy = roundoff.Policy(name, rounding=rounding)
    assert_same(both_ways(monkeypatch, program, policy))
    monkeypatch.setenv(library.VARIABLE, "1")
    with roundoff.simulate(policy):
        torch.relu(x)
        through_python.clear()
        torch.relu(x)
    assert not through_python


@pytest.mark.parametrize("name", ["int8", "uint8", "int4_asym", "int8_s0.02", "uint8_s0.02_z7"])
def test_integers_with_one_scale_have_loops_in_cpp(name, monkeypatch, through_python):
    x = torch.linspace(-2, 3, 210).view(3, 7, 10)
    broken, weight = x.clone(), torch.linspace(-1, 1, 30).view(10, 3).requires_grad_()
    broken[0, 0, 0], broken[1, 2, 3], broken[2, 2, :5] = -0.0, float("nan"), 1e-30

    def program():
        for _ in range(3):
            parts = [y for z in (x, x.double(), broken, x * 0) for y in (torch.relu(z), z[0].t().tanh(), z[:0] + 1)]
            y = x[0] @ weight
            parts += [y.detach(), *torch.autograd.grad(y.square().mean(), [weight])]
        return parts

    policies = roundoff.Policy(name), roundoff.Policy.mixed_precision(name), roundoff.Policy("fp32", operands=name)
    for policy in policies:
        assert_same(both_ways(monkeypatch, program, policy))
        monkeypatch.setenv(library.VARIABLE, "1")
        with roundoff.simulate(policy):
            (x[0] @ weight).relu()
            through_python.clear()
            (x[0] @ weight).relu()
        assert {"mm", "relu"}.isdisjoint(through_python)


@pytest.mark.parametrize("rounding", ["nearest-even", "up", "stochastic"])
@pytest.mark.parametrize("name", ["fp8_e4m3_b4_square", "fp8_e5m2_b3_square_pow2"])
def test_squares_have_loops_in_cpp(name, rounding, monkeypatch, through_python):
    x = torch.linspace(-2, 3, 210).view(3, 7, 10).sin()
    broken, weight = x.clone(), torch.linspace(-1, 1, 30).view(10, 3).requires_grad_()
    broken[0, 0, 0], broken[1, 2, 3], broken[2, 2, :5] = -0.0, float("nan"), 1e-30

    def program():
        for _ in range(3):
            parts = [y for z in (x, x.double(), broken, x * 0) for y in (torch.relu(z), z[0].t().tanh(), z[:0] + 1)]
            parts += [torch.relu(z) for z in (x[0], x[0, 0], x[0, 0, 0], x[:, ::2], x[:, :, :1])]
            parts += [x @ x.mT, x[0].t() @ x[1], torch.bmm(x.mT, x)]
            y = x[0] @ weight
            parts += [y.detach(), *torch.autograd.grad(y.square().mean(), [weight])]
        return parts

    made = {"rounding": rounding}
    for policy in (roundoff.Policy(name, **made), roundoff.Policy("fp32", operands=name, **made)):
        assert_same(both_ways(monkeypatch, program, policy))
        monkeypatch.setenv(library.VARIABLE, "1")
        with roundoff.simulate(policy):
            (x[0].t() @ x[1]).relu()
            through_python.clear()
            (x[0].t() @ x[1]).relu()
        assert {"mm", "relu"}.isdisjoint(through_python) == (rounding != "stochastic")
