"""Populations: the bits that every member has alone."""

import pytest
import torch
from comparing import numbers, same_bits
from torch.utils._pytree import tree_map

from roundoff import FormatError, Policy, Rule, simulate
from roundoff.simulate.compiling.population import PopulationStep
from roundoff.simulate.compiling.step import CompiledStep
from roundoff.simulate.dispatch.requests import store


def stack(members):
    return tree_map(lambda *tensors: torch.stack(tensors), *members)


def operations(x, y, row, number, exact, index):
    """Uses every rule at least once; x, y (6, 35); row (35,); a 0-d number of each float type; an index (1, 35)."""
    clean = x.nan_to_num(0.0, 3.0, -3.0)
    three = clean.reshape(2, 3, 35)
    weights = y.nan_to_num(0.0, 3.0, -3.0).reshape(2, 35, 3)
    low, high = torch.aminmax(clean)
    values, places = y.min(dim=0)
    return [
        x * row, row - x, x * number, number * exact, exact * number, exact + row.to(exact), x * exact, number + exact,
        torch.where(x > number, x, exact), torch.where(number > 0, row, number), x.addcmul(y, row, value=0.3),
        torch.addcmul(number, number, number), torch.exp(x), torch.tanh(row), torch.hypot(x, row), row**2,
        x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.mean(), x.mean(1), number.sum(), x.amax(), x.amin(0), low, high,
        values, places, clean.argmax(), clean.view(-1).argmax(), number.argmax(),
        three @ weights, torch.baddbmm(row[:3].view(1, 1, 3), three, weights), three.mT @ three, clean @ clean.mT,
        torch.addmm(row[:6], clean, clean.mT), row.view(5, 7), x.t(), x[1:5:2], x[-1], x[..., 2], row.unsqueeze(-1),
        torch.cat((x, y), dim=1), torch.cat((row, torch.zeros(2))), torch.stack((row, row)), *x.split(4),
        *x.chunk(5, dim=-1), *torch.split(row, [30, 5]), row.expand(2, 35), x.expand(2, -1, -1), y.gather(0, index),
        torch.zeros(6, 35).scatter(0, index, x), torch.cumsum(clean, 1), torch.softmax(clean, 1), x.flip(0),
        torch.ones(3), torch.arange(35) * row, x.to(exact), x.isfinite(), number.to(torch.int64) + index,
        torch.nn.functional.pad(x, (1, 1)), x.clamp(-2, 3), torch.relu(x), torch.sigmoid(row), torch.log1p(x.abs()),
    ]  # fmt: skip


def arguments(member, wide):
    x, y, row = numbers(3 * member, 6, 35), numbers(3 * member + 1, 6, 35), numbers(3 * member + 2, 35)
    number = torch.tensor(0.7 + member)
    return [x, y, row, number, number.to(wide) / 3, torch.arange(member, member + 35).view(1, 35) % 6]


@pytest.mark.parametrize("traced", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["traced", "compiled"])
@pytest.mark.parametrize("names", [None, ("e5m10", "e5m2", "e4m3")], ids=str)
def test_every_operation(names, traced, request):
    if traced:
        request.getfixturevalue("uncompiled")
    simulations = [simulate(name) if name else None for name in names or [None] * 3]
    wide = torch.float32 if names else torch.float64  # plain programs may mix them
    mine = [arguments(i, wide) for i in range(3)]
    found = PopulationStep(operations, simulations)(*stack(mine))
    for i, simulation in enumerate(simulations):
        expected = CompiledStep(operations, simulation).run_eagerly(*arguments(i, wide))
        wrong = [k for k, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b[i])]
        assert not wrong


def test_a_step_of_several_types():
    step = PopulationStep(lambda x: x.double() * 0.1, [simulate("e5m10"), simulate("e5m2")])
    with pytest.raises(FormatError, match=r"computes with torch.float64"):
        step(torch.ones(2, 3))


def train(w, moment, x, y, rate):
    """Forward, backward, an optimizer, in place."""
    leaf = w.detach().requires_grad_()
    h = torch.nn.functional.softplus(x @ leaf.view(20, 2))
    loss = (h - y).square()
    (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.1))
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    w.sub_(moment / (moment.abs() + 0.3) * rate)
    return {"loss": loss.mean(), "parts": [torch.exp(-h).sum(0), h.amax()]}


def member(i, dtype=torch.float32):
    generator = torch.Generator().manual_seed(i)
    shapes = ((40,), (40,), (33, 20), (33, 2))
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [*drawn, torch.tensor(0.05 * (i + 1), dtype=dtype)]


