"""Running any PyTorch computation in simulated arithmetic."""

from roundoff.simulate.accumulation import Accumulation
from roundoff.simulate.delta_debugging import Blame, BlameError, blame
from roundoff.simulate.mode import PolicyWarning, Simulation, simulate
from roundoff.simulate.policy import Policy, Rule

__all__ = ["Accumulation", "Blame", "BlameError", "Policy", "PolicyWarning", "Rule", "Simulation", "blame", "simulate"]
