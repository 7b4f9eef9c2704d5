"""Which names Python code uses: where a function can find what it does not get as an argument."""

from __future__ import annotations

import functools
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALWAYS = {*sys.stdlib_module_names, "torch", "numpy", "roundoff"} - {"__main__"}
_INSTALLED = ("site-packages", "dist-packages")


@final
class Libraries:
    """Python modules whose code is not looked into: those of Python, PyTorch, and of installed packages.

    Args:
        own: the module of the step, whose package is no library, wherever it is installed.
    """

    def __init__(self, own: str | None) -> None:
        self._known: dict[str, bool] = {} if own is None else {own.partition(".")[0]: False}

    def __contains__(self, module: object) -> bool:
        if not isinstance(module, str):
            return True
        root = module.partition(".")[0]
        if root not in self._known:
            file = getattr(sys.modules.get(root), "__file__", None) or ""
            self._known[root] = root in _ALWAYS or any(folder in file for folder in _INSTALLED)
        return self._known[root]


@functools.cache
def names_in(code: CodeType) -> frozenset[str]:
    """Names of globals and attributes that a piece of code, or code inside it, uses."""
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


def methods(kind: type, libraries: Libraries) -> Iterator[tuple[str, FunctionType]]:
    """The functions of a class and its bases, by name: methods, properties; none of libraries."""
    for base in kind.__mro__:
        if base.__module__ not in libraries:
            for name, value in vars(base).items():
                for function in _functions(value):
                    yield name, function


def _functions(value: Any) -> list[FunctionType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    parts = [value]
    if isinstance(value, property):
        parts = [value.fget, value.fset]
    elif isinstance(value, functools.cached_property):
        parts = [value.func]
    return [part for part in parts if isinstance(part, FunctionType)]
