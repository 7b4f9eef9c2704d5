"""The parts of the fixes and of their peers that help in a program of one's own; each needs no agent.

The pages of :doc:`/docs/fixes/README` show what fails without each, and how it is used. The names are imported when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundoff.agents.algorithms.exact_errors import exact_error, exact_target
    from roundoff.agents.algorithms.stochastic_targets import (
        stochastic_projection,
        stochastic_returns,
        stochastic_target,
    )
    from roundoff.agents.coercion import coerce_
    from roundoff.agents.models.noise_log_prob import noise_log_prob
    from roundoff.agents.models.normal_fix import normal_log_prob, normal_log_prob_naive
    from roundoff.agents.models.softplus_fix import softplus, softplus_naive
    from roundoff.agents.models.squashed_normal import SquashedNormal
    from roundoff.agents.models.stored_layers import StoredLayers
    from roundoff.agents.optimizers.adam import Adam
    from roundoff.agents.optimizers.compound_loss_scaling import CompoundLossScaler
    from roundoff.agents.optimizers.hadam import HAdam
    from roundoff.agents.optimizers.kahan_gradients import kahan_add_
    from roundoff.agents.optimizers.kahan_momentum import KahanEMA, PlainEMA, StoredEMA
    from roundoff.agents.optimizers.loss_scaling import LossScaler
    from roundoff.agents.optimizers.master_weights import MasterWeights
    from roundoff.agents.optimizers.scaled_norms import norm_over, norm_over_naive, standardized, standardized_naive
    from roundoff.agents.optimizers.stochastic_compensation import stochastic_kahan_add_
    from roundoff.agents.optimizers.stochastic_moments import (
        stochastic_mean_,
        stochastic_mean_square_,
        stochastic_root_,
    )
    from roundoff.agents.stored import Kept

_MODULES = {
    "Adam": "optimizers.adam",
    "CompoundLossScaler": "optimizers.compound_loss_scaling",
    "HAdam": "optimizers.hadam",
    "KahanEMA": "optimizers.kahan_momentum",
    "Kept": "stored",
    "LossScaler": "optimizers.loss_scaling",
    "MasterWeights": "optimizers.master_weights",
    "PlainEMA": "optimizers.kahan_momentum",
    "SquashedNormal": "models.squashed_normal",
    "StoredEMA": "optimizers.kahan_momentum",
    "StoredLayers": "models.stored_layers",
    "coerce_": "coercion",
    "exact_error": "algorithms.exact_errors",
    "exact_target": "algorithms.exact_errors",
    "kahan_add_": "optimizers.kahan_gradients",
    "noise_log_prob": "models.noise_log_prob",
    "norm_over": "optimizers.scaled_norms",
    "norm_over_naive": "optimizers.scaled_norms",
    "normal_log_prob": "models.normal_fix",
    "normal_log_prob_naive": "models.normal_fix",
    "softplus": "models.softplus_fix",
    "softplus_naive": "models.softplus_fix",
    "standardized": "optimizers.scaled_norms",
    "standardized_naive": "optimizers.scaled_norms",
    "stochastic_kahan_add_": "optimizers.stochastic_compensation",
    "stochastic_mean_": "optimizers.stochastic_moments",
    "stochastic_mean_square_": "optimizers.stochastic_moments",
    "stochastic_projection": "algorithms.stochastic_targets",
    "stochastic_returns": "algorithms.stochastic_targets",
    "stochastic_root_": "optimizers.stochastic_moments",
    "stochastic_target": "algorithms.stochastic_targets",
}

__all__ = [
    "Adam",
    "CompoundLossScaler",
    "HAdam",
    "KahanEMA",
    "Kept",
    "LossScaler",
    "MasterWeights",
    "PlainEMA",
    "SquashedNormal",
    "StoredEMA",
    "StoredLayers",
    "coerce_",
    "exact_error",
    "exact_target",
    "kahan_add_",
    "noise_log_prob",
    "norm_over",
    "norm_over_naive",
    "normal_log_prob",
    "normal_log_prob_naive",
    "softplus",
    "softplus_naive",
    "standardized",
    "standardized_naive",
    "stochastic_kahan_add_",
    "stochastic_mean_",
    "stochastic_mean_square_",
    "stochastic_projection",
    "stochastic_returns",
    "stochastic_root_",
    "stochastic_target",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"roundoff.agents.{_MODULES[name]}"), name)
