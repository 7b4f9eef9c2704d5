"""FP8 with a scale from the data has the bits of torchao's emulation, where torchao is installed."""

import pytest
import torch
from comparing import same_bits

import roundoff
from roundoff.formats import Format

pytest.importorskip("torchao.float8", reason="torchao is not installed", exc_type=ImportError)

from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig

ELEMENTS = {name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")}


def theirs(x, element, axis, power_of_two):
    granularity = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
    return hp_tensor_to_float8_dynamic(
        x,
        ELEMENTS[element],
        LinearMMConfig(),
        scaling_granularity=granularity,
        axiswise_dim=axis,
        round_scales_to_power_of_2=power_of_two,
    )


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize(("span", "axis"), [("tensor", None), ("row", -1), ("row_ax0", 0)])
@pytest.mark.parametrize("element", ELEMENTS)
def test_bits_and_scales(element, span, axis, power_of_two):
    fmt = Format.parse(f"{element}_{span}" + ("_pow2" if power_of_two else ""))
    generator = torch.Generator().manual_seed(0)
    for size in (1e-9, 1.0, 1e4, 1e30):
        x = torch.randn(128, 96, generator=generator) * 2.0 ** torch.randint(-20, 4, (128, 96), generator=generator)
        x = x * size
        x[3], x[:, 5], x[0, 0] = 0.0, -0.0, 3 * size
        other, stored = theirs(x, element, axis, power_of_two), fmt.encode(x)
        assert same_bits(other.to_original_precision(), roundoff.round(x, fmt))
        assert torch.equal(other._data.view(torch.uint8), stored.codes)
        used = (x != 0).any() if axis is None else (x != 0).any(axis, keepdim=True)  # of zeros, theirs is M / 1e-12
        assert torch.equal(other._scale[used], stored.scales[used])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_number_that_is_not_finite_takes_the_tensor_with_it(poison):
    x = torch.ones(4, 4)
    x[1, 2] = poison
    assert theirs(x, "float8_e4m3fn", None, False).to_original_precision().isnan().all()
    assert roundoff.round(x, "fp8_e4m3_tensor").isnan().all()
