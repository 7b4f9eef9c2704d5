"""Agents in low precision: configs, training, export, quantization. ``roundoff.remedies`` has their numerical parts.

The names below are imported at their first use: programs that only read or check configs do not load PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

if TYPE_CHECKING:
    from roundoff.runs.result import Crash, Result

    from .algorithms.sac.agent import SAC
    from .config.fixes import BASELINES, FIXES, OPTIONAL_FIXES
    from .config.recursions import recursions
    from .config.train_config import TrainConfig
    from .environments.tasks import TASKS
    from .errors import FileError, RunError
    from .quantization.quantization import Quantization
    from .rollout_mismatch import Mismatch, importance_weights, mismatch
    from .run.reporter import Progress
    from .training.alone import train
    from .training.export import export
    from .training.quantize import QuantizedRun, quantize
    from .training.together import Job, train_together

    # isort: split
    # For the other folders, which import nothing from behind this face; no part of the public interface.
    from .actors.stage import guarded_folder as guarded_folder
    from .adapters.settings import adapted as adapted
    from .environments.tasks import Task as Task
    from .environments.tasks import TaskKind as TaskKind
    from .environments.tasks import may_import as may_import
    from .environments.tasks import modules_of_tasks_in as modules_of_tasks_in
    from .programs.population import shared_kind as shared_kind
    from .programs.population import worth_sharing as worth_sharing
    from .run import checkpoint as checkpoint
    from .run.device import open_device as open_device
    from .run.parts import check_run as check_run
    from .run.profile import Profile as Profile
    from .run.profile import Stopwatch as Stopwatch
    from .run.profile import read_profile as read_profile
    from .run.reporter import Numerics as Numerics
    from .run.reporter import Reporter as Reporter
    from .run.stopping import PATIENCE as PATIENCE
    from .run.stopping import Stopped as Stopped
    from .run.stopping import StopRequest as StopRequest
    from .run.stopping import stopping_on_sigterm as stopping_on_sigterm
    from .training.blame import LEFT_MOVES as LEFT_MOVES
    from .training.blame import UNROUNDED as UNROUNDED
    from .training.blame import blame_run as blame_run
    from .training.blame import check_over as check_over
    from .training.blame import units_of_run as units_of_run
    from .training.blame import with_rules as with_rules
    from .training.cost import count_updates as count_updates
    from .training.export import export_policy as export_policy

__all__ = [
    "BASELINES", "FIXES", "OPTIONAL_FIXES", "SAC", "TASKS", "Crash", "FileError", "Job", "Mismatch", "Progress",
    "Quantization", "QuantizedRun", "Result", "RunError", "TrainConfig", "export", "importance_weights", "mismatch",
    "quantize", "recursions", "train", "train_together",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
