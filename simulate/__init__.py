"""Running any PyTorch computation in simulated arithmetic."""

from .accumulation.description import Accumulation
from .blame import Blame, BlameError, blame
from .compiling.step import CompiledStep, CompileWarning, compile  # noqa: A004  torch.compile's name
from .dispatch.complaints import PolicyWarning
from .dispatch.entry import simulate
from .dispatch.pausing import exact
from .dispatch.simulation import Simulation
from .dispatch.storing import store
from .policy.places import in_role
from .policy.policy import Policy
from .policy.rules import Rule
from .presence.entering import SimulationWarning
from .watching.watcher import Call, Place, Watcher

__all__ = [
    "Accumulation",
    "Blame",
    "BlameError",
    "Call",
    "CompileWarning",
    "CompiledStep",
    "Place",
    "Policy",
    "PolicyWarning",
    "Rule",
    "Simulation",
    "SimulationWarning",
    "Watcher",
    "blame",
    "compile",
    "exact",
    "in_role",
    "simulate",
    "store",
]
