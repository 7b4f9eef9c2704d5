"""The parts of the fixes, and of similar methods, for your own programs; they do not need an agent.

The pages of :doc:`/docs/fixes/README` show what fails without each, and how it is used. The names are imported when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

if TYPE_CHECKING:
    from roundoff.agents.algorithms.exact_errors import exact_error as exact_error
    from roundoff.agents.algorithms.exact_errors import exact_target as exact_target
    from roundoff.agents.algorithms.stochastic_targets import stochastic_projection as stochastic_projection
    from roundoff.agents.algorithms.stochastic_targets import stochastic_returns as stochastic_returns
    from roundoff.agents.algorithms.stochastic_targets import stochastic_target as stochastic_target
    from roundoff.agents.models.noise_log_prob import noise_log_prob as noise_log_prob
    from roundoff.agents.models.normal_fix import normal_log_prob as normal_log_prob
    from roundoff.agents.models.normal_fix import normal_log_prob_naive as normal_log_prob_naive
    from roundoff.agents.models.softplus_fix import softplus as softplus
    from roundoff.agents.models.softplus_fix import softplus_naive as softplus_naive
    from roundoff.agents.models.squashed_normal import SquashedNormal as SquashedNormal
    from roundoff.agents.models.stored_layers import StoredLayers as StoredLayers
    from roundoff.agents.optimizers.adam import Adam as Adam
    from roundoff.agents.optimizers.compound_loss_scaling import CompoundLossScaler as CompoundLossScaler
    from roundoff.agents.optimizers.dynamic_loss_scale import LossScaler as LossScaler
    from roundoff.agents.optimizers.hadam import HAdam as HAdam
    from roundoff.agents.optimizers.kahan_gradients import kahan_add_ as kahan_add_
    from roundoff.agents.optimizers.kahan_momentum import KahanEMA as KahanEMA
    from roundoff.agents.optimizers.kahan_momentum import PlainEMA as PlainEMA
    from roundoff.agents.optimizers.kahan_momentum import StoredEMA as StoredEMA
    from roundoff.agents.optimizers.master_weights import MasterWeights as MasterWeights
    from roundoff.agents.optimizers.scaled_norms import norm_over as norm_over
    from roundoff.agents.optimizers.scaled_norms import norm_over_naive as norm_over_naive
    from roundoff.agents.optimizers.scaled_norms import standardized as standardized
    from roundoff.agents.optimizers.scaled_norms import standardized_naive as standardized_naive
    from roundoff.agents.optimizers.stochastic_compensation import stochastic_kahan_add_ as stochastic_kahan_add_
    from roundoff.agents.optimizers.stochastic_moments import stochastic_mean_ as stochastic_mean_
    from roundoff.agents.optimizers.stochastic_moments import stochastic_mean_square_ as stochastic_mean_square_
    from roundoff.agents.optimizers.stochastic_moments import stochastic_root_ as stochastic_root_
    from roundoff.agents.stored import Kept as Kept
    from roundoff.agents.stored import coerce_ as coerce_

__getattr__ = lazy_names(__name__)
