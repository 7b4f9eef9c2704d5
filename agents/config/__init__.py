"""The config of a run: its keys, their defaults, and the rules about combinations of them.

The names below are for the other folders, which import the keys only through this package; each is imported when
it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.extras import lazy_names

if TYPE_CHECKING:
    from .actor_keys import has_actors as has_actors
    from .fields import KeyRole as KeyRole
    from .fields import Panel as Panel
    from .fields import Positive as Positive
    from .fields import key as key
    from .fixes import BASELINES as BASELINES
    from .fixes import FIXES as FIXES
    from .fixes import OPTIONAL_FIXES as OPTIONAL_FIXES
    from .fixes import PARTS_OF_FIXES as PARTS_OF_FIXES
    from .own_algorithms import WRITTEN as WRITTEN
    from .own_algorithms import check_own_algorithm as check_own_algorithm
    from .own_algorithms import module_of_algorithm as module_of_algorithm
    from .own_algorithms import modules_of_algorithms_in as modules_of_algorithms_in
    from .quantization_aware import QuantizationAware as QuantizationAware
    from .recursions import is_about_values as is_about_values
    from .recursions import remarks as remarks
    from .recursions import remarks_on as remarks_on
    from .registry import drawn_values as drawn_values
    from .registry import fields_of as fields_of
    from .registry import keys as keys
    from .registry import keys_with as keys_with
    from .registry import leading as leading
    from .registry import panels as panels
    from .registry import without_policy as without_policy
    from .train_config import ALGORITHMS as ALGORITHMS
    from .train_config import LIBRARIES as LIBRARIES
    from .train_config import TrainConfig as TrainConfig
    from .train_config import check_device as check_device
    from .train_config import check_policy as check_policy
    from .train_config import config_class as config_class
    from .train_config import config_of as config_of

__getattr__ = lazy_names(__name__)
