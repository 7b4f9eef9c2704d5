"""Parts of learning from pixels: shifts, bytes as numbers, standardized weights, outputs scaled down."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from roundoff.agents.algorithms.drq.encoder import features, scale_down, standardize_matrix, standardize_units
from roundoff.agents.experience.augmentation import images_to_format, random_shift
from roundoff.formats import Format, round
from roundoff.simulate import simulate


@given(st.integers(1, 3), st.integers(2, 6), st.integers(2, 6), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=25)
def test_a_shift_is_a_crop_of_the_padded_image(channels, height, width, most, seed):
    images = torch.randint(256, (5, channels, height, width), dtype=torch.uint8)
    shifted = random_shift(images, most, torch.Generator().manual_seed(seed))
    padded = functional.pad(images.double(), [most] * 4, mode="replicate").to(torch.uint8)
    for k in range(len(images)):
        crops = [padded[k, :, y : y + height, x : x + width] for y in range(2 * most + 1) for x in range(2 * most + 1)]
        assert any(torch.equal(shifted[k], crop) for crop in crops)


def test_all_shifts_happen_equally_often_and_each_stack_shifts_as_one():
    images = torch.arange(49, dtype=torch.uint8).view(1, 1, 7, 7).expand(9000, 2, 7, 7)
    shifted = random_shift(images, 1, torch.Generator().manual_seed(0))
    assert torch.equal(shifted[:, 0], shifted[:, 1])
    values, counts = shifted[:, 0, 3, 3].unique(return_counts=True)
    assert values.tolist() == [16, 17, 18, 23, 24, 25, 30, 31, 32]
    assert ((counts - 1000).abs() < 150).all()  # 5 standard deviations


@pytest.mark.parametrize("name", ["fp64", "fp32", "e5m10", "e5m2", "bf16"])
def test_a_byte_becomes_the_nearest_number_of_the_format(name):
    fmt = Format.parse(name)
    numbers = images_to_format(torch.arange(256, dtype=torch.uint8), fmt, fmt.carrier)
    assert numbers.dtype == fmt.carrier
    nearest = round(torch.arange(256, dtype=torch.float64) / 255, fmt)
    assert torch.equal(numbers.double(), nearest.double())
    assert (numbers[0], numbers[255]) == (0, 1)
    assert Fraction(float(numbers[51])) == Fraction(float(round(torch.tensor(0.2, dtype=torch.float64), fmt)))


def layer(seed=0, outputs=6, inputs=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator, dtype=dtype) * 0.1 + 0.02
    bias, x = (torch.randn(n, generator=generator, dtype=dtype) for n in (outputs, (9 * inputs)))
    return weight, bias, x.view(9, inputs).abs()


def test_standardized_units_have_mean_0_and_deviation_1():
    weight = layer()[0]
    result = standardize_units(weight)
    for mine, row in zip(result.tolist(), weight.tolist(), strict=True):
        mean = sum(map(Fraction, row)) / 40
        deviation = float(sum((Fraction(x) - mean) ** 2 for x in row) / 39) ** 0.5 + 1e-5
        assert mine == pytest.approx([(x - float(mean)) / deviation for x in row], rel=1e-12, abs=1e-14)
    assert torch.equal(standardize_units(torch.full((2, 3), 0.5)), torch.zeros(2, 3))


def normalized_and_gradients(make, *parameters):
    """What layer normalization without eps gives for a layer's outputs, and the gradients of something of it."""
    leaves = [p.clone().requires_grad_() for p in parameters]
    x = make(*leaves)
    y = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    target = torch.arange(y.numel(), dtype=y.dtype).view_as(y).sin()
    return y, torch.autograd.grad((y * target).sum(), leaves)


@pytest.mark.parametrize("rewrite", ["matrix", "limit", "both"])
def test_they_change_nothing_before_a_layer_normalization(rewrite):
    weight, bias, x = layer()

    def rewritten(w, b):
        if rewrite != "limit":
            w, b = standardize_matrix(w, b)
        projected = functional.linear(x, w, b)
        return projected if rewrite == "matrix" else scale_down(projected, 0.3)

    plain, plain_gradients = normalized_and_gradients(lambda w, b: functional.linear(x, w, b), weight, bias)
    other, gradients = normalized_and_gradients(rewritten, weight, bias)
    torch.testing.assert_close(other, plain, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_standardized_units_do_change_something():
    """The paper says that nothing changes, which holds for the whole matrix alone: hence the two settings."""
    weight, bias, x = layer()
    weight = weight * torch.arange(1.0, 7.0, dtype=torch.float64)[:, None]
    plain = normalized_and_gradients(lambda w, b: functional.linear(x, w, b), weight, bias)[0]
    units = normalized_and_gradients(lambda w, b: functional.linear(x, standardize_units(w), b), weight, bias)[0]
    assert (plain - units).abs().max() > 0.1


def test_rows_within_the_limit_stay_as_they_are_and_others_keep_their_direction():
    x = torch.tensor([[1.0, -10.0, 3.0], [40.0, -20.0, 0.0], [0.0, 0.0, 0.0], [6e4, 1.0, -6e4]])
    result = scale_down(x, 10.0)
    assert torch.equal(result[[0, 2]], x[[0, 2]])
    assert torch.equal(result[1], torch.tensor([10.0, -5.0, 0.0]))
    assert result[3].abs().max() <= 10
    odd = scale_down(torch.tensor([[float("inf"), 1.0], [float("nan"), 1.0]]), 10.0)
    assert odd[0].isnan().tolist() == [True, False]
    assert odd[1].isnan().all()


def test_the_limit_is_needed_in_half_precision_step_by_step():
    """At the kernel's granularity the variance is computed in float32; step by step its squares overflow."""
    head = (torch.tensor([[400.0], [-350.0], [100.0]]), torch.zeros(3), torch.ones(3), torch.zeros(3))
    x = torch.ones(1, 1)
    right = features(head, x, standardization="none", limit=None)
    results = {}
    for limit in (None, 10.0):
        with simulate("e5m10", granularity="primitive"):
            results[limit] = features(head, x, standardization="none", limit=limit)
    torch.testing.assert_close(results[10.0], right, rtol=0, atol=3e-3)
    assert not torch.allclose(results[None], right, rtol=0, atol=0.1)
