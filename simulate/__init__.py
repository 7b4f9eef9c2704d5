"""Running any PyTorch computation in simulated arithmetic."""

from typing import TYPE_CHECKING

from .accumulation.description import Accumulation
from .blame import Blame, BlameError, blame
from .compiling.step import CompiledStep, CompileWarning, compile  # noqa: A004  torch.compile's name
from .cost.models import CostModel
from .dispatch.complaints import PolicyWarning
from .dispatch.entry import simulate
from .dispatch.pausing import exact
from .dispatch.simulation import Simulation
from .dispatch.storing import store
from .policy.parts import part
from .policy.places import in_role
from .policy.policy import Policy
from .policy.rules import Rule
from .presence.entering import SimulationWarning
from .watching.watcher import Call, Place, Watcher

# isort: split
# For the other folders, which import nothing from behind this face; no part of the public interface.
from .aten.contracted_axes import LAST as LAST
from .aten.contracted_axes import Contraction as Contraction
from .aten.contracted_axes import of_convolution as of_convolution
from .aten.contracted_axes import round_along as round_along
from .aten.tables import CONTRACTIONS as CONTRACTIONS
from .aten.tables import MOVES as MOVES
from .aten.tables import is_contraction as is_contraction
from .aten.tables import plain_name as plain_name
from .blame import HIGH as HIGH
from .blame import Trial as Trial
from .blame import Trials as Trials
from .blame import search as search
from .compiling.population import PopulationStep as PopulationStep
from .compiling.population import reason_against_sharing as reason_against_sharing
from .compiling.program import reason_against_compiling as reason_against_compiling
from .cost.models import MODELS as MODELS
from .cost.step import CountedSteps as CountedSteps
from .cost.step import learned as learned
from .dispatch.graph_writer import FormatsAsData as FormatsAsData
from .dispatch.storing import is_exact as is_exact
from .dispatch.storing import result_format as result_format
from .policy.carriers import carriers_of_operands as carriers_of_operands
from .policy.rules import Role as Role
from .watching.lost_numbers import OTHER_REASONS as OTHER_REASONS
from .watching.lost_numbers import OutOfMemory as OutOfMemory
from .watching.lost_numbers import SteppedOptimizers as SteppedOptimizers
from .watching.lost_numbers import damaged_weight as damaged_weight
from .watching.lost_numbers import lost_numbers as lost_numbers

if TYPE_CHECKING:
    from .cost.counter import CostCounter as CostCounter  # which imports pandas
    from .cost.report import Cost as Cost

__all__ = [
    "Accumulation",
    "Blame",
    "BlameError",
    "Call",
    "CompileWarning",
    "CompiledStep",
    "CostModel",
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
    "part",
    "simulate",
    "store",
]
