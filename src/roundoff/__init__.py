"""Simulate number formats in PyTorch programs, and find out how few bits a training run needs."""

from roundoff.formats import (
    FloatFormat,
    Format,
    FormatError,
    Overflow,
    RandomBits,
    Rounding,
    RoundoffError,
    fake_round,
    round,
)
from roundoff.simulate import Simulation, simulate

__all__ = [
    "FloatFormat",
    "Format",
    "FormatError",
    "Overflow",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "Simulation",
    "fake_round",
    "round",
    "simulate",
]
