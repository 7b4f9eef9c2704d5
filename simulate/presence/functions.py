"""Functions named by a policy; each call runs in a block: without rounding, or with rounding only there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from inspect import getattr_static, isasyncgenfunction, isclass
from typing import Any, NamedTuple, final

from roundoff.errors import suggestion
from roundoff.locks import new_lock

from ...formats import FormatError
from .decorating import decorated


class _Replacement(NamedTuple):
    """The replacement of a function."""

    owner: Any
    """The module or class."""
    attribute: str
    plain: Any
    """The old value of the attribute; None if the class inherited it."""
    wrapped: Any


@final
class NamedFunctions:
    """Puts a block around each call of some functions, between :meth:`enter` and :meth:`leave`.

    It replaces the function in its module or class. Code that imported the function by name before keeps the original.

    Args:
        blocks: for each name, ``package.module:function`` or ``package.module:Class.method``, a function that makes the
            block of one call.

    Attributes:
        called: the functions that were called.
    """

    def __init__(self, blocks: Mapping[str, Callable[[], AbstractContextManager[Any]]]) -> None:
        self._blocks = blocks
        self._lock = new_lock()
        self._count = 0
        self._replacements: list[_Replacement] = []
        self.called: set[str] = set()

    def enter(self) -> None:
        """Imports the modules, and replaces the functions; all of them, or none.

        Raises:
            FormatError: the module or function does not exist, or is not a function.
        """
        with self._lock:
            if self._count == 0:
                try:
                    for name, block in self._blocks.items():
                        self._replace(name, block)
                except BaseException:
                    self._restore()
                    raise
            self._count += 1

    def leave(self) -> None:
        """Restores the functions, except for attributes that others have replaced meanwhile."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._restore()

    def _replace(self, name: str, make_block: Callable[[], AbstractContextManager[Any]]) -> None:
        def enter_block() -> AbstractContextManager[Any]:
            self.called.add(name)
            return make_block()

        owner, attribute, plain = _locate(name)
        bound = isinstance(plain, (staticmethod, classmethod))
        wrapped: Any = decorated(plain.__func__ if bound else plain, enter_block, "exact_in or only_in")
        wrapped = type(plain)(wrapped) if bound else wrapped
        is_inherited = attribute not in vars(owner)  # then the end deletes the attribute, instead of copying it down
        setattr(owner, attribute, wrapped)
        self._replacements.append(_Replacement(owner, attribute, None if is_inherited else plain, wrapped))

    def _restore(self) -> None:
        for owner, attribute, plain, wrapped in reversed(self._replacements):
            if getattr_static(owner, attribute, None) is not wrapped:  # others have replaced it meanwhile
                continue
            if plain is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, plain)
        self._replacements = []


def _locate(name: str) -> tuple[Any, str, Any]:
    """Returns the module or class that has the function, its attribute, and the attribute's stored value."""
    module, _, path = name.partition(":")
    try:
        owner: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise FormatError(f"policy names the function {name!r}: {error}") from None
    *outer, last = path.split(".")
    for part in outer:
        owner = _attribute(owner, part, name)
    function = _attribute(owner, last, name)
    if isclass(function) or isasyncgenfunction(function) or not callable(function):
        raise FormatError(f"policy names {name!r}, which is no function or method but {function!r}")
    return owner, last, vars(owner).get(last) or getattr_static(owner, last)


def _attribute(owner: Any, part: str, name: str) -> Any:
    if not hasattr(owner, part):
        functions = [candidate for candidate in dir(owner) if callable(getattr(owner, candidate, None))]
        raise FormatError(
            f"policy names the function {name!r}, and {getattr(owner, '__name__', owner)} has no {part!r}"
            f"{suggestion(part, functions)}"
        )
    return getattr(owner, part)
