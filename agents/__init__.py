"""Soft actor-critic in low precision: the six numerical fixes, the agent, its environments and its training.

The names below are imported when they are first used: a program that only reads or checks configs pays for no simulator
and no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adam import Adam
    from .baselines import BASELINES
    from .coercion import coerce_
    from .compound_loss_scaling import CompoundLossScaler
    from .config import TrainConfig
    from .errors import FileError, RunError
    from .fixes import FIXES, OPTIONAL_FIXES
    from .hadam import HAdam
    from .kahan_gradients import kahan_add_
    from .kahan_momentum import KahanEMA, PlainEMA
    from .loss_scaling import LossScaler
    from .master_weights import MasterWeights
    from .noise_log_prob import noise_log_prob
    from .normal_fix import normal_log_prob, normal_log_prob_naive
    from .run import Progress
    from .run_directory import Crash, Result
    from .sac import SAC
    from .softplus_fix import softplus, softplus_naive
    from .squashed_normal import SquashedNormal
    from .tasks import TASKS
    from .together import Job, train_together
    from .training import train

_MODULES = {
    "BASELINES": "baselines",
    "FIXES": "fixes",
    "OPTIONAL_FIXES": "fixes",
    "SAC": "sac",
    "TASKS": "tasks",
    "Adam": "adam",
    "CompoundLossScaler": "compound_loss_scaling",
    "Crash": "run_directory",
    "FileError": "errors",
    "HAdam": "hadam",
    "Job": "together",
    "KahanEMA": "kahan_momentum",
    "LossScaler": "loss_scaling",
    "MasterWeights": "master_weights",
    "PlainEMA": "kahan_momentum",
    "Progress": "run",
    "Result": "run_directory",
    "RunError": "errors",
    "SquashedNormal": "squashed_normal",
    "TrainConfig": "config",
    "coerce_": "coercion",
    "kahan_add_": "kahan_gradients",
    "noise_log_prob": "noise_log_prob",
    "normal_log_prob": "normal_fix",
    "normal_log_prob_naive": "normal_fix",
    "softplus": "softplus_fix",
    "softplus_naive": "softplus_fix",
    "train": "training",
    "train_together": "together",
}

__all__ = [
    "BASELINES",
    "FIXES",
    "OPTIONAL_FIXES",
    "SAC",
    "TASKS",
    "Adam",
    "CompoundLossScaler",
    "Crash",
    "FileError",
    "HAdam",
    "Job",
    "KahanEMA",
    "LossScaler",
    "MasterWeights",
    "PlainEMA",
    "Progress",
    "Result",
    "RunError",
    "SquashedNormal",
    "TrainConfig",
    "coerce_",
    "kahan_add_",
    "noise_log_prob",
    "normal_log_prob",
    "normal_log_prob_naive",
    "softplus",
    "softplus_naive",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
