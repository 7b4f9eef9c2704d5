"""Soft actor-critic in low precision: the six numerical fixes, the agent, its environments and its training.

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
    from .algorithms.stochastic_targets import stochastic_projection, stochastic_returns, stochastic_target
    from .coercion import coerce_
    from .config.baselines import BASELINES
    from .config.fixes import FIXES, OPTIONAL_FIXES
    from .config.recursions import recursions
    from .config.train_config import TrainConfig
    from .environments.tasks import TASKS
    from .errors import FileError, RunError
    from .models.noise_log_prob import noise_log_prob
    from .models.normal_fix import normal_log_prob, normal_log_prob_naive
    from .models.softplus_fix import softplus, softplus_naive
    from .models.squashed_normal import SquashedNormal
    from .optimizers.adam import Adam
    from .optimizers.compound_loss_scaling import CompoundLossScaler
    from .optimizers.hadam import HAdam
    from .optimizers.kahan_gradients import kahan_add_
    from .optimizers.kahan_momentum import KahanEMA, PlainEMA
    from .optimizers.loss_scaling import LossScaler
    from .optimizers.master_weights import MasterWeights
    from .optimizers.stochastic_compensation import stochastic_kahan_add_
    from .optimizers.stochastic_moments import stochastic_mean_, stochastic_mean_square_, stochastic_root_
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
    "Adam": "optimizers.adam",
    "CompoundLossScaler": "optimizers.compound_loss_scaling",
    "Crash": "roundoff.runs.result",
    "FileError": "errors",
    "HAdam": "optimizers.hadam",
    "Job": "training.together",
    "Kept": "stored",
    "KahanEMA": "optimizers.kahan_momentum",
    "LossScaler": "optimizers.loss_scaling",
    "MasterWeights": "optimizers.master_weights",
    "Mismatch": "rollout_mismatch",
    "PlainEMA": "optimizers.kahan_momentum",
    "Progress": "run.reporter",
    "Quantization": "quantization.quantization",
    "QuantizedRun": "training.quantize",
    "Result": "roundoff.runs.result",
    "RunError": "errors",
    "SquashedNormal": "models.squashed_normal",
    "StoredEMA": "optimizers.kahan_momentum",
    "StoredLayers": "models.stored_layers",
    "TrainConfig": "config.train_config",
    "coerce_": "coercion",
    "importance_weights": "rollout_mismatch",
    "kahan_add_": "optimizers.kahan_gradients",
    "mismatch": "rollout_mismatch",
    "noise_log_prob": "models.noise_log_prob",
    "normal_log_prob": "models.normal_fix",
    "normal_log_prob_naive": "models.normal_fix",
    "quantize": "training.quantize",
    "recursions": "config.recursions",
    "softplus": "models.softplus_fix",
    "softplus_naive": "models.softplus_fix",
    "stochastic_kahan_add_": "optimizers.stochastic_compensation",
    "stochastic_mean_": "optimizers.stochastic_moments",
    "stochastic_mean_square_": "optimizers.stochastic_moments",
    "stochastic_projection": "algorithms.stochastic_targets",
    "stochastic_returns": "algorithms.stochastic_targets",
    "stochastic_root_": "optimizers.stochastic_moments",
    "stochastic_target": "algorithms.stochastic_targets",
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
    "Adam",
    "CompoundLossScaler",
    "Crash",
    "FileError",
    "HAdam",
    "Job",
    "KahanEMA",
    "Kept",
    "LossScaler",
    "MasterWeights",
    "Mismatch",
    "PlainEMA",
    "Progress",
    "Quantization",
    "QuantizedRun",
    "Result",
    "RunError",
    "SquashedNormal",
    "StoredEMA",
    "StoredLayers",
    "TrainConfig",
    "coerce_",
    "export",
    "importance_weights",
    "kahan_add_",
    "mismatch",
    "noise_log_prob",
    "normal_log_prob",
    "normal_log_prob_naive",
    "quantize",
    "recursions",
    "softplus",
    "softplus_naive",
    "stochastic_kahan_add_",
    "stochastic_mean_",
    "stochastic_mean_square_",
    "stochastic_projection",
    "stochastic_returns",
    "stochastic_root_",
    "stochastic_target",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with from_extras():
        module = _MODULES[name]
        return getattr(import_module(module if module.startswith("roundoff") else f"{__name__}.{module}"), name)
