"""Conversions of float64 to float32, and to half precision, in every mode: the exact number rounded once."""

import math

import pytest
import torch
from comparing import same_bits
from each import each

import roundoff
from roundoff import Rounding, simulate
from roundoff.formats import Format

CONVERSIONS = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    "copy_": lambda x: torch.empty(len(x)).copy_(x),
    "into a part": lambda x: torch.empty(2, len(x)).t()[:, 1].copy_(x),
    "bfloat16": lambda x: x.bfloat16().float(),
}
DIRECTED = [Rounding.TOWARD_ZERO, Rounding.UP, Rounding.DOWN, Rounding.TO_ODD, Rounding.NEAREST_AWAY]


def numbers(fmt):
    """Numbers of the format and numbers halfway between two, a little more and a little less than float32 can tell."""
    x = roundoff.round(torch.linspace(-3, 3, 40, dtype=torch.float64), fmt)
    x = torch.cat([x, (x[1:] + x[:-1]) / 2])
    return torch.cat([x, x * (1 + 2.0**-40), x * (1 - 2.0**-40), torch.tensor([3e38, -1e-44], dtype=torch.float64)])


@each("how", CONVERSIONS)
@each("mode", DIRECTED)
@pytest.mark.parametrize("name", ["e5m7", "fp8_e4m3", "posit8", "q3.4"])
def test_a_conversion_rounds_once(name, mode, how):
    fmt = Format.parse(name)
    x = numbers(fmt)
    with simulate(fmt, rounding=mode) as simulation:
        found = CONVERSIONS[how](x)
    assert same_bits(found, roundoff.round(x, fmt, rounding=mode).float())  # which rounds float64 once
    assert not any("twice" in kind for kind in simulation.audit().table["treatment"])


@pytest.mark.parametrize("name", ["e8m10", "posit8"])
@pytest.mark.parametrize("mode", DIRECTED)
def test_numbers_beyond_float32(name, mode):
    fmt = Format.parse(name)
    x = torch.tensor([1e300, -1e300, 1e-300, -1e-300, 0.0, -0.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
    with simulate(fmt, rounding=mode):
        found = x.float()
    assert same_bits(found, roundoff.round(x, fmt, rounding=mode).float())


def test_stochastic_rounding_has_the_probability_of_the_float64_number():
    """A quarter of float32's unit in the last place is lost on the way there, to the nearest."""
    x = torch.full((1 << 20,), 1 + 2.0**-25, dtype=torch.float64)
    with simulate("e8m10", rounding="stochastic"):
        up = (x.float() > 1).sum().item()
    assert abs(up - 2.0**5) < 5 * 2.0**2.5


@pytest.mark.parametrize("mode", ["toward-zero", "stochastic"])
def test_a_compiled_step_converts_as_an_eager_one(mode):
    x = numbers(Format.parse("e5m10"))

    def step(x):
        return x.float() * 1.5

    with simulate("e5m10", rounding=mode):
        eager = step(x)
    assert same_bits(roundoff.compile(step, simulate("e5m10", rounding=mode))(x), eager)


def test_to_the_nearest_pytorch_converts():
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    with simulate("e5m10"):
        assert x.float() == 1
    assert x.half() == 1
