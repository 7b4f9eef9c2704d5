"""Elementwise arithmetic as it is defined: one element at a time, in exact rational arithmetic; and operands for it."""

import math
from fractions import Fraction

import torch

from roundoff.formats import Rounding
from roundoff.formats.families.floats import FP32, FP64
from roundoff.formats.tools.reference import round_exactly

CARRIERS = {torch.float32: FP32, torch.float64: FP64}
ROOT_BITS = 300


def root(x):
    """The square root, cut, with half a unit for what is cut off."""
    scaled = x * 4 ** (ROOT_BITS + 1100)
    whole = math.isqrt(int(scaled))
    assert scaled.denominator == 1
    return Fraction(2 * whole + (whole * whole != scaled), 2 ** (ROOT_BITS + 1101))


def exact(formula, x, a, b, v):
    """The exact result of a formula, of finite operands; those that it does not use may be anything."""
    x, a, b, v = (Fraction(y) if math.isfinite(y) else y for y in (x, a, b, v))
    return {
        "sum": lambda: x + v * a,
        "product": lambda: x * a,
        "quotient": lambda: x / a,
        "root": lambda: root(x),
        "fused": lambda: x + v * a * b,
        "divided": lambda: x + v * a / b,
        "interpolation": lambda: x + b * (a - x),
    }[formula]()


def has_exact(formula, row):
    """Whether there is such a result: no infinities, no division by zero, no root of a negative number."""
    x, a, b = row
    used = row[: {"root": 1, "fused": 3, "divided": 3, "interpolation": 3}.get(formula, 2)]
    if not all(map(math.isfinite, used)):
        return False
    return (
        not (formula == "quotient" and a == 0)
        and not (formula == "divided" and b == 0)
        and not (formula == "root" and x < 0)
    )


def in_carrier(value, dtype, mode, word=None):
    """An exact result as numbers of a carrier: those that may come out, for a random word is not cut quite exactly."""
    if mode is not Rounding.STOCHASTIC:
        return {round_exactly(value, CARRIERS[dtype], mode)}
    words = max(word - 16, 0), min(word + 16, 2**32 - 1)
    return {round_exactly(value, CARRIERS[dtype], mode, word=w) for w in words}


def to_odd(value):
    """An exact result as a float64 that rounds to narrow formats as it does itself."""
    return round_exactly(value, FP64, Rounding.TO_ODD)


def operands(kind, shape, dtype, seed):
    """Numbers of few bits or many, near to one another, of all magnitudes, and special ones."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return torch.randint(low, high, shape, generator=generator).double()

    precision, (lowest, highest) = (24, (-149, 128)) if dtype == torch.float32 else (53, (-1074, 1024))
    spread = {"near": (-3, 3), "wide": (-40, 40), "far": (lowest, highest)}[kind]
    bits = uniform(1, precision + 1)
    significand = (torch.rand(shape, generator=generator, dtype=torch.float64) * torch.exp2(bits)).floor() + 1
    simple = torch.rand(shape, generator=generator) < 0.2
    significand = torch.where(simple, torch.exp2(bits) + uniform(-2, 3), significand)
    exponent = uniform(*spread) - bits
    x = significand * torch.exp2(exponent.clamp(min=-1000)) * torch.exp2(exponent - exponent.clamp(min=-1000))
    x = torch.where(torch.rand(shape, generator=generator) < 0.5, x, -x)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64)
    chosen = special[torch.randint(len(special), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.04, chosen, x).to(dtype)
