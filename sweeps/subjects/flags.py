"""Programs that read flags by argparse: ``main(args)``, ``main()`` and ``main(argv=None)``, called with a sweep's keys.

The parser says which keys there are, and their types and defaults, as parameters do of a plain function.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from textwrap import dedent
from types import FunctionType
from typing import Any, NoReturn

from ..errors import SweepError
from ..user_code import describe_error
from .flag_values import GivenFlags, keys_of_flags, reading_by

_PARSED = ("args", "arguments", "opt", "opts", "options")  # names of a parameter that takes parsed flags
_READING = {"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"}


class _Reached(BaseException):
    """A parser is about to read the command line."""

    def __init__(self, parser: ArgumentParser) -> None:
        self.parser = parser


def with_flags(text: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the flags as its parameters, if ``function`` reads flags; else ``function``.

    A function reads flags if its one parameter is called ``args`` (or is annotated as ``Namespace``) and its module
    uses argparse. It also reads flags if it calls ``parse_args`` without a parameter, or with one for the words of
    the command line, such as ``argv=None``.

    Args:
        text: The function's name in the sweep file.
        function: The imported function.

    Raises:
        SweepError: its parser cannot be found, or has flags that cannot be keys.
    """
    if type(function).__module__.partition(".")[0] in ("click", "typer"):
        raise SweepError(f"{text} is a command of click, whose flags are no keys; name a plain function")
    if not isinstance(function, FunctionType):
        return function
    parameters = list(inspect.signature(function).parameters.values())
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    called = [one for one in named if isinstance(one, FunctionType) and one.__module__ == function.__module__]
    reads = [not _READING.isdisjoint(one.__code__.co_names) for one in (function, *called)]
    if len(parameters) == 1 and _takes_flags(parameters[0], function.__globals__, reads_them=reads[0]):
        return _adapted(text, function, _parser_beside(text, function))
    words = [one for one in parameters[:1] if one.name in (*_PARSED, "argv") and one.default in (None, one.empty)]
    return _adapted(text, function) if any(reads) and words == parameters else function


def is_success(function: Callable[..., Any], returned: Any) -> bool:
    """Whether a program with flags returns the exit status of success, as for ``sys.exit(main())``."""
    return type(returned) is int and returned == 0 and getattr(function, "reads_flags", False)


def _takes_flags(parameter: inspect.Parameter, names: Mapping[str, Any], *, reads_them: bool) -> bool:
    if parameter.default is not parameter.empty:
        return False
    if parameter.annotation in (Namespace, "Namespace", "argparse.Namespace"):
        return True
    uses = any(value is argparse or value is ArgumentParser for value in names.values())
    return uses and parameter.annotation is parameter.empty and parameter.name in _PARSED and not reads_them


def _parser_beside(text: str, function: FunctionType) -> Callable[[], Any]:
    """Makes the parser of the module: one of its variables, or the result of one of its functions.

    A function that reads the flags and returns something is called by each run instead, since it may complete them.

    Raises:
        SweepError: no parser is found, or several.
    """
    names = function.__globals__
    functions = {
        name: one
        for name, one in names.items()
        if isinstance(one, FunctionType) and one.__module__ == function.__module__ and one is not function
        if all(needed.default is not needed.empty for needed in inspect.signature(one).parameters.values())
    }
    found: dict[str, Any] = {name: one for name, one in names.items() if isinstance(one, ArgumentParser)}
    found = found or {name: one for name, one in functions.items() if "ArgumentParser" in one.__code__.co_names}
    readers = {name: one for name, one in functions.items() if _completes(one, function)}
    for name, reader in readers.items():
        if inner := found.keys() & set(reader.__code__.co_names):
            found = {other: one for other, one in found.items() if other not in inner} | {name: reader}
    if len(found) > 1:
        raise SweepError(f"{text} takes parsed flags, but there are several parsers beside it: {', '.join(found)}")
    if found:
        [(name, maker)] = found.items()
        return (
            maker if name in readers else lambda: maker if isinstance(maker, ArgumentParser) else _reached(text, maker)
        )
    raise SweepError(
        f"{text} takes parsed flags, but no parser is found beside it: one that is made under `if __name__ == "
        f"'__main__':` is not made by an import. Put it into a function that returns it, such as `def parser():`"
    )


def _completes(reader: FunctionType, function: FunctionType) -> bool:
    """Whether a function reads flags for another function, and returns them."""
    if _READING.isdisjoint(reader.__code__.co_names) or function.__name__ in reader.__code__.co_names:
        return False
    try:
        tree = ast.parse(dedent(inspect.getsource(reader)))
    except (OSError, SyntaxError):
        return False
    return any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(tree))


def _reached(text: str, function: Callable[[], Any]) -> ArgumentParser:
    """The parser that a function returns, or that it is about to read the command line with.

    Raises:
        SweepError: neither happens, or it raises something before.
    """

    def stop(parser: ArgumentParser, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _Reached(parser)

    try:
        with reading_by(stop):
            made = function()
    except _Reached as reached:
        return reached.parser
    except (Exception, SystemExit) as error:
        raise SweepError(f"{text}: before it reads its flags, {describe_error(error)}") from error
    if isinstance(made, ArgumentParser):
        return made
    raise SweepError(
        f"{text}: {getattr(function, '__name__', function)} makes a parser, but neither reads nor returns it"
    )


def _adapted(text: str, function: FunctionType, maker: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """A function of the flags, which calls ``function`` as the command line would.

    Args:
        text: The function's name in the sweep file.
        function: The program's function.
        maker: The maker of the parser, or of the parsed flags, that the function takes; None if it reads them itself.
    """
    words = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]

    def call() -> Any:
        before, sys.argv = sys.argv, [function.__code__.co_filename]
        try:
            return function(*[sys.argv] * len(words))
        finally:
            sys.argv = before

    def called(**given: Any) -> Any:
        flags = GivenFlags(text, given)
        with reading_by(flags.read):
            if maker is None:
                returned = call()
            else:
                made = maker()
                parsed = made.parse_args() if isinstance(made, ArgumentParser) else made
                returned = function(parsed if isinstance(parsed, Namespace) else flags.namespace)
        flags.check_read()
        return returned

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(called, name, getattr(function, name))
    call.__name__ = function.__name__
    called.reads_flags = True  # type: ignore[attr-defined]
    parameters = keys_of_flags(text, _reached(text, maker or call))
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
