"""Hypothesis strategies that the tests share: formats, numbers and tensors that try rounding hard."""

import math

import torch
from hypothesis import strategies as st

from roundoff.formats import FloatFormat, FormatError, Overflow, Rounding
from roundoff.formats.floats import Specials

DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


@st.composite
def float_formats(draw, most_exponent_bits=8, most_significand_bits=23):
    """Float formats of every kind: widths, special values, bias, subnormals or not, overflow policy."""
    specials = draw(st.sampled_from(Specials))
    exponent_bits = draw(st.integers(2 if specials is Specials.IEEE else 1, most_exponent_bits))
    significand_bits = draw(st.integers(0 if exponent_bits > 1 else 1, most_significand_bits))
    usual = 1 << (exponent_bits - 1)
    bias = draw(st.one_of(st.none(), st.integers(usual - 8, usual + 8)))
    subnormals = draw(st.booleans())
    overflow = draw(st.sampled_from([None, Overflow.SATURATE, Overflow.NAN, Overflow.INFINITY]))
    try:
        return FloatFormat(exponent_bits, significand_bits, specials, bias, subnormals, overflow)
    except FormatError:  # it cannot overflow so, or leaves the range of float64
        return FloatFormat(min(exponent_bits, 10), significand_bits, specials, None, subnormals)


def float32_numbers(**how):
    """Any float32, and more often than chance has it, powers of two, their neighbours, ties and limits."""
    scale = st.integers(-149, 127)
    few = st.builds(lambda k, e: math.ldexp(k, max(e - 8, -149)), st.integers(-511, 511), scale)
    close = st.builds(
        lambda k, e, s: float(torch.tensor(math.ldexp(k, e - 8) * (1 + s * 2.0**-23), dtype=torch.float32)),
        st.integers(-511, 511),
        st.integers(-118, 127),
        st.sampled_from([-1, 1]),
    )
    return st.one_of(st.floats(width=32, **how), few, close.filter(math.isfinite))


def float32_tensors(most=40, **how):
    """One-dimensional float32 tensors of :func:`float32_numbers`."""
    return st.lists(float32_numbers(**how), max_size=most).map(lambda values: torch.tensor(values, dtype=torch.float32))
