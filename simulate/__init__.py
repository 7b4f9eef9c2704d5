"""Running any PyTorch computation in simulated arithmetic."""

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

from .accumulation.description import Accumulation
from .accumulation.fused_sum import FusedSum
from .blame import Blame, BlameError, blame
from .compiling.step import CompiledStep, CompileWarning, compile  # noqa: A004  torch.compile's name
from .cost.models import CostModel
from .dispatch.complaints import PolicyWarning
from .dispatch.entry import simulate
from .dispatch.requests import exact, store
from .dispatch.simulation import Simulation
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
from .compiling.slots import Slots as Slots
from .cost.models import MODELS as MODELS
from .dispatch.graph_writer import FormatsAsData as FormatsAsData
from .dispatch.requests import is_exact as is_exact
from .dispatch.requests import result_format as result_format
from .policy.carriers import carriers_of_operands as carriers_of_operands
from .policy.rules import Role as Role
from .watching.lost_numbers import OTHER_REASONS as OTHER_REASONS
from .watching.lost_numbers import OutOfMemory as OutOfMemory
from .watching.lost_numbers import SteppedOptimizers as SteppedOptimizers
from .watching.lost_numbers import damaged_weight as damaged_weight
from .watching.lost_numbers import lost_numbers as lost_numbers

# Those below are imported when they are first used: some import pandas, others the compiler.
if TYPE_CHECKING:
    from .compiling.program_cache import folder_of_programs as folder_of_programs
    from .cost.counter import CostCounter as CostCounter
    from .cost.counter import CountedSteps as CountedSteps
    from .cost.counter import learned as learned
    from .cost.report import Cost as Cost
    from .difference.recorder import Recorder as Recorder
    from .difference.report import DiffReport as DiffReport
    from .difference.report import diff as diff
    from .difference.trace import Trace as Trace
    from .native.building import folder_of_natives as folder_of_natives
    from .native.library import reason_against_native as reason_against_native
    from .scripts.blaming import blame_script as blame_script
    from .scripts.children import PythonChildren as PythonChildren
    from .scripts.measures import Measure as Measure
    from .scripts.running import Script as Script
    from .scripts.running import end_as_python as end_as_python
    from .scripts.running import run_as_main as run_as_main
    from .scripts.running import show_as_python as show_as_python
    from .significance.digits import DigitsReport as DigitsReport
    from .significance.digits import digits as digits
    from .significance.scripts import script_digits as script_digits
    from .testing.self_check import check_bits as check_bits
    from .watching.lost_numbers import left_behind as left_behind

__all__ = [
    "Accumulation", "Blame", "BlameError", "Call", "CompileWarning", "CompiledStep", "CostModel", "FusedSum", "Place",
    "Policy", "PolicyWarning", "Rule", "Simulation", "SimulationWarning", "Watcher", "blame", "compile", "exact",
    "in_role", "part", "simulate", "store",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
