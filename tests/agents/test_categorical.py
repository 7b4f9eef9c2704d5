"""The categorical head: projection, mean and its slope, divergence, against exact arithmetic and in few bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from roundoff.agents.algorithms.categorical import divergence, expected, projected, slope_of_expected
from roundoff.formats import Format, round
from roundoff.simulate import simulate


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.875, 1.0]))
@settings(max_examples=30)
def test_the_projection_is_that_of_exact_arithmetic(seed, discount):
    generator = torch.Generator().manual_seed(seed)
    least, largest, count = -3, 5, 9
    atoms = torch.linspace(least, largest, count, dtype=torch.float64)
    p = torch.randint(1, 64, (2, count), generator=generator).double() / 64  # need not sum to 1
    rewards = torch.randint(-40, 40, (2, 1), generator=generator).double() / 8
    discounts = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    result = projected(p, rewards, discounts, atoms, discount, (least, largest))
    for row in range(2):
        wanted = [Fraction(0)] * count
        for j in range(count):
            moved = Fraction(float(rewards[row])) + Fraction(discount) * int(discounts[row]) * Fraction(float(atoms[j]))
            moved = min(max(moved, Fraction(least)), Fraction(largest))
            for i in range(count):
                wanted[i] += max(Fraction(0), 1 - abs(moved - (least + i))) * Fraction(float(p[row, j]))
        assert result[row].tolist() == [float(part) for part in wanted]


@pytest.mark.parametrize("format", ["e5m10", "e4m3", "e8m7"])
def test_in_few_bits_the_projection_loses_no_probability_but_by_rounding(format):
    generator = torch.Generator().manual_seed(1)
    atoms = round(torch.linspace(-10, 10, 51), format)
    with simulate(format):
        p = torch.softmax(torch.randn(64, 51, generator=generator), 1)
        rewards = torch.randn(64, 1, generator=generator)
        result = projected(p, rewards, torch.ones(64, 1), atoms, 0.99, (-10.0, 10.0))
    # Each of the 51 probabilities is split once and added once.
    assert ((result.sum(1) - p.sum(1)).abs() <= p.sum(1) * Format.parse(format).eps).all()
    assert (result >= 0).all()


def test_what_is_not_finite_shows_in_its_row_and_breaks_no_other():
    atoms = torch.linspace(-1, 1, 5)
    p = torch.full((4, 5), 0.2)
    rewards = torch.tensor([[math.nan], [math.inf], [-math.inf], [0.0]])
    result = projected(p, rewards, torch.zeros(4, 1), atoms, 0.9, (-1.0, 1.0))
    assert result[0].isnan().any()
    assert torch.allclose(result[1:], torch.tensor([[0, 0, 0, 0, 1.0], [1.0, 0, 0, 0, 0], [0, 0, 1.0, 0, 0]]))


def test_certain_distributions_have_the_targets_of_a_scalar_head():
    """A one-point distribution on an atom moves its mean to r + g d z."""
    atoms = torch.linspace(-10, 10, 51, dtype=torch.float64)
    which = torch.randint(51, (200,), generator=torch.Generator().manual_seed(0))
    rewards = torch.linspace(-1, 1, 200, dtype=torch.float64).unsqueeze(1)
    discounts = (torch.arange(200) % 3 > 0).double().unsqueeze(1)
    target = projected(nn.functional.one_hot(which, 51).double(), rewards, discounts, atoms, 0.9, (-10.0, 10.0))
    scalar = rewards[:, 0] + 0.9 * discounts[:, 0] * atoms[which]
    torch.testing.assert_close(expected(target, atoms), scalar, rtol=0, atol=1e-12)


def test_the_divergence_is_that_of_kullback_and_leibler_also_where_probabilities_underflow():
    generator = torch.Generator().manual_seed(0)
    target = torch.softmax(torch.randn(9, 7, generator=generator, dtype=torch.float64), 1)
    target[0] = torch.tensor([0.0, 0, 1, 0, 0, 0, 0])
    logits = torch.randn(9, 7, generator=generator, dtype=torch.float64)
    wanted = nn.functional.kl_div(logits.log_softmax(1), target, reduction="none").sum(1, keepdim=True)
    torch.testing.assert_close(divergence(target, logits), wanted)
    with simulate("e4m3"):
        far = divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[-20.0, 20.0]]))
    assert far.item() == 40.0  # exp(-40) is 0 in e4m3, its logarithm would be infinite


def test_the_slope_of_the_mean_is_p_times_the_distance_from_it():
    """NumPy gives the same slopes; e5m10, where weights times atoms would be infinite, does so within an ulp or so."""
    logits = torch.randn(9, 51, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    atoms = torch.linspace(-150, 150, 51, dtype=torch.float64)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    z = atoms.numpy()
    wanted = torch.from_numpy(p * (z - p @ z[:, None]))
    torch.testing.assert_close(slope_of_expected(logits, atoms), wanted, rtol=1e-12, atol=1e-12)
    with simulate("e5m10"):
        rounded = slope_of_expected(round(logits.float(), "e5m10"), atoms.float())
    assert torch.equal(rounded, round(rounded, "e5m10"))
    torch.testing.assert_close(rounded.double(), wanted, rtol=2**-8, atol=2**-8)
