"""Hypothesis strategies that the tests share: formats, numbers and tensors that try rounding hard."""

import math

import torch
from hypothesis import strategies as st

from roundoff.formats import Rounding
from roundoff.testing import formats

DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def float_formats(most_exponent_bits=8, most_significand_bits=23):
    """Float formats of every kind: widths, special values, bias, subnormals or not, overflow policy."""
    return formats(exponent_bits=(1, most_exponent_bits), significand_bits=(0, most_significand_bits), variants=True)


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
