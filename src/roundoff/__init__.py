"""Simulate number formats in PyTorch programs, and find out how few bits a training run needs."""

from roundoff.formats import FloatFormat, Format, FormatError, RoundoffError, round
from roundoff.simulate import Simulation, simulate

__all__ = ["FloatFormat", "Format", "FormatError", "RoundoffError", "Simulation", "round", "simulate"]
