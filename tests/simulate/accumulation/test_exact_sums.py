"""The exact accumulator: sums of products that are rounded once, for every operation that adds up."""

import math
from fractions import Fraction
from functools import partial

import pytest
import torch
from comparing import same_bits
from devices import is_stand_in, stand_ins
from exact_arithmetic import CARRIERS, operands, to_odd
from families_exact import DETERMINISTIC

import roundoff
from roundoff import FormatError, Policy, RandomBits, Rounding, Rule, simulate
from roundoff.formats import Format
from roundoff.formats.base.random_words import random_words
from roundoff.formats.tools.reference import round_exactly
from roundoff.simulate.accumulation.description import Accumulation
from roundoff.simulate.accumulation.run import accumulate
from roundoff.simulate.rounded_once.carrier_rounding import CarrierRounding

aten = torch.ops.aten
EXACT = Accumulation("quire")


def dot(xs, ys, start=0.0):
    """The exact sum of products; None where they are not all finite."""
    if not all(map(math.isfinite, (*xs, *ys, start))):
        return None
    return sum((Fraction(x) * Fraction(y) for x, y in zip(xs, ys, strict=True)), Fraction(start))


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
@pytest.mark.parametrize("kind", ["near", "wide", "far"])
@pytest.mark.parametrize("depth", [1, 3, 40])
def test_products_of_matrices_are_exact(dtype, kind, depth):
    a, b, start = (
        operands(kind, (3, depth), dtype, 1),
        operands(kind, (depth, 5), dtype, 2),
        operands(kind, (3, 5), dtype, 3),
    )
    if depth > 1:  # large terms that cancel
        a[:, -1], b[-1] = -a[:, 0], b[0]
    bits = RandomBits(3, 4)
    words = random_words(bits, start).tolist()
    for mode in Rounding:
        draw = (lambda: bits) if mode is Rounding.STOCHASTIC else (lambda: None)
        found = accumulate(
            aten.addmm.default, (start, a, b), {}, EXACT, lambda _, mode=mode: CarrierRounding(mode), draw
        )
        plain = accumulate(aten.mm.default, (a, b), {}, EXACT, lambda _, mode=mode: CarrierRounding(mode), draw)
        for i in range(3):
            for j in range(5):
                word = words[i][j] if mode is Rounding.STOCHASTIC else None
                for got, addend in ((found, start[i, j].item()), (plain, 0.0)):
                    value = dot(a[i].tolist(), b[:, j].tolist(), addend)
                    if value is None:
                        assert not got[i, j].isfinite()
                    else:
                        expected = round_exactly(value, CARRIERS[dtype], mode, word=word)
                        assert got[i, j].item() == expected
                        assert math.copysign(1, got[i, j]) == math.copysign(1, expected)


@pytest.mark.parametrize("name", ["posit8", "posit16", "posit16_3", "e5m10", "e4m3", "e8m7", "q3.4", "e8m20"])
def test_results_are_rounded_once_in_every_mode(name):
    fmt = Format.parse(name)
    a, b = (
        roundoff.round(operands("wide", shape, fmt.carrier, seed), fmt) for shape, seed in (((4, 30), 1), ((30, 6), 2))
    )
    a, b = a.nan_to_num(1.0, 1.0, -1.0), b.nan_to_num(1.0, 1.0, -1.0)
    values = [to_odd(dot(row, column)) for row in a.tolist() for column in b.T.tolist()]
    for mode in DETERMINISTIC:
        with simulate(fmt, rounding=mode, accumulate="quire"):
            found = a @ b
        expected = roundoff.round(torch.tensor(values, dtype=torch.float64), fmt, rounding=mode).view(4, 6)
        assert torch.equal(found.double(), expected)


