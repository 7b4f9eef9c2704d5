"""The report names the cause of values that are not finite, also beside masks that overflow and harm nothing."""

import math

import pytest
import torch
from each import each

from roundoff import simulate

pytestmark = pytest.mark.filterwarnings("ignore:the integer 1e")

BLOCKED = torch.arange(8) >= 4
MASKS = {
    "no mask": lambda z: z,
    "-inf": lambda z: z.masked_fill(BLOCKED, -math.inf),
    "the lowest number of the dtype": lambda z: z.masked_fill(BLOCKED, torch.finfo(z.dtype).min),
    "-1e9 added": lambda z: z + BLOCKED.to(z.dtype) * -1e9,
    "subtracted": lambda z: z - 1e9 * (1.0 - (~BLOCKED).to(z.dtype)),
    "a tensor of -1e9": lambda z: torch.where(BLOCKED, torch.tensor(-1e9), z),
    "a number": lambda z: torch.where(BLOCKED, z, -1e9),
    "filled": lambda z: torch.full_like(z, -1e9).where(BLOCKED, z),
}


def weighted(x, mask):
    """A weighted mean in which the mask leaves out half of the values, and does no harm."""
    return (mask(x * 1e-3).softmax(-1) * x).sum(-1)


def parameter(value=0.5):
    return torch.nn.Parameter(torch.full((8,), value))


def step(p, loss, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        loss(p).backward()
        optimizer.step()


def adams_eps(mask):
    p = parameter()
    step(p, lambda p: weighted(p, mask) * 0 + (p[:4] * 1e-4).sum(), torch.optim.Adam([p]))


def moments_of_ones_own(mask):
    p, moment = parameter(), torch.zeros(8)
    (weighted(p, mask) * 1e-5).backward()
    with torch.no_grad():
        moment.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
        p.sub_(0.1 * p.grad / moment.sqrt())


def sgd(loss):
    p = parameter()
    step(p, loss, torch.optim.SGD([p], lr=0.1))


def softplus(mask):
    sgd(lambda p: (1 + (p * 30).exp()).log().sum() + weighted(p, mask))


def normalised_to_zero(mask):
    sgd(lambda p: ((p - p.mean()) / p.std()).sum() + weighted(p, mask))


def logarithm(mask):
    sgd(lambda p: ((p - 0.5).log() * (p - 0.5)).sum() + weighted(p, mask))


def root(mask):
    sgd(lambda p: (p - 0.5).sqrt().sum() + weighted(p, mask))


def square(mask):
    sgd(lambda p: (p * 1000).square().mean().sqrt() + weighted(p, mask))


def product(mask):
    weights = torch.full((8, 8), 250.0)
    sgd(lambda p: (weights @ (p * 250)).tanh().sum() / (weights @ (p * 250)).sum() + weighted(p, mask))


def softmax_without_maximum(mask):
    def loss(p):
        powers = (p * 40).exp()
        return (powers / powers.sum()).sum() + weighted(p, mask)

    sgd(loss)


def what_is_read(mask):
    x = torch.full((8,), 300.0)
    assert weighted(x, mask).item() < 400
    (x * x).sum().item()


def half_precision(mask):
    p = torch.nn.Parameter(parameter().data.half())
    step(p, lambda p: (p * 60000).sum() * 0 + weighted(p, mask), torch.optim.SGD([p], lr=0.1))


CAUSES = {
    adams_eps: ("optimizer", "addcdiv_"), moments_of_ones_own: ("forward", "div"), softplus: ("forward", "exp"),
    normalised_to_zero: ("backward", "div"), logarithm: ("backward", "div"), root: ("backward", "div"),
    square: ("forward", "pow"), product: ("forward", "mv"), softmax_without_maximum: ("forward", "exp"),
    what_is_read: ("forward", "mul"), half_precision: ("forward", "sum"),
}  # fmt: skip


@each(("program", "mask"), [(program, mask) for program in CAUSES for mask in MASKS])
def test_the_cause_is_named_and_no_mask(program, mask):
    with simulate("e5m10", observe=True) as simulation:
        program(MASKS[mask])
    report = simulation.report()
    assert (report.birth.role, report.birth.operation) == CAUSES[program], report.birth
    in_range = program is half_precision and mask == "the lowest number of the dtype"
    assert bool(report.given) == (mask != "no mask" and not in_range)


@each(("mask", "optimizer"), [(mask, optimizer) for mask in MASKS for optimizer in ("Adam", "SGD")])
def test_a_program_that_trains_beside_a_mask_has_no_birth(mask, optimizer):
    p = parameter()
    with simulate("e5m10", observe=True) as simulation:
        options = {"eps": 1e-3} if optimizer == "Adam" else {}
        step(p, lambda p: weighted(p, MASKS[mask]), getattr(torch.optim, optimizer)([p], lr=0.1, **options))
        assert weighted(p, MASKS[mask]).isfinite().item()
    report = simulation.report()
    assert report.birth is None
    assert ("as passed in by the program" in str(report)) == (mask != "no mask")


def test_a_mask_that_does_harm_is_the_birth():
    def loss(mask):
        return lambda p: (p.masked_fill(torch.ones(8).bool(), mask).softmax(0) * p).sum()

    p = parameter()
    with simulate("e5m10", observe=True) as simulation:
        step(p, loss(-1e9), torch.optim.SGD([p], lr=0.1))
    assert p.isnan().all()
    assert (simulation.report().birth.operation, simulation.report().birth.what) == ("masked_fill", "overflow")

    p = parameter()
    with simulate("e5m10", observe=True) as simulation:
        (p.detach() * 1000).square()  # leads nowhere
        step(p, loss(-math.inf), torch.optim.SGD([p], lr=0.1))
    assert simulation.report().birth is None
    assert simulation.report().given[0].what == "-inf"


def test_a_computed_overflow_that_leads_nowhere_is_not_the_birth():
    p = parameter()
    with simulate("e5m10", observe=True) as simulation:
        assert (1 / (1 + (p.detach() * 30).exp())).sum().item() == 0
        assert simulation.report().birth.operation == "exp"  # so far
        step(p, lambda p: (p - 0.5).sqrt().sum(), torch.optim.SGD([p], lr=0.1))
    assert simulation.report().birth.role == "backward"
    again = simulate("e5m10", observe=True)
    again.load_observer_state(simulation.observer_state())
    assert again.report().birth == simulation.report().birth
    with again:
        (torch.full((1,), 300.0) * 300).sum().item()
    assert again.report().birth == simulation.report().birth
