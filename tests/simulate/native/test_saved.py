"""What autograd saves, and whole numbers that C++ makes: alike on both sides, and known to both."""

import gc

import pytest
import torch
from both_ways import assert_same, both_ways
from comparing import same_bits
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff

pytestmark = [pytest.mark.usefixtures("asked_for"), pytest.mark.filterwarnings("ignore")]


def test_what_autograd_saves_and_begins_with_does_not_come_through_python(through_python):
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.linspace(-1, 1, 40).view(8, 5)

    def step():
        optimizer.zero_grad()
        net(x).sigmoid().square().mean().backward()
        optimizer.step()

    with roundoff.simulate("e5m10"):
        step()
        assert {"detach", "ones_like"} <= set(through_python)
        step()
        through_python.clear()
        step()
    assert not through_python


def test_saved_results_are_what_they_are_without_a_mode():
    x = torch.linspace(-1, 1, 6).requires_grad_()
    with roundoff.simulate("e5m10"):
        for _ in range(3):
            y = x.tanh()
            saved = y.grad_fn._saved_result
            assert saved.data_ptr() == y.data_ptr()
            assert saved.grad_fn is y.grad_fn
            z = x.sigmoid()
            z.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.sum().backward()
            (slope,) = torch.autograd.grad(x.tanh().sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x)
            assert bend.isfinite().all()


def test_what_autograd_saves_is_counted_once(monkeypatch):
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    x, counts = torch.linspace(-1, 1, 6).requires_grad_(), []

    def program():
        parts = []
        for _ in range(3):
            y = x.tanh().exp()
            with roundoff.simulate("e5m4"):
                y = y.tanh().exp()
            with Seeing():
                y = y.tanh().exp()
            with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, torch.Tensor.neg):
                y = y.tanh().exp()
            parts += [y, *torch.autograd.grad(y.sum(), x)]
        counts.append(list(seen))
        seen.clear()
        return parts

    seen = []
    assert_same(both_ways(monkeypatch, program, "e5m6"))
    assert counts[0] == counts[1]
    assert "detach" in counts[0]


def making():
    """Whole numbers by every operation that makes some of its numbers alone, counted on, overwritten, and as data."""
    x, parts = torch.linspace(0.1, 0.9, 6), []
    single = torch.tensor(0.3)
    for _ in range(3):
        made = [torch.ones(3), torch.zeros(3), torch.ones_like(x), torch.zeros_like(x), x.new_ones(2), x.new_zeros(2)]
        made += [torch.full((), 4099.0), torch.full((3,), 4099.0), torch.full((3,), -1.0), torch.full((2,), 0.3)]
        made += [torch.full_like(single, 4099.0), torch.full_like(x, 4099.0), x.new_full((2,), 1), torch.eye(3)]
        made += [
            torch.arange(3.0),
            torch.arange(0.0, 1.0, 0.3),
            torch.arange(5000.0, 5003.0),
            torch.scalar_tensor(4099.0),
        ]
        made += [torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64), torch.full((2,), 1e30)]
        made += [x.clone().fill_(1), x.clone().fill_(4099.0), single.clone().fill_(4099.0), x.clone().zero_()]
        made += [torch.full((), True, dtype=torch.float32), torch.full((), float("nan")), torch.ones(0)]
        half = x.clone()
        half[:3].fill_(1)  # which leaves data in the same memory
        made.append(half)
        for y in made:
            counted = y + 4098
            y.add_(1)
            again = y + 4098 if y.is_floating_point() else y
            if y.is_floating_point() and y.numel():
                y[:1].copy_(x[: y.numel()][:1]) if y.dim() == 1 else y.fill_(0.3)
            parts += [counted, again, y + 4098, y.cumsum(0) if y.dim() else y]
    return parts


def test_whole_numbers_are_made_in_cpp_as_in_python(monkeypatch):
    assert_same(both_ways(monkeypatch, making, "e5m6"))


@pytest.mark.parametrize("rounding", ["stochastic", "up"])
def test_whole_numbers_are_made_in_other_modes(rounding, monkeypatch):
    assert_same(both_ways(monkeypatch, making, "e5m6", rounding=rounding))


def test_whole_numbers_are_left_whole_by_the_other_side():
    for in_cpp in (True, False):
        with roundoff.simulate("e5m6") as simulation:
            for _ in range(3):
                torch.ones(3), torch.full((), 0.3)
            if in_cpp:
                count = torch.ones(3)
            else:
                with simulation._runner.without_shortcut():
                    count = torch.ones(3)
            assert (count + 4098).tolist() == [4099.0] * 3
            count[:1] = 0.3  # data, told to the C++
            assert (count + 4098).tolist() != [4099.0] * 3


def test_memory_that_held_whole_numbers_is_not_taken_for_it_when_it_is_gone(monkeypatch):
    def program():
        parts = []
        for number in range(6000):
            x = torch.ones(3)
            del x
            y = torch.linspace(0.1, 0.3, 3) * 100
            if number % 100 == 0:
                parts.append(y + 4098)
        gc.collect()
        return parts

    (native, _), (python, _) = both_ways(monkeypatch, program, "e5m6")
    assert all(map(same_bits, native, python))


def test_ones_that_a_backward_pass_computes_are_data(monkeypatch):
    class Ones(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x * 2

        @staticmethod
        def backward(_context, gradient):
            return torch.ones_like(gradient) * 4099 + torch.full((6,), 1.0)

    def program():
        x = torch.linspace(0.1, 0.9, 6).requires_grad_()
        return [torch.autograd.grad(Ones.apply(x).sum(), x)[0] for _ in range(3)]

    assert_same(both_ways(monkeypatch, program, "e5m6"))
