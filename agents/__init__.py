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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with from_extras():
        module = _MODULES[name]
        return getattr(import_module(module if module.startswith("roundoff") else f"{__name__}.{module}"), name)