def test_examples_of_other_libraries():
    """From the pages of fast-posit (maxpos + 0.1 - maxpos) and softposit for Rust (12.3 * 0.4 - 6.3 * 8.4 is -48)."""
    largest = Format.parse("posit16").max
    x = torch.tensor([largest, 0.1, -largest], dtype=torch.float64)
    with simulate("posit16", accumulate="quire"):
        assert x.sum() == roundoff.round(x, "posit16")[1]
    x, y = (torch.tensor(values, dtype=torch.float64) for values in ([12.3, -6.3], [0.4, 8.4]))
    x, y = roundoff.round(x, "posit32"), roundoff.round(y, "posit32")
    with simulate("posit32", accumulate="quire"):
        found = torch.dot(x, y)
    assert found == roundoff.round(torch.tensor(to_odd(dot(x.tolist(), y.tolist())), dtype=torch.float64), "posit32")
    assert abs(found + 48) < 1e-6


def test_extremes_and_zeros():
    x = torch.tensor([2.0**-1074, 2.0**1023, -(2.0**1023), 1.0], dtype=torch.float64)
    y = torch.tensor([2.0**-1074, 2.0**1000, 2.0**1000, 0.0], dtype=torch.float64)
    nearest = accumulate(aten.dot.default, (x, y), {}, EXACT)
    assert nearest == 0
    up = accumulate(aten.dot.default, (x, y), {}, EXACT, lambda _: CarrierRounding(Rounding.UP))
    assert up.item() == 2.0**-1074  # of 2^-2148
    zero = accumulate(aten.dot.default, (x[1:3], y[1:3]), {}, EXACT)
    assert zero.item() == 0
    assert not zero.signbit()
    negative = accumulate(aten.dot.default, (x[:1], -y[:1]), {}, EXACT)
    assert negative.signbit()
    assert accumulate(aten.mm.default, (x[1:2, None], y[None, 1:2]), {}, EXACT).item() == math.inf
    for special, other, expected in ((math.inf, 1.0, math.inf), (math.inf, 0.0, math.nan), (math.nan, 1.0, math.nan)):
        one, two = torch.tensor([special, 1.0]), torch.tensor([other, 1.0])
        assert same_bits(accumulate(aten.dot.default, (one, two), {}, EXACT), torch.tensor(expected))
    assert accumulate(aten.mm.default, (torch.ones(2, 0), torch.ones(0, 3)), {}, EXACT).tolist() == [[0.0] * 3] * 2


