"""Running any PyTorch computation in simulated arithmetic."""

from roundoff.simulate.accumulation import Accumulation
from roundoff.simulate.compiled import CompiledStep, CompileWarning, compile  # noqa: A004  torch.compile's name
from roundoff.simulate.delta_debugging import Blame, BlameError, blame
from roundoff.simulate.entering import SimulationWarning
from roundoff.simulate.mode import PolicyWarning, Simulation, simulate
from roundoff.simulate.policy import Policy, Rule

__all__ = [
    "Accumulation",
    "Blame",
    "BlameError",
    "CompileWarning",
    "CompiledStep",
    "Policy",
    "PolicyWarning",
    "Rule",
    "Simulation",
    "SimulationWarning",
    "blame",
    "compile",
    "simulate",
]
