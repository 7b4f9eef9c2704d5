"""Simulations of equal arithmetic: what one has described to the C++, the others run without Python from the start."""

import gc
import os
import threading
from collections import Counter

import pytest
import torch
from comparing import same_bits

import roundoff
from roundoff.simulate.native import descriptions, library
from roundoff.simulate.native.stand_ins import Exact

pytestmark = pytest.mark.usefixtures("asked_for")


def step():
    """Weights and gradients behind a step of training."""
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    for p in net.parameters():  # not by chance, which threads share
        p.data = torch.linspace(-0.7, 0.6, p.numel()).view(p.shape)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.linspace(-1, 1, 20).view(4, 5)).square().mean().backward()
    optimizer.step()
    return [*net.parameters(), *(p.grad for p in net.parameters())]


def in_new(*args, program=step, **how):
    """What a program returns in a simulation of its own, and its audit."""
    with roundoff.simulate(*args, **how) as simulation:
        found = program()
    return [x.detach() for x in found], simulation.audit().table.to_dict("list")


def in_python(monkeypatch, *args, **how):
    with monkeypatch.context() as patch:
        patch.setenv(library.VARIABLE, "0")
        return in_new(*args, **how)


def assert_same(found, expected):
    assert all(same_bits(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert found[1] == expected[1]


RULES = [
    roundoff.Rule(format="e5m2", operation="tanh"),
    roundoff.Rule(format="e5m4", module="2", role="backward"),
    roundoff.Rule(format="e4m3", role="optimizer"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "policy",
    [
        roundoff.Policy("e5m7"),
        roundoff.Policy("e5m7", rounding="stochastic"),
        roundoff.Policy("e5m7", operands="e4m3"),
        roundoff.Policy("e5m7", rules=RULES),
    ],
    ids=["plain", "stochastic", "operands", "rules"],
)
def test_the_second_simulation_finds_all_described(policy, through_python, monkeypatch):
    expected = in_python(monkeypatch, policy)
    with roundoff.simulate(policy):
        step()
        through_python.clear()
        step()
    usual = Counter(through_python)
    for _ in range(2):
        through_python.clear()
        assert_same(in_new(policy), expected)
        assert not Counter(through_python) - usual


def test_calls_of_a_decorated_function(through_python):
    @roundoff.simulate("e5m7")
    def called(x):
        return (x * 1.1).exp() / 3

    x = torch.linspace(-1, 1, 7)
    first = called(x)
    assert through_python
    through_python.clear()
    assert same_bits(called(x), first)
    assert not through_python


def test_other_arithmetic_is_described_anew(monkeypatch):
    """In turn, so that each finds what the one before has described."""
    policies = [
        {"format": "e5m7"}, {"format": "e5m6"}, {"format": "e5m7", "rounding": "toward-zero"},
        {"format": "e5m7", "operands": "e4m3"}, {"format": "e5m7", "scalars": "once"},
        {"format": "e5m7", "whole": "rounded"}, {"format": "e5m7", "granularity": "primitive"},
        {"format": "e5m7", "rules": [roundoff.Rule(format="e5m2", operation="tanh")]},
    ]  # fmt: skip
    expected = [in_python(monkeypatch, roundoff.Policy(**policy)) for policy in policies]
    assert sum(x == expected[0][1] for _, x in expected) < len(expected)
    for _ in range(2):
        for policy, one in zip(policies, expected, strict=True):
            assert_same(in_new(roundoff.Policy(**policy)), one)


def test_modules_have_the_same_numbers_in_all(monkeypatch):
    """The modules of another program come in another order."""
    policy = roundoff.Policy("fp32", rules=[roundoff.Rule(format="e5m2", module="a")])

    x = torch.linspace(0.1, 0.9, 5)
    for names in ("ab", "ba", "cab"):
        net = torch.nn.ModuleDict({name: torch.nn.Tanh() for name in names})
        how = {"program": lambda net=net: [layer(x) for layer in net.values()], "root": net}
        assert_same(in_new(policy, **how), in_python(monkeypatch, policy, **how))


@pytest.mark.parametrize("rounding", ["nearest-even", "toward-zero"])
def test_loops_that_are_compiled_for_one_are_the_others_too(rounding, through_python):
    """The first simulation adds tensors alone, the second one is the first that adds a number."""
    policy = roundoff.Policy("e5m7", rounding=rounding, scalars="once")
    x = torch.linspace(-1, 1, 7)
    in_new(policy, program=lambda: [x + x])
    results = [in_new(policy, program=lambda: [x + 0.3])[0][0] for _ in range(2)]
    through_python.clear()
    results.append(in_new(policy, program=lambda: [x + 0.3])[0][0])
    assert not through_python
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_what_a_description_is_made_of_is_kept():
    """The first simulation is gone, and others have its memory."""
    policy = roundoff.Policy("e8m7", rounding="toward-zero")
    x, y = torch.tensor([1.0]), torch.tensor([-(2.0**-30)])
    in_new(policy, program=lambda: [x + y])
    gc.collect()
    written_over = [type(Exact("add", of_lists=False, in_place=False).ways)() for _ in range(1000)]
    assert in_new(policy, program=lambda: [x + y])[0][0] == 1 - 2.0**-8
    assert written_over


def test_formats_without_a_hash_share_nothing(through_python):
    class Halves(roundoff.Format):
        carrier, bits, elementwise, native = torch.float32, 8, True, False
        __hash__ = None

        def __eq__(self, other):
            return type(other) is type(self)

        def __str__(self):
            return "halves"

        def fits_in(self, _dtype):
            return True

        def round_into(self, x, target, *_):
            target.copy_((2 * x).round() / 2)

    policy = roundoff.Policy("fp32", operands=Halves())
    for _ in range(2):
        through_python.clear()
        (found,), _ = in_new(policy, program=lambda: [torch.full((2, 2), 0.8) @ torch.ones(2, 2)])
        assert (found == 2).all()
        assert "mm" in through_python


def test_it_lasts_as_long_as_a_simulation(monkeypatch):
    expected = in_python(monkeypatch, "e5m9")
    in_new("e5m9")
    with roundoff.simulate("e5m9") as simulation:
        found = step()
        descriptions.shared.cache_clear()
        gc.collect()
        again = step()
    assert all(same_bits(a.detach(), b) for of in (found, again) for a, b in zip(of, expected[0], strict=True))
    assert simulation.audit().table["calls"].sum() == 2 * sum(expected[1]["calls"])


def test_what_is_kept_in_mind_does_not_grow():
    for bits in range(1, 10):
        for exponent in range(3, 8):
            in_new(f"e{exponent}m{bits}", program=lambda: [torch.ones(2) * 1.1])
    assert descriptions.shared.cache_info().currsize <= 32


def test_nor_does_it_where_a_program_names_new_modules(monkeypatch):
    monkeypatch.setattr(descriptions, "_MOST", 20)
    policy = roundoff.Policy("fp32", rules=[roundoff.Rule(format="e5m2", operation="tanh", module="[0-9]*")])
    x, kept = torch.ones(2), set()
    for number in range(60):
        net = torch.nn.ModuleDict({f"{number}": torch.nn.Tanh()})
        with roundoff.simulate(policy, root=net) as simulation:
            assert (net[f"{number}"](x) == 0.75).all()
        assert simulation.audit().table["module"].str.endswith(f"{number}").any()
        kept.add(len(simulation._runner._shortcut._descriptions._described))
    assert max(kept) < 30


def test_threads_that_begin_at_once(monkeypatch):
    """Each describes what the others have not."""
    expected, found = in_python(monkeypatch, "e5m7"), []
    start = threading.Barrier(4)

    def work():
        start.wait()
        found.extend(in_new("e5m7") for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for one in found:
        assert_same(one, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_finds_them(monkeypatch):
    expected = in_python(monkeypatch, "e5m7")
    in_new("e5m7")
    child = os.fork()
    if not child:
        try:
            assert_same(in_new("e5m7"), expected)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
