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


class _Replaced(NamedTuple):
    """A function that is replaced by another function."""

    owner: Any
    """The module or class."""
    attribute: str
    plain: Any
    """The attribute's old value; None where a class inherited it."""
    wrapped: Any


@final
class NamedFunctions:
    """Puts a block around each call of some functions, between :meth:`enter` and :meth:`leave`.

    A function is replaced where its name says, in its module or class. Who imported it by name before has the plain
    one.

    Args:
        blocks: for each name, ``package.module:function`` or ``package.module:Class.method``, what makes the block that
            a call enters; asked in each call.

    Attributes:
        called: the functions that were called.
    """

    def __init__(self, blocks: Mapping[str, Callable[[], AbstractContextManager[Any]]]) -> None:
        self._blocks = blocks
        self._lock = new_lock()
        self._count = 0
        self._replaced: list[_Replaced] = []
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
                    self._put_back()
                    raise
            self._count += 1

    def leave(self) -> None:
        """Puts the plain functions back, but where others have put something in their place."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._put_back()

    def _replace(self, name: str, make: Callable[[], AbstractContextManager[Any]]) -> None:
        def block() -> AbstractContextManager[Any]:
            self.called.add(name)
            return make()

        owner, attribute, plain = _locate(name)
        bound = isinstance(plain, (staticmethod, classmethod))
        wrapped: Any = decorated(plain.__func__ if bound else plain, block, "exact_in or only_in")
        wrapped = type(plain)(wrapped) if bound else wrapped
        own = attribute in vars(owner)
        setattr(owner, attribute, wrapped)
        self._replaced.append(_Replaced(owner, attribute, plain if own else None, wrapped))

    def _put_back(self) -> None:
        for owner, attribute, plain, wrapped in reversed(self._replaced):
            if getattr_static(owner, attribute, None) is not wrapped:
                continue
            if plain is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, plain)
        self._replaced = []


def _locate(name: str) -> tuple[Any, str, Any]:
    """The module or class that has the function, its attribute, and the function as stored there."""
    module, _, path = name.partition(":")
    try:
        owner: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise FormatError(f"policy names the function {name!r}: {error}") from None
    *around, last = path.split(".")
    for part in around:
        owner = _part(owner, part, name)
    function = _part(owner, last, name)
    if isclass(function) or isasyncgenfunction(function) or not callable(function):
        raise FormatError(f"policy names {name!r}, which is no function or method but {function!r}")
    return owner, last, vars(owner).get(last) or getattr_static(owner, last)


def _part(owner: Any, part: str, name: str) -> Any:
    if not hasattr(owner, part):
        there = [known for known in dir(owner) if callable(getattr(owner, known, None))]
        raise FormatError(
            f"policy names the function {name!r}, and {getattr(owner, '__name__', owner)} has no {part!r}"
            f"{suggestion(part, there)}"
        )
    return getattr(owner, part)
