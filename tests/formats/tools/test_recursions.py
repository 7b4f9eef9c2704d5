"""Recursions that stop: predictions against what happens, number by number, and what is right on average."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import roundoff
from roundoff.formats import FloatFormat, RandomBits
from roundoff.formats.tools.recursions import bits_needed, reach, stop

formats = st.builds(FloatFormat, st.sampled_from([3, 4, 5, 8]), st.integers(1, 10))
# With few bits, so that float64 has the steps exactly, and a tie is one.
gains = st.tuples(st.integers(128, 255), st.integers(3, 9)).map(lambda x: x[0] / 128 * 2.0 ** -x[1])


def settled(format, gain, target, start, steps=6000):
    """Returns where a recursion stops, step by step in float64; None if it has not after all steps."""
    x = torch.tensor([start], dtype=torch.float64)
    for _ in range(steps):
        following = roundoff.round(x + gain * (target - x), format)
        if torch.equal(following, x):
            return x.item()
        x = following
    return None


@st.composite
def problems(draw):
    format, gain = draw(formats), draw(gains)
    # Also subnormal targets, targets near the largest number, on both sides of a power of two, of both signs.
    exponent = draw(st.floats(format.emin - format.significand_bits - 1, min(format.emax + 1, 12)))
    magnitude = roundoff.round(torch.tensor([2.0**exponent], dtype=torch.float64), "e11m12").item()
    target = draw(st.sampled_from([-1, 1])) * min(magnitude, format.max)
    # From 0, from below, from above, from the other side.
    start = draw(st.one_of(st.just(0.0), st.floats(-8, 8))) * target
    begin = roundoff.round(torch.tensor([start], dtype=torch.float64), format).item()
    assume(math.isfinite(begin))
    return format, gain, target, begin


@given(problems())
def test_it_stops_where_it_is_predicted_to(problem):
    found = settled(*problem)
    assume(found is not None)
    assert found in stop(*problem)


@settings(max_examples=15, deadline=None)
@given(formats, st.floats(0.01, 0.25), st.floats(1, 3))
def test_beyond_the_largest_number_it_becomes_what_the_format_makes_of_it(format, gain, above):
    assume(format.emax < 20)
    target = format.max * (1 + 2 * above)
    first, last = stop(format, gain, target)
    found = settled(format, gain, target, 0.0, steps=800)
    assert found is None or found in (first, last) or math.isnan(found)  # infinity moves to NaN
    assert first <= format.max < last or first <= last <= format.max


@given(st.integers(1, 10), st.floats(-10, -2).map(lambda x: 2.0**x), st.floats(-3, 3))
def test_the_share_that_is_reached_is_that_of_the_significand(m, gain, exponent):
    target = 2.0**exponent
    least, most = reach(gain, m)
    x = stop(FloatFormat(8, m), gain, target).first
    ulp = 2.0 ** (math.floor(math.log2(x)) - m)
    assert x / target >= least * (1 - 1e-12)
    assert x / target <= most * (1 + 2 * ulp / x) + ulp / target
    significand = x / 2.0 ** math.floor(math.log2(x))
    assert x / target >= gain / (gain + 2.0 ** -(m + 1) / significand) * (1 - 1e-12)


def test_the_table_of_horizons():
    """The table of docs/recursions.md: steps of 100, with a discount of 0.99."""
    found = {m: tuple(round(100 * share) for share in reach(1 - 0.99, m)) for m in (2, 3, 4, 5, 6, 7, 8, 10)}
    assert found == {
        2: (7, 14), 3: (14, 24), 4: (24, 39), 5: (39, 56), 6: (56, 72), 7: (72, 84), 8: (84, 91), 10: (95, 98)
    }  # fmt: skip


@given(st.floats(-12, -1).map(lambda x: 2.0**x), st.floats(0.1, 0.99))
def test_so_many_bits_are_needed(gain, share):
    m = bits_needed(gain, share)
    assert reach(gain, m)[0] >= share * (1 - 1e-12)
    assert m == 0 or reach(gain, m - 1)[0] < share


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 10), st.floats(-6, -2).map(lambda x: 2.0**x), st.floats(-2, 2))
def test_stochastically_rounded_it_is_right_on_average(m, gain, exponent):
    """4000 of each, over 3 / gain steps: at 5 standard errors, about one test in two million fails by chance."""
    format, target, steps = FloatFormat(8, m), 2.0**exponent, int(3 / gain)
    x = torch.zeros(4000, dtype=torch.float64)
    for step in range(steps):
        random = RandomBits(1, step)
        x = roundoff.round(x + gain * (target - x), format, rounding="stochastic", random=random)
    expected = target * (1 - (1 - Fraction(gain)) ** steps)
    assert abs(x.mean().item() - float(expected)) <= 5 * x.std().item() / math.sqrt(4000) + 1e-12


@pytest.mark.parametrize(
    ("discount", "start", "end"), [(0.99, 140.0, 140.0), (0.99, 200.0, 150.0), (0.997, 500.0, 500.0)]
)
def test_from_above_it_stops_above(discount, start, end):
    """In bfloat16: a value of 100, or 333, that began too high."""
    format, target = FloatFormat(8, 7), 1 / (1 - discount)
    found = settled(format, 1 - discount, target, start)
    assert found == pytest.approx(end, abs=1)
    assert min(abs(found - one) for one in stop(format, 1 - discount, target, start)) <= 1  # 150 is a tie, but for 0.99
