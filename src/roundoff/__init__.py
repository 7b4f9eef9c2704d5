"""Simulate number formats in PyTorch programs, and find out how few bits a training run needs.

The names are imported when they are first used: PyTorch takes seconds to import, and ``roundoff --help`` must not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundoff.agents import export, importance_weights, mismatch
    from roundoff.current_run import checkpoint, log, restore
    from roundoff.formats import (
        FloatFormat,
        Format,
        FormatError,
        KernelWarning,
        Overflow,
        RandomBits,
        Rounding,
        RoundoffError,
        TableFormat,
        register,
        round,
    )
    from roundoff.simulate import (
        Accumulation,
        Blame,
        CompiledStep,
        CompileWarning,
        FusedSum,
        Policy,
        PolicyWarning,
        Rule,
        Simulation,
        SimulationWarning,
        Watcher,
        blame,
        compile,  # noqa: A004  the name that torch has for it
        exact,
        in_role,
        part,
        simulate,
        store,
    )
    from roundoff.sweeps.from_python import sweep

__version__ = "0.1.0"

__all__ = [
    "Accumulation",
    "Blame",
    "CompileWarning",
    "CompiledStep",
    "FloatFormat",
    "Format",
    "FormatError",
    "FusedSum",
    "KernelWarning",
    "Overflow",
    "Policy",
    "PolicyWarning",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "Rule",
    "Simulation",
    "SimulationWarning",
    "TableFormat",
    "Watcher",
    "blame",
    "checkpoint",
    "compile",
    "exact",
    "export",
    "importance_weights",
    "in_role",
    "log",
    "mismatch",
    "part",
    "register",
    "restore",
    "round",
    "simulate",
    "store",
    "sweep",
]

# In this order: the first are soon imported.
_PARTS = (
    "roundoff.current_run",
    "roundoff.formats",
    "roundoff.simulate",
    "roundoff.agents",
    "roundoff.sweeps.from_python",
)
_NEED_EXTRAS = ("export", "sweep")


class _Umbrella(ModuleType):
    """This module: looks names up where they are defined."""

    def __getattr__(self, name: str) -> Any:
        if name == "formats":
            return import_module("roundoff.formats")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for part in _PARTS:
            extras = import_module("roundoff.extras")
            try:
                with extras.heavy_imports():
                    module = import_module(part)
                    value = getattr(module, name) if name in module.__all__ else None
            except ImportError as error:
                if name in _NEED_EXTRAS and isinstance(error, extras.MissingExtraError):
                    return _missing(name, error)
                raise
            if value is not None:
                self.__dict__[name] = value
                return value
        raise AssertionError(name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})

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
