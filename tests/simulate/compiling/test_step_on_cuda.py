"""Compiled steps on a GPU: the bits of the eager simulation there."""

import pytest
import torch
from comparing import numbers, same_bits

import roundoff
from roundoff import simulate
from roundoff.simulate.compiling.population import PopulationStep

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def every_kind(x, y, z):
    """Operations that are written, and operations that are called."""
    m = x.nan_to_num(0.0, 3.0, -3.0)[:1000].view(8, 125)
    return [
        x + y, x - y, x * y, x / y, x / 0.3, 1 - x, -x, x.abs(), x**2, x.reciprocal(), x.floor(), x.ceil(), x.sign(),
        x.abs().sqrt(), torch.exp(x), torch.log(x.abs()), torch.tanh(x), torch.sigmoid(x), torch.relu(x),
        torch.maximum(x, y), torch.minimum(x, y), x.clamp(-2, 3), torch.where(x > y, x, z), x.nan_to_num(),
        torch.add(x, y, alpha=0.1), torch.addcmul(x, y, z, value=0.3), torch.addcdiv(x, y, z), torch.lerp(x, y, 0.1),
        m.sum(1), m.sum(0), m.mean(), m.amax(0), torch.softmax(m, 1), m @ m.mT, torch.cat((x, y)), x[::3] + y[::3],
        x.double() * 0.1, x.isfinite(), *torch._foreach_add([x, y], [y, z], alpha=0.3),
        *torch._foreach_addcdiv([x], [y], [z], [0.1]), torch.nn.functional.layer_norm(m, (125,)),
    ]  # fmt: skip


def step(w, moment, x, y):
    """Forward, backward, an optimizer, in place."""
    leaf = w.detach().requires_grad_()
    h = torch.nn.functional.softplus(x @ leaf.view(20, 2))
    loss = (h - y).square()
    (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.1))
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    w.addcdiv_(moment, moment.abs() + 0.3, value=-0.1)
    return [loss.mean(), torch.exp(-h).sum(0), h.amax()]


def arguments(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).cuda() for shape in ((40,), (40,), (33, 20), (33, 2))]


FORMATS = ["e5m10", "bf16", "e5m2", "e8m8", "fp8_e4m3"]


@pytest.mark.parametrize("name", [None, *FORMATS], ids=str)
def test_every_kind_of_operation(name):
    operands = [numbers(seed, 1003).cuda() for seed in range(3)]
    mine = simulate(name) if name else None
    program = roundoff.compile(every_kind, mine)
    found, expected = program(*operands), program.run_eagerly(*operands)
    assert program.reason is None
    assert not [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b)]


@pytest.mark.parametrize("settings", [{}, {"rounding": "stochastic", "seed": 3}, {"rounding": "toward-zero"}], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_training_step(name, settings):
    eager = simulate(name, **settings)
    program = roundoff.compile(step, simulate(name, **settings))
    mine, theirs = arguments(), arguments()
    for _ in range(3):
        found = program(*mine)
        with eager:
            expected = step(*theirs)
        assert all(map(same_bits, [*found, *mine], [*expected, *theirs]))
    assert program.reason is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_module_and_its_optimizer(kind, foreach):
    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
        optimizer = kind(model.parameters(), lr=0.05, foreach=foreach)

        def update(x, y):
            optimizer.zero_grad()
            loss = (model(x).squeeze(1) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, update

    x, y = torch.randn(64, 4, device="cuda"), torch.randn(64, device="cuda")
    (mine, update), (theirs, as_eager) = made(), made()
    program, simulation = roundoff.compile(update, simulate("e5m10")), simulate("e5m10")
    for _ in range(5):
        found = program(x, y)
        with simulation:
            expected = as_eager(x, y)
        assert same_bits(found, expected.detach())
    assert program.reason is None
    assert all(map(same_bits, mine.parameters(), theirs.parameters()))


def test_a_population_of_four_formats():
    names = ["e5m10", "e5m7", "e5m2", "e4m3"]
    members = [arguments(seed) for seed in range(4)]
    stacked = [torch.stack(own) for own in zip(*members, strict=True)]
    population = PopulationStep(step, [simulate(name) for name in names])
    for _ in range(3):
        found = population(*stacked)
        for i, name in enumerate(names):
            with simulate(name):
                expected = step(*members[i])
            assert all(same_bits(a[i], b) for a, b in zip([*found, *stacked], [*expected, *members[i]], strict=True))
