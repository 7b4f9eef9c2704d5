"""Arithmetic with Python numbers, which have all bits of the carrier, rounded to the nearest."""

import warnings
from fractions import Fraction

import pytest
import torch
from comparing import same_bits
from exact_arithmetic import to_odd
from hypothesis import given, settings
from hypothesis import strategies as st

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.formats import FloatFormat, Format
from roundoff.formats.base.modes import NEAREST
from roundoff.formats.tools.reference import round_exactly

warnings.filterwarnings("ignore", "'e4m3' is the IEEE-like float")


def into(x, f):
    y = x.clone()
    f(y)
    return y


ONE = {
    "x * s": (lambda x, s: x * s, lambda x, s: x * s),
    "x / s": (lambda x, s: x / s, lambda x, s: x / s),
    "x + s": (lambda x, s: x + s, lambda x, s: x + s),
    "s - x": (lambda x, s: s - x, lambda x, s: s - x),
    "x *= s": (lambda x, s: into(x, lambda y: y.mul_(s)), lambda x, s: x * s),
    "out=": (lambda x, s: torch.div(x, s, out=torch.empty_like(x)), lambda x, s: x / s),
    "of lists": (lambda x, s: torch._foreach_mul([x], s)[0], lambda x, s: x * s),
    "of lists, in place": (lambda x, s: into(x, lambda y: torch._foreach_div_([y], [s])), lambda x, s: x / s),
    "transposed": (lambda x, s: (x.view(4, -1).t() * s).t().flatten(), lambda x, s: x * s),
}
TWO = {
    "alpha": (lambda x, y, s: torch.add(x, y, alpha=s), lambda x, y, s: x + s * y),
    "value": (lambda x, y, s: torch.addcmul(x, y, y, value=s), lambda x, y, s: x + s * y * y),
    "quotient": (lambda x, y, s: torch.addcdiv(x, x, y, value=s), lambda x, y, s: x + s * x / y),
    "weight": (torch.lerp, lambda x, y, s: x + s * (y - x)),
}


def numbers(fmt, seed):
    x = torch.randn(64, generator=torch.Generator().manual_seed(seed), dtype=fmt.carrier)
    x = roundoff.round(x, fmt)
    return torch.where(x == 0, 1.0, x)


def exactly(f, fmt, mode, s, *tensors):
    s = Fraction(torch.tensor(s, dtype=fmt.carrier).item())
    results = [f(*row, s) for row in zip(*(map(Fraction, x.tolist()) for x in tensors), strict=True)]
    if isinstance(fmt, FloatFormat):
        return torch.tensor([round_exactly(y, fmt, mode) for y in results], dtype=fmt.carrier)
    doubles = torch.tensor([to_odd(y) for y in results], dtype=torch.float64)
    return roundoff.round(doubles, fmt, rounding=mode).to(fmt.carrier)


@pytest.mark.parametrize("mode", NEAREST, ids=str)
@pytest.mark.parametrize("name", ["e5m10", "e8m7", "e4m3", "e8m12", "posit16", "q7.8"])
@settings(max_examples=6)
@given(s=st.sampled_from([0.1, 0.9, 1 / 3, 0.99]) | st.floats(1e-2, 50), seed=st.integers(0, 2**32))
def test_results_are_those_of_exact_arithmetic_rounded_once(name, mode, s, seed):
    fmt = Format.parse(name)
    x, y = numbers(fmt, seed), numbers(fmt, seed + 1)
    with simulate(fmt, rounding=mode, scalars="once"):
        found = {what: f(x, s) for what, (f, _) in ONE.items()} | {what: f(x, y, s) for what, (f, _) in TWO.items()}
    expected = {what: exactly(f, fmt, mode, s, x) for what, (_, f) in ONE.items()}
    expected |= {what: exactly(f, fmt, mode, s, x, y) for what, (_, f) in TWO.items()}
    assert not [what for what in found if not torch.equal(found[what], expected[what])]


def test_by_default_they_are_pytorchs_rounded():
    """One in nine quotients by 0.1, and one in twenty products with 0.9, are another number of the format than that."""
    fmt = Format.parse("e5m10")
    x = torch.cat([numbers(fmt, seed) for seed in range(32)])
    with simulate(fmt):
        product, quotient = x * 0.9, x / 0.1
    assert same_bits(product, roundoff.round(x * 0.9, fmt))
    assert same_bits(quotient, roundoff.round(x / 0.1, fmt))
    with simulate(fmt, scalars="once"):
        products, quotients = (product != x * 0.9).double().mean(), (quotient != x / 0.1).double().mean()
    assert 0.03 < products < 0.07
    assert 0.08 < quotients < 0.14


def test_special_numbers_are_those_of_pytorch():
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65504.0, 2.0**-24])
    for s in (0.9, -0.9, 0.0, -0.0, torch.inf, torch.nan, 3):
        with simulate("e5m10", scalars="once"):
            found = x * s, x / s, x + s, s - x
        expected = [roundoff.round(y, "e5m10") for y in (x * s, x / s, x + s, s - x)]
        assert all(map(same_bits, found, expected)), s


def test_zeros_of_both_signs_are_two_numbers():
    x = torch.ones(3)
    for settings_ in ({"rounding": "up"}, {"scalars": "once"}):
        with simulate("e5m10", **settings_):
            signs = [(x * s).signbit().tolist() for s in (0.0, -0.0, 0.0)]
        assert signs == [[False] * 3, [True] * 3, [False] * 3]


def test_one_operation_alone_and_compiled():
    def step(x):
        return x * 0.9, x / 0.1

    x = numbers(Format.parse("e5m10"), 0)
    policy = Policy("e5m10", rules=(Rule("div", scalars="once"),))
    with simulate("e5m10"):
        product, other = step(x)
    with simulate("e5m10", scalars="once"):
        quotient = x / 0.1
    assert not same_bits(quotient, other)
    with simulate(policy):
        eager = step(x)
    compiled = roundoff.compile(step, simulate(policy))
    found = compiled(x)
    assert compiled.reason is None
    for results in (eager, found):
        assert same_bits(results[0], product)
        assert same_bits(results[1], quotient)
