"""Numbers that programs read or ask about, and what is made of weights and random numbers, in C++ as through Python."""

import math
import warnings

import pytest
import torch
from both_ways import assert_same, both_ways

import roundoff
from roundoff.simulate.native import library
from roundoff.simulate.presence import user_code

pytestmark = [pytest.mark.usefixtures("asked_for"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def nothing_read(monkeypatch):
    """No test before has read a number that was not finite, as far as the C++ is concerned."""
    loaded = library.library()
    if library._reads_are_told:
        pytest.skip("a test of this process has read a number that was not finite")
    return loaded


def test_in_few_bits_numbers_are_read_without_python_unless_one_has_changed_visibly(monkeypatch):
    said, given = [], (torch.full((3,), 0.3), torch.full((3,), 1.37), torch.full((3,), 0.5))
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        monkeypatch.setattr(user_code, "_warned", set())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with roundoff.simulate("e8m3"):
                for x in given:
                    mean = x.mean()
                    twice = mean * 2
                    same = x[0] * 1
                    mean.item()
                    twice.item()
                    same.item()
                    mean.fill_(4.0)
                    mean.item()
                    twice.add_(mean)
                    twice.item()
                    del mean, twice
                    for _ in range(3):
                        (torch.ones(()) + torch.ones(())).item()
        said.append([(str(w.message), w.lineno) for w in caught if issubclass(w.category, roundoff.SimulationWarning)])
    assert said[0] == said[1]
    assert len(said[0]) >= 3


@pytest.mark.usefixtures("nothing_read")
def test_in_few_bits_numbers_do_not_come_through_python(through_python):
    with roundoff.simulate("e8m3"):
        for _ in range(3):
            through_python.clear()
            x = torch.full((3,), 0.5)
            x[0].item()
            (x * 2 == 3).all().item()
            x.isfinite().all().item()
    assert {"_local_scalar_dense", "eq", "ne"}.isdisjoint(through_python)


@pytest.mark.parametrize(
    "ask",
    [
        torch.isfinite,
        torch.isnan,
        torch.isinf,
        torch.isposinf,
        torch.isneginf,
        lambda x: x == x,  # noqa: PLR0124
        lambda x: x != x,  # noqa: PLR0124
        lambda x: x.abs() == math.inf,
        lambda x: x == torch.ones(3),
    ],
)
def test_what_is_asked_of_numbers_is_told_as_ever(ask, monkeypatch):
    told = []
    for asked in "10":
        monkeypatch.setenv(library.VARIABLE, asked)
        with roundoff.simulate("e5m10") as simulation:
            for number in (1.0, 2.0, float("nan"), float("inf"), 1.0, float("-inf")):
                ask(torch.tensor([1.0, number, 3.0]))
                told.append(str(simulation.last_read).partition(" was read")[0])
    assert told[:6] == told[6:]


_RULES = tuple(
    roundoff.Rule("*mm", role=role, format=fmt) for role, fmt in (("weights", "e5m4"), ("activations", "e5m7"))
)


def test_what_is_made_of_weights_data_and_noise_is_known_as_in_python(monkeypatch):
    def program():
        layer = torch.nn.Linear(4, 4)  # its weights are drawn in the simulation
        noisy = torch.nn.Parameter(torch.randn(4, 4))
        x, parts = torch.linspace(-1, 1, 16).view(4, 4), []
        for _ in range(3):
            noise = torch.randn(4, 4)
            weight = noisy + 0.1 * noise  # a weight: with noise of its shape
            data = x + noise  # no weight, as it is made of data
            kept = torch.empty(4, 4).copy_(noise)
            kept = layer.weight * kept
            over = torch.randn(4, 4)
            over.mul_(x)  # data, though random numbers were there
            sums = torch.nn.functional.layer_norm(layer(x), (4,), layer.bias, layer.bias)
            y = [data @ weight, x @ kept, x @ (over * layer.weight), sums @ layer.weight, (sums * layer.weight) @ x]
            y.append(torch.nn.functional.dropout(x, 0.5) @ layer.weight.t())
            sum(part.square().sum() for part in y).backward()
            parts += [*y, layer.weight.grad.clone(), noisy.grad.clone()]
        return parts

    found = both_ways(monkeypatch, program, roundoff.Policy("fp32", rules=_RULES))
    assert_same(found)


def test_models_drawn_in_a_simulation_stay_in_cpp(through_python):
    with roundoff.simulate(roundoff.Policy.fp8("rowwise")):
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
        x = torch.randn(6, 4)
        for _ in range(3):
            through_python.clear()
            net(x * 0.5 + 1).square().sum().backward()
    assert {"t", "native_layer_norm", "addmm", "mm"}.isdisjoint(through_python)