def test_every_operation_begins_with_what_it_adds():
    """One sum, of what can be summed in float64 without rounding: bias and addend included."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randint(-99, 99, shape, generator=generator).float() * 2.0**-9

    m, v, b = numbers(6, 5), numbers(5), numbers(3, 6, 5)
    image, weight, bias = numbers(2, 4, 9), numbers(6, 2, 3), numbers(6)
    calls = [
        (aten.addmm.default, numbers(4), m, numbers(5, 4)),
        (partial(aten.addmm.default, beta=2), numbers(4), m, numbers(5, 4)),
        (aten.addmv.default, numbers(6), m, v),
        (aten.baddbmm.default, numbers(6, 1), b, numbers(3, 5, 2)),
        (aten.addbmm.default, numbers(6, 2), b, numbers(3, 5, 2)),
        (aten.linear.default, numbers(2, 3, 5), m, numbers(6)),
        (aten.linear.default, v, m, numbers(6)),
        (aten.convolution.default, image, weight, bias, [2], [1], [1], False, [0], 2),
        (aten.sum.dim_IntList, b, [0, 2]),
    ]
    for operation, *args in calls:
        wide = [x.double() if isinstance(x, torch.Tensor) else x for x in args]
        named = operation.keywords if isinstance(operation, partial) else {}
        plain = operation.func if named else operation
        found = accumulate(plain, args, named, EXACT, lambda _: CarrierRounding(Rounding.DOWN))
        expected = roundoff.round(operation(*wide), "e8m22", rounding="down")
        assert torch.equal(roundoff.round(found, "e8m22", rounding="down").double(), expected), operation
        assert found.shape == expected.shape
    scaled = accumulate(aten.addmm.default, (numbers(4), m, numbers(5, 4)), {"beta": 2, "alpha": 0.5}, EXACT)
    assert scaled.shape == (6, 4)
    with pytest.raises(RuntimeError, match="size"), simulate("e5m10", accumulate="quire"):
        torch.addmm(torch.ones(7), m, numbers(5, 4))


def test_training_with_an_exact_accumulator():
    def train():
        generator = torch.Generator().manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        net(torch.randn(4, 1, 6, generator=generator)).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    with simulate("e5m6", accumulate="quire", rounding="stochastic") as simulation:
        gradients = train()
    assert torch.equal(roundoff.round(gradients, "e5m6"), gradients)
    treatments = simulation.audit().table.set_index("operation")["treatment"]
    assert treatments["aten.convolution_backward.default"] == "rounded, and accumulated"
    with simulate("e5m6", accumulate="quire", rounding="stochastic"):
        assert same_bits(train(), gradients)


def test_an_unrounded_policy_keeps_the_nearest():
    x = torch.tensor([1.0, 2.0**-30, -1.0])
    with simulate("fp32", accumulate="quire"):
        assert x.sum() == 2.0**-30
        assert (torch.ones(2) * 0.1).sum() == torch.tensor(0.2)


def test_names():
    assert str(Accumulation.parse("quire")) == "quire"
    assert Accumulation.parse("quire") == EXACT
    with pytest.raises(FormatError, match="is called quire, got 'exact'"):
        Accumulation.parse("exact")
    policy = Policy.parse(
        {"format": "posit16", "accumulate": "quire", "rules": [{"operation": "mm", "accumulate": "quire"}]}
    )
    assert policy == Policy.parse(policy.as_json())
    assert policy.as_json()["accumulate"] == "quire"
    assert policy.rules == (Rule("mm", accumulate="quire"),)
    for text in ("quire/32", "quire+kahan", "quire*e5m10", "quire/2"):
        with pytest.raises(FormatError, match="a quire has neither blocks"):
            Accumulation.parse(text)
    with torch._subclasses.FakeTensorMode():
        assert accumulate(aten.mm.default, (torch.ones(2, 3), torch.ones(3, 4)), {}, EXACT).shape == (2, 4)


def test_on_another_device_a_sum_begins_with_what_is_added_too(monkeypatch):
    start, a, b = (operands("near", shape, torch.float32, 1) for shape in ((3, 2), (3, 9), (9, 2)))
    here = accumulate(aten.addmm.default, (start, a, b), {}, EXACT)
    with stand_ins(monkeypatch):
        there = accumulate(aten.addmm.default, (start.cuda(), a.cuda(), b.cuda()), {}, EXACT)
        assert is_stand_in(there)
    assert same_bits(there, here)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_same_bits_on_a_gpu():
    a, b = (
        operands("near", (3, 9), torch.float32, 1).nan_to_num(1, 1, 1),
        operands("near", (9, 2), torch.float32, 2).nan_to_num(1, 1, 1),
    )
    found = accumulate(aten.mm.default, (a.cuda(), b.cuda()), {}, EXACT)
    assert found.is_cuda
    assert same_bits(found.cpu(), accumulate(aten.mm.default, (a, b), {}, EXACT))


def test_exact_means_are_divided_before_they_are_rounded():
    fmt = Format.parse("fp8_e4m3")
    x = roundoff.round(torch.randn(300, 17, generator=torch.Generator().manual_seed(0)), fmt)
    for mode in (Rounding.NEAREST_EVEN, Rounding.UP):
        with simulate(fmt, accumulate="quire", rounding=mode):
            found = x.mean(1).tolist()
        assert found == [round_exactly(sum(map(Fraction, row)) / 17, fmt, mode) for row in x.tolist()]


def test_no_bit_is_too_far_down_to_count():
    for distance in range(1, 400):
        x = torch.tensor([[1.0, 2.0 ** -(distance // 2)]], dtype=torch.float64)
        y = torch.tensor([[1.0], [2.0 ** -(distance - distance // 2)]], dtype=torch.float64)
        up = accumulate(aten.mm.default, (x, y), {}, EXACT, lambda _: CarrierRounding(Rounding.UP))
        assert up.item() == 1 + max(2.0**-distance, 2.0**-52), distance
