"""What a compiled step returns and leaves shares memory where that of the eager step does, and nowhere else."""

import numpy as np
import pytest
import torch

import roundoff
from roundoff import FormatError, simulate


def memory(tensors):
    """Numbers the memory of tensors in the order in which it comes."""
    numbers = {}
    return [numbers.setdefault(x.untyped_storage().data_ptr(), len(numbers)) for x in tensors]


def assert_same(found, expected):
    assert memory(found) == memory(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def step(x, count):
    """Copies of arguments and of results, what is computed twice, and views of all of them."""
    before, counted = x.clone(), count.clone()
    rows, columns = x[1:].clone(), x.clone()[:, 1:]
    x.mul_(1.1)
    count.add_(1)
    y = x / 3
    parts, (largest, places) = x.clone().split(1), (x / 7).max(0)
    return (
        before, counted, before.t(), counted[:1],
        rows, columns, x.contiguous(), x.clone()[1:], parts[0], parts[1].view(-1),
        y, y.clone(), y.t(), y.t().clone().t(), y.clone()[:, 1:], y[:, 1:], torch.cat([y]), torch.stack([y])[0],
        largest, places, places.clone(), x.amax(0), x.amax(0), x.amax(0)[1:], torch.zeros(3), torch.zeros(3),
    )  # fmt: skip


@pytest.mark.parametrize("number_format", ["fp32", "e5m6"])
def test_results(number_format):
    """In fp32 nothing is rounded, so that copies are all that stands between arguments and results."""
    x, count = torch.linspace(-1, 1.3, 12).view(3, 4), torch.arange(3)
    found = [x, count, *roundoff.compile(step, simulate(number_format))(x, count)]
    x, count = torch.linspace(-1, 1.3, 12).view(3, 4), torch.arange(3)
    with simulate(number_format):
        expected = [x, count, *step(x, count)]
    assert_same(found, expected)


def test_gradients_that_are_equal(uncompiled):
    """Who clips them in place, as ``clip_grad_norm_`` does, would clip one memory twice."""
    found, expected = [], []
    for given in (found, expected):
        layers = [torch.nn.Linear(3, 2) for _ in range(2)]
        parameters = [p for layer in layers for p in layer.parameters()]
        for p in parameters:
            p.data.fill_(0.3)

        def update(x, layers=layers):
            loss = (layers[0](x) + layers[1](x)).square().mean()
            loss.backward()
            return loss

        simulation = simulate("e5m6")
        compiled = roundoff.compile(update, simulation)
        for i in range(2):
            x = torch.linspace(-1, 1.3, 12).view(4, 3) + i
            if given is found:
                given.append(compiled(x))
            else:
                with simulation:
                    given.append(update(x).detach())
            torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        given += [p.grad for p in parameters]
    assert_same(found, expected)


def test_what_is_left_around_the_step(uncompiled):
    now, before, constant = torch.zeros(3), torch.zeros(3), torch.tensor([0.1, 0.2, 0.3])
    kept = {"now": now, "before": before, "constant": constant}

    def move(x):
        kept["before"] = kept["now"].clone()
        kept["now"].add_(x)
        kept["constant"] = constant.clone()
        return kept["now"] * 2

    program = roundoff.compile(move, simulate("fp32"))
    for i in range(1, 4):
        program(torch.ones(3))
        assert kept["before"].tolist() == [i - 1] * 3
        assert kept["now"].tolist() == [i] * 3
        kept["constant"].mul_(2)
    assert torch.equal(constant, torch.tensor([0.1, 0.2, 0.3]))


def test_two_tensors_that_change_places():
    a, b, square = torch.arange(3.0), torch.arange(3.0) + 5, torch.arange(9.0).view(3, 3)
    expected = [b.clone(), a.clone(), square.t().contiguous()]

    def swap(x):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        square.copy_(square.t().clone())
        return x + 1

    assert torch.equal(roundoff.compile(swap, simulate("fp32"))(torch.ones(3)), torch.full((3,), 2.0))
    assert_same([a, b, square], expected)


ARRAY = np.float32([0.1, 0.2, 0.3])
FROM_ARRAYS = {
    "from_numpy": lambda: torch.from_numpy(ARRAY),
    "as_tensor": lambda: torch.as_tensor(ARRAY),
    "as_tensor in float64": lambda: torch.as_tensor(ARRAY, dtype=torch.float64).float(),
    "tensor": lambda: torch.tensor(ARRAY),
}


@pytest.mark.parametrize("make", FROM_ARRAYS.values(), ids=FROM_ARRAYS)
@pytest.mark.parametrize("rounding", ["nearest-even", "stochastic"])
def test_arrays_are_rounded_where_the_eager_step_rounds_them(make, rounding, uncompiled):
    """Memory of an array is left as it is; what PyTorch copies is its own, and rounded."""
    x = torch.linspace(-1, 1.3, 3)

    def step(x):
        return make() * 1.9, x * 3 + make(), x / 7

    with simulate("e5m4", rounding=rounding) as simulation:
        expected = step(x)
    mine = simulate("e5m4", rounding=rounding)
    assert_same(roundoff.compile(step, mine)(x), expected)
    assert mine.draws == simulation.draws


def test_a_step_that_writes_to_an_array_is_refused(uncompiled):
    array = np.zeros(3)

    def step(x):
        torch.from_numpy(array)[1:].add_(x)
        return x * 2

    with pytest.raises(FormatError, match=r"writes to memory that is not PyTorch's \(a NumPy array, a buffer\)"):
        roundoff.compile(step, simulate("e5m4"))(torch.ones(2, dtype=torch.float64))
    assert not array.any()
