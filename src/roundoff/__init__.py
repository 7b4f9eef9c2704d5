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
from roundoff.simulate import Accumulation, Blame, Policy, PolicyWarning, Rule, Simulation, blame, simulate

__all__ = [
    "Accumulation",
    "Blame",
    "FloatFormat",
    "Format",
    "FormatError",
    "Overflow",
    "Policy",
    "PolicyWarning",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "Rule",
    "Simulation",
    "blame",
    "fake_round",
    "round",
    "simulate",
]
