"""From a YAML file to finished runs: planning, executing, and the folder that holds the results.

The names are imported when they are first used: planning needs PyTorch, and the list of presets must not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roundoff.extras import from_extras

if TYPE_CHECKING:
    from .errors import SweepError, SweepFileError
    from .language.plan import Plan, plan_file, plan_text
    from .language.run import Run
    from .sweep import Summary, run_sweep

__all__ = ["Plan", "Run", "Summary", "SweepError", "SweepFileError", "plan_file", "plan_text", "run_sweep"]

_PARTS = (".errors", ".language.plan", ".language.run", ".sweep")


def __getattr__(name: str) -> Any:
    if name in __all__:
        with from_extras():
            for part in _PARTS:
                module = import_module(part, __name__)
                if name in vars(module):
                    return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
