"""The config of a run: its keys, their defaults, and the rules about combinations of them.

The names below are for the other folders, which import the keys only through this package; each is imported when
it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

if TYPE_CHECKING:
    from .actor_keys import has_actors
    from .fields import KeyRole, Panel, Positive, key
    from .fixes import BASELINES, FIXES, OPTIONAL_FIXES, PARTS_OF_FIXES
    from .own_algorithms import WRITTEN, modules_of_algorithms_in
    from .own_algorithms import check as check_own_algorithm
    from .own_algorithms import module_of as module_of_algorithm
    from .quantization_aware import QuantizationAware
    from .recursions import is_about_values, remarks, remarks_on
    from .registry import drawn_values, keys, keys_with, leading, panels, without_policy
    from .registry import fields as fields_of
    from .train_config import ALGORITHMS, LIBRARIES, TrainConfig, check_device, check_policy, config_class, config_of

__all__ = [
    "ALGORITHMS",
    "BASELINES",
    "FIXES",
    "LIBRARIES",
    "OPTIONAL_FIXES",
    "PARTS_OF_FIXES",
    "WRITTEN",
    "KeyRole",
    "Panel",
    "Positive",
    "QuantizationAware",
    "TrainConfig",
    "check_device",
    "check_own_algorithm",
    "check_policy",
    "config_class",
    "config_of",
    "drawn_values",
    "fields_of",
    "has_actors",
    "is_about_values",
    "key",
    "keys",
    "keys_with",
    "leading",
    "module_of_algorithm",
    "modules_of_algorithms_in",
    "panels",
    "remarks",
    "remarks_on",
    "without_policy",
]

__getattr__ = lazy_names(__name__)
