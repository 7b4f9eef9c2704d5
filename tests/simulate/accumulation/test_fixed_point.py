"""Accumulators in fixed point, which saturate or wrap around: bit for bit what exact arithmetic says."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundoff.formats import FixedFormat, FormatError, Overflow, round
from roundoff.simulate import Accumulation, simulate
from roundoff.simulate.accumulation.arithmetic import TensorSteps
from roundoff.simulate.accumulation.run import arithmetic


def nearest(x, fmt):
    """A rational number rounded to fixed point, by its definition."""
    k, rest = divmod(x * 2**fmt.fraction_bits, 1)
    k = int(k) + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and k % 2 == 1))
    bits = fmt.integer_bits + fmt.fraction_bits
    low, high = -(2**bits) if fmt.signed else 0, 2**bits - 1
    k = (k - low) % (high - low + 1) + low if fmt.overflow is Overflow.WRAP else min(max(k, low), high)
    return Fraction(k, 2**fmt.fraction_bits)


def dot(xs, ys, how):
    total = Fraction(0)
    for x, y in zip(xs, ys, strict=True):
        product = Fraction(x) * Fraction(y)
        total = nearest(total + (product if how.product is None else nearest(product, how.product)), how.format)
    return float(total)


def by_tensors(how, a, b):
    steps = TensorSteps(how.product, how.format, a.dtype == torch.float32, how.compensated)
    sums = steps.begin(a, 1, a.shape[0], b.shape[1])
    steps.add(sums, a[None], b[None])
    return sums[0][0].to(a.dtype)


fixed = st.builds(
    FixedFormat,
    st.integers(1, 8),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([Overflow.SATURATE, Overflow.WRAP]),
)


@given(fixed, st.none() | fixed, st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_every_sum_is_exact(total, product, seed, dtype):
    how = Accumulation(total, product=product)
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator).to(dtype) * 2 for shape in ((3, 9), (9, 4)))
    if seed % 2:  # ties, and sums that a format holds
        a, b = round(a, "q3.3"), round(b, "q3.3")
    expected = torch.tensor([[dot(row, column, how) for column in b.T.tolist()] for row in a.tolist()], dtype=dtype)
    for got in (arithmetic(how, dtype).contract(a[None], b[None])[0], by_tensors(how, a, b)):
        assert torch.equal(got, expected)
        assert not got[got == 0].signbit().any()


def test_a_multiply_accumulate_unit_saturates_or_wraps():
    ones = torch.ones(1, 1, 10)
    steps = torch.full((1, 10, 1), 0.75)
    assert arithmetic(Accumulation.parse("q2.4"), torch.float32).contract(ones, steps).item() == 4 - 1 / 16
    assert arithmetic(Accumulation.parse("q2.4_wrap"), torch.float32).contract(ones, steps).item() == 7.5 - 8
    for name, end in (("q2.4", 4 - 1 / 16), ("q2.4_wrap", torch.nan)):  # an infinity, as the formats themselves have it
        sums = arithmetic(Accumulation.parse(name), torch.float32).contract(torch.inf * ones, steps)
        torch.testing.assert_close(sums.item(), end, equal_nan=True, rtol=0, atol=0)
        assert arithmetic(Accumulation.parse(name), torch.float32).contract(torch.nan * ones, steps).isnan().all()


def test_a_layer_and_its_gradients():
    """All sums of a layer on a datapath of twelve bits: the bias is added by one more addition."""
    torch.manual_seed(0)
    weight, x, bias = (round(torch.randn(size), "q2.4") for size in ((3, 16), (5, 16), (3,)))
    weight.requires_grad_()
    how = Accumulation.parse("q3.8")
    with simulate("q3.8", accumulate=how):
        y = torch.nn.functional.linear(x, weight, bias)
        y.backward(torch.ones_like(y))
    for row, result in zip(x.tolist(), y.tolist(), strict=True):
        sums = [dot(row, column, how) for column in weight.tolist()]
        added = [nearest(Fraction(one) + Fraction(b), how.format) for one, b in zip(sums, bias.tolist(), strict=True)]
        assert result == [float(value) for value in added]
    columns = [dot([1.0] * 5, column, how) for column in x.T.tolist()]
    assert weight.grad.tolist() == [columns] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q6.6*e4m3", "both be floats or both be fixed point, got e4m3 and q6.6"),
        ("q26.26", "at most 50 integer and fraction bits, got q26.26"),
        ("int8", "or fixed point such as q8.8, got int8"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(FormatError, match=message.replace(".", r"\.")):
        Accumulation.parse(text)


def test_text_there_and_back():
    for text in ("q6.6", "uq4.4_wrap", "q6.6*q3.4", "q6.6*q3.4_wrap/4+kahan"):
        assert str(Accumulation.parse(text)) == text


def test_one_that_the_carrier_does_not_hold_is_refused():
    message = r"format q16\.16 of the accumulation does not fit in torch\.float32"
    with simulate("q3.4", accumulate="q16.16"), pytest.raises(FormatError, match=message):
        torch.ones(2, 2) @ torch.ones(2, 2)
