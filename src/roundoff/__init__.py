"""Simulate number formats in PyTorch programs, and find out how few bits a training run needs.

The names are imported when they are first used: PyTorch takes seconds to import, and ``roundoff --help`` must not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from roundoff.extras import MissingExtraError, lazy_names

if TYPE_CHECKING:
    from roundoff.agents import export as export
    from roundoff.agents import importance_weights as importance_weights
    from roundoff.agents import mismatch as mismatch
    from roundoff.current_run import checkpoint as checkpoint
    from roundoff.current_run import log as log
    from roundoff.current_run import restore as restore
    from roundoff.formats import FloatFormat as FloatFormat
    from roundoff.formats import Format as Format
    from roundoff.formats import FormatError as FormatError
    from roundoff.formats import KernelWarning as KernelWarning
    from roundoff.formats import Overflow as Overflow
    from roundoff.formats import RandomBits as RandomBits
    from roundoff.formats import Rounding as Rounding
    from roundoff.formats import RoundoffError as RoundoffError
    from roundoff.formats import TableFormat as TableFormat
    from roundoff.formats import register as register
    from roundoff.formats import round as round
    from roundoff.simulate import Accumulation as Accumulation
    from roundoff.simulate import Blame as Blame
    from roundoff.simulate import CompiledStep as CompiledStep
    from roundoff.simulate import CompileWarning as CompileWarning
    from roundoff.simulate import DiffReport as DiffReport
    from roundoff.simulate import DigitsReport as DigitsReport
    from roundoff.simulate import FusedSum as FusedSum
    from roundoff.simulate import Policy as Policy
    from roundoff.simulate import PolicyWarning as PolicyWarning
    from roundoff.simulate import Rule as Rule
    from roundoff.simulate import Simulation as Simulation
    from roundoff.simulate import SimulationWarning as SimulationWarning
    from roundoff.simulate import Watcher as Watcher
    from roundoff.simulate import blame as blame
    from roundoff.simulate import compile as compile  # noqa: A004  the name that torch has for it
    from roundoff.simulate import diff as diff
    from roundoff.simulate import digits as digits
    from roundoff.simulate import exact as exact
    from roundoff.simulate import in_role as in_role
    from roundoff.simulate import part as part
    from roundoff.simulate import simulate as simulate
    from roundoff.simulate import store as store
    from roundoff.sweeps.from_python import sweep as sweep

__version__ = "0.1.0"

_NEED_EXTRAS = ("export", "sweep")
_look_up = lazy_names(__name__)


class _Umbrella(ModuleType):
    """This module: looks names up where they are defined."""

    def __getattr__(self, name: str) -> Any:
        if name == "formats":
            return import_module("roundoff.formats")
        try:
            value = _look_up(name)
        except MissingExtraError as error:
            if name in _NEED_EXTRAS:
                return _missing(name, error)
            raise
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *_look_up("__all__")})

    # Importing the package roundoff.simulate would put it where the function is looked for.
    @property
    def simulate(self) -> Any:
        return import_module("roundoff.simulate").simulate

    @simulate.setter
    def simulate(self, _package: ModuleType) -> None:
        pass


def _missing(name: str, error: ImportError) -> Any:
    """Returns a stand-in for a function that needs missing packages, so that looking up names raises nothing."""

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    missing.__name__ = missing.__qualname__ = name
    missing.__module__ = __name__
    missing.__doc__ = f"Raises an error where packages are missing: {error}."
    return missing


sys.modules[__name__].__class__ = _Umbrella