def assert_same_training(policies, dtype):
    simulations = [simulate(policy) for policy in policies]
    step = PopulationStep(train, simulations)
    alone = [member(i, dtype) for i in range(len(policies))]
    together = stack(alone)
    for _ in range(3):
        found = step(*together)
        for i, simulation in enumerate(simulations):
            with simulation:
                expected = train(*alone[i])
            assert same_bits(expected["loss"], found["loss"][i])
            assert all(same_bits(a, b[i]) for a, b in zip(expected["parts"], found["parts"], strict=True))
            assert all(same_bits(a, b[i]) for a, b in zip(alone[i], together, strict=True))


@pytest.mark.parametrize(
    ("policies", "dtype"),
    [
        (["e5m10", "e5m2", "e6m9"], torch.float32),
        pytest.param(["bf16", "e8m3", "e8m5"], torch.float32, marks=pytest.mark.slow),
        pytest.param(["e11m30", "e11m40"], torch.float64, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_in_formats_of_every_kind_of_loop(policies, dtype):
    assert_same_training(policies, dtype)


@pytest.mark.parametrize(
    ("policies", "dtype"),
    [
        ([Policy(name).with_rules(Rule("mm", format="e5m2")) for name in ("e5m9", "e5m4")], torch.float32),
        (["int8", "int8"], torch.float32),
        (["bf16", "e8m3", "e8m5"], torch.float32),
        (["e11m30", "e11m40"], torch.float64),
    ],
    ids=["rules", "int8", "bf16", "float64"],
)
def test_training_in_other_policies(policies, dtype, uncompiled):
    assert_same_training(policies, dtype)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp4_ax0", "bfp8_16_ax0"])
def test_blocks_along_any_axis_are_those_of_one_member(name, uncompiled):
    x = torch.stack([numbers(i, 40, 3) for i in range(2)])
    simulations = [simulate(name) for _ in x]
    found = PopulationStep(lambda x: x * 1.5, simulations)(x)
    for simulation, own, mine in zip(simulations, x, found, strict=True):
        with simulation:
            assert same_bits(own * 1.5, mine)


def test_each_member_draws_on_in_the_next_call(uncompiled):
    """What is stored stochastically has the bits of each member's own simulation, call after call."""

    def step(x):
        return store(x * 0.3, "e5m2", "stochastic")

    xs = [numbers(i, 40) for i in range(2)]
    together, alone = ([simulate("e5m10", seed=seed) for seed in range(2)] for _ in range(2))
    population = PopulationStep(step, together)
    for _ in range(3):
        found = population(torch.stack(xs))
        for simulation, x, mine in zip(alone, xs, found, strict=True):
            with simulation:
                assert same_bits(step(x), mine)


@pytest.mark.parametrize(
    ("simulations", "message"),
    [
        ([simulate("e5m10"), simulate("e5m10", rounding="stochastic")], "stochastic rounding draws"),
        ([simulate("e5m10"), simulate("bf16")], "rounded by the same loops"),
        ([simulate("posit8"), simulate("posit16")], "others the same"),
        ([simulate("e5m10", observe=True)], "an observing simulation"),
    ],
)
def test_what_shares_no_program(simulations, message):
    with pytest.raises(FormatError, match=message):
        PopulationStep(torch.abs, simulations)(torch.ones(len(simulations), 3))


def networks(flat, rows, g, last):
    """The products of a small actor and critic, forward and backward: of views, transposed, thin, of one batch."""
    w, v = flat[:1536].view(2, 6, 128), flat[1536:1792].view(2, 128, 1)
    x = rows[:, :6].expand(2, 128, 6)
    h = torch.bmm(x, w)
    return [
        h, torch.baddbmm(flat[:256].view(2, 1, 128), x, w), torch.bmm(x.mT, g), torch.bmm(g, w.mT), torch.bmm(h, v),
        torch.bmm(h.mT, last), torch.bmm(last, v.mT), torch.bmm(h.mT, g), torch.bmm(h[:1], v[:1].expand(1, 128, 2)),
        torch.bmm(rows[:, :5].unsqueeze(0), w[:1, :5]), torch.bmm(g[:1, :5], g[1:].mT),
    ]  # fmt: skip


def test_products_have_the_bits_of_each_member():
    generator = torch.Generator().manual_seed(0)
    shapes = ((1792,), (128, 13), (2, 128, 128), (2, 128, 1))
    mine = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(7)]
    found = PopulationStep(networks, [None] * 7)(*stack(mine))
    for i, alone in enumerate(mine):
        expected = networks(*alone)
        assert [k for k, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b[i])] == []


def test_long_sums_of_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mine = [numbers(i, 50000).nan_to_num(0.0, 3.0, -3.0) for i in range(3)]
        found = PopulationStep(lambda x: [x.sum(), x.mean()], [None] * 3)(torch.stack(mine))
        for i, x in enumerate(mine):
            assert same_bits(found[0][i], x.sum())
            assert same_bits(found[1][i], x.mean())
    finally:
        torch.set_num_threads(before)
