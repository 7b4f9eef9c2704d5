"""Functions that run each call in a ``with`` block: plain ones, methods, generators and coroutines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar, cast

from ...formats import FormatError

_F = TypeVar("_F", bound="Callable[..., Any]")


def decorated(function: _F, block: Callable[[], AbstractContextManager[Any]], name: str) -> _F:
    """Wraps ``function`` so that each call is a separate block.

    Args:
        function: function of any kind but an asynchronous generator.
        block: makes the context that a call enters. A generator or coroutine is in its block while it runs.
        name: name of the decorator, as in ``roundoff.exact()``.

    Raises:
        FormatError: it is a class, or an asynchronous generator.
    """
    if isclass(function) or isasyncgenfunction(function) or not callable(function):
        raise FormatError(
            f"{name} decorates functions, methods, generators and coroutines, got {function!r}: write"
            f" `with {name}:` inside of it"
        )
    return cast("_F", _decorated(function, block))


def _decorated(function: Any, block: Callable[[], AbstractContextManager[Any]]) -> Any:
    # The body of a generator or coroutine runs after the call has returned, when a plain wrapper has left the block.
    if isgeneratorfunction(function):

        @wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with block():
                return (yield from function(*args, **kwargs))

        return generator
    if iscoroutinefunction(function):

        @wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with block():
                return await function(*args, **kwargs)

        return coroutine

    @wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return plain
