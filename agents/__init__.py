"""Agents in low precision: configs, training, export, quantization. ``roundoff.remedies`` has their numerical parts.

The names below are imported when they are first used: a program that only reads or checks configs pays for no simulator
and no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roundoff.extras import from_extras

if TYPE_CHECKING:
    from roundoff.runs.result import Crash, Result

    from .algorithms.sac.agent import SAC
    from .config.baselines import BASELINES
    from .config.fixes import FIXES, OPTIONAL_FIXES
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
    from .environments.tasks import Kind as Kind
    from .environments.tasks import may_import as may_import
    from .environments.tasks import module_of as module_of
    from .programs.population import shared_kind as shared_kind
    from .programs.population import worth_sharing as worth_sharing
    from .run import checkpoint as checkpoint
    from .run.device import open_device as open_device
    from .run.observed import Numerics as Numerics
    from .run.parts import check_run as check_run
    from .run.reporter import Reporter as Reporter
    from .run.stopping import PATIENCE as PATIENCE
    from .run.stopping import Stopped as Stopped
    from .run.stopping import StopRequest as StopRequest
    from .run.stopping import stopping_on_sigterm as stopping_on_sigterm
    from .run.stopwatch import Stopwatch as Stopwatch
    from .training.blame import LEFT_MOVES as LEFT_MOVES
    from .training.blame import UNROUNDED as UNROUNDED
    from .training.blame import check_over as check_over
    from .training.blame import units_of_run as units_of_run
    from .training.blame import with_rules as with_rules
    from .training.cost import count_updates as count_updates

_MODULES = {
    "BASELINES": "config.baselines",
    "FIXES": "config.fixes",
    "OPTIONAL_FIXES": "config.fixes",
    "SAC": "algorithms.sac.agent",
    "TASKS": "environments.tasks",
    "Crash": "roundoff.runs.result",
    "FileError": "errors",
    "Job": "training.together",
    "Mismatch": "rollout_mismatch",
    "Progress": "run.reporter",
    "Quantization": "quantization.quantization",
    "QuantizedRun": "training.quantize",
    "Result": "roundoff.runs.result",
    "RunError": "errors",
    "TrainConfig": "config.train_config",
    "importance_weights": "rollout_mismatch",
    "mismatch": "rollout_mismatch",
    "quantize": "training.quantize",
    "recursions": "config.recursions",
    "export": "training.export",
    "train": "training.alone",
    "train_together": "training.together",
}

_FOR_OTHER_FOLDERS = {
    "Kind": "environments.tasks",
    "LEFT_MOVES": "training.blame",
    "Numerics": "run.observed",
    "PATIENCE": "run.stopping",
    "Reporter": "run.reporter",
    "StopRequest": "run.stopping",
    "Stopped": "run.stopping",
    "Stopwatch": "run.stopwatch",
    "UNROUNDED": "training.blame",
    "adapted": "adapters.settings",
    "check_over": "training.blame",
    "check_run": "run.parts",
    "checkpoint": "run.checkpoint:",  # the module itself
    "count_updates": "training.cost",
    "guarded_folder": "actors.stage",
    "may_import": "environments.tasks",
    "module_of": "environments.tasks",
    "open_device": "run.device",
    "shared_kind": "programs.population",
    "stopping_on_sigterm": "run.stopping",
    "units_of_run": "training.blame",
    "with_rules": "training.blame",
    "worth_sharing": "programs.population",
}

__all__ = [
    "BASELINES",
    "FIXES",
    "OPTIONAL_FIXES",
    "SAC",
    "TASKS",
    "Crash",
    "FileError",
    "Job",
    "Mismatch",
    "Progress",
    "Quantization",
    "QuantizedRun",
    "Result",
    "RunError",
    "TrainConfig",
    "export",
    "importance_weights",
    "mismatch",
    "quantize",
    "recursions",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    place = _MODULES.get(name) or _FOR_OTHER_FOLDERS.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, colon, _ = place.partition(":")
    with from_extras():
        found = import_module(module if module.startswith("roundoff") else f"{__name__}.{module}")
        return found if colon else getattr(found, name)
