"""Running any PyTorch computation in a number format."""

from roundoff.simulate.mode import Simulation, simulate

__all__ = ["Simulation", "simulate"]
