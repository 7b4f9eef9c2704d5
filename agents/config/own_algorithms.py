"""Users' algorithms, which are named ``MODULE:CLASS`` after the class of their configs."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from roundoff.own_modules import NAME, import_all, look_in, looked_in

HOW_WRITTEN = "MODULE:CLASS"
"""Notation of a user's algorithm, for messages."""

WRITTEN = rf"({NAME}):[^\W\d]\w*"
"""The regular expression for a user's algorithm; its group is the module."""

_LIBRARIES = ("sb3", "tianshou")  # Their algorithms are written LIBRARY:NAME.
_classes: dict[str, type[Any]] = {}


def module_of_algorithm(algorithm: object) -> str | None:
    """Returns the module of an algorithm that a user wrote; None for other algorithms."""
    match = re.fullmatch(WRITTEN, algorithm) if isinstance(algorithm, str) else None
    return match[1] if match and match[1] not in _LIBRARIES else None


def modules_of_algorithms_in(text: str) -> list[str]:
    """Returns the modules of algorithms that a ``key=value`` argument names."""
    key, _, values = text.partition("=")
    names = re.split(r"[\[\],\s\"']+", values) if key == "algorithm" else []
    return [module for name in names if (module := module_of_algorithm(name))]


def note(kind: type[Any], algorithm: object) -> None:
    """Registers a class of configs with this default of the key ``algorithm``, if it is a user's own."""
    if algorithm == f"{kind.__module__}:{kind.__qualname__}":
        _classes[str(algorithm)] = kind


def known() -> tuple[str, ...]:
    """Returns the users' algorithms of imported modules."""
    return tuple(sorted(_classes))


def class_of(algorithm: str) -> type[Any] | None:
    """Returns the class of an algorithm's configs; None if no imported module has it. Imports nothing."""
    return _classes.get(algorithm)


def check_own_algorithm(algorithm: str, others: Sequence[str]) -> None:
    """Raises ValueError, naming the missing part, if no imported module has an algorithm.

    Args:
        algorithm: as MODULE:CLASS.
        others: other allowed names, for the message.
    """
    module, _, name = algorithm.partition(":")
    if module not in sys.modules:
        raise ValueError(
            f'unknown algorithm "{algorithm}"; allowed are {", ".join(others)}; one of your own needs the module'
            f" {module}, which is not imported only because a file names it: if you trust it, add --allow-import"
            f" {module} (in Python: import it first)"
        )
    config = getattr(sys.modules[module], name, None)
    if config is None:
        raise ValueError(f"algorithm {algorithm}: {module} was imported, but there is no {name} in it")
    fields = getattr(config, "model_fields", {}) if isinstance(config, type) else {}
    if "algorithm" not in fields:
        raise ValueError(
            f"algorithm {algorithm}: {name} must be a class of configs, such as a subclass of OffPolicyKeys, is"
            f" {config!r}"
        )
    if class_of(algorithm) is None:
        raise ValueError(
            f"algorithm {algorithm}: the key algorithm of {name} must be {algorithm!r} by default, is"
            f" {fields['algorithm'].default!r}"
        )
    if not callable(getattr(sys.modules[module], "make", None)):
        lacks = f"{module} needs a function make(config, sizes, device) that makes it"
        raise ValueError(f"algorithm {algorithm}: {lacks}")  # noqa: TRY004  pydantic wants it


def agent_module(algorithm: str) -> ModuleType:
    """Returns the module with ``make`` of one of roundoff's or a user's algorithms; a user's is already imported."""
    module = module_of_algorithm(algorithm)
    return sys.modules[module] if module else import_module(f"..algorithms.{algorithm}.agent", __package__)


def for_others(algorithm: str) -> dict[str, Any]:
    """Returns the imports that another process needs, besides a config, for the same algorithm."""
    module = module_of_algorithm(algorithm)
    return {"modules": [module] if module else [], "look_in": looked_in()}


def import_as_told(order: Mapping[str, Any]) -> None:
    """Imports the modules that :func:`for_others` returned.

    Raises:
        ImportError: a module is not found.
    """
    look_in(order["look_in"])
    import_all(order["modules"])
