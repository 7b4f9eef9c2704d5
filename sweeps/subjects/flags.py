"""Programs that read flags by argparse: ``main(args)``, ``main()`` and ``main(argv=None)``, called with a sweep's keys.

The parser defines the keys, their types and their defaults, like the parameters of a plain function.
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
from .flag_values import FlagValues, keys_of_flags, reading_by

_PARSED = ("args", "arguments", "opt", "opts", "options")  # names of parameters that take parsed flags
_READING = {"parse_args", "parse_known_args", "parse_intermixed_args", "parse_args_into_dataclasses"}


class _ParserFound(BaseException):
    """Raised in place of parsing, with the parser that is about to read the command line."""

    def __init__(self, parser: ArgumentParser) -> None:
        self.parser = parser


def with_flags(text: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a function that reads flags into one with the flags as its parameters; returns others unchanged.

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
        raise SweepError(f"{text} is a command of click; name a plain function")
    if not isinstance(function, FunctionType):
        return function
    # The names in compiled code tell whether the function, or a helper in its file, parses flags: nothing is run yet.
    parameters = list(inspect.signature(function).parameters.values())
    referenced = [function.__globals__.get(name) for name in function.__code__.co_names]
    helpers = [x for x in referenced if isinstance(x, FunctionType) and x.__module__ == function.__module__]
    reads = [not _READING.isdisjoint(reader.__code__.co_names) for reader in (function, *helpers)]
    if len(parameters) == 1 and _takes_flags(parameters[0], function.__globals__, reads_them=reads[0]):
        return _adapt(text, function, _find_parser_maker(text, function))
    words = [x for x in parameters[:1] if x.name in (*_PARSED, "argv") and x.default in (None, x.empty)]
    return _adapt(text, function) if any(reads) and words == parameters else function


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


def _find_parser_maker(text: str, function: FunctionType) -> Callable[[], Any]:
    """Finds the maker of the parser in the module of ``function``: a variable, or another function.

    A function that reads the flags and returns them is called by each run instead, since it may complete them.

    Raises:
        SweepError: no parser is found, or several.
    """
    names = function.__globals__
    functions = {
        name: value
        for name, value in names.items()
        if isinstance(value, FunctionType) and value.__module__ == function.__module__ and value is not function
        if all(parameter.default is not parameter.empty for parameter in inspect.signature(value).parameters.values())
    }
    makers: dict[str, Any] = {name: value for name, value in names.items() if isinstance(value, ArgumentParser)}
    # A parser at the top of the module is used as it is; else the functions that mention ArgumentParser make one.
    makers = makers or {name: value for name, value in functions.items() if "ArgumentParser" in value.__code__.co_names}
    readers = {name: value for name, value in functions.items() if _returns_flags(value, function)}
    for name, reader in readers.items():  # a reader that calls a maker replaces it
        if inner := makers.keys() & set(reader.__code__.co_names):
            makers = {key: value for key, value in makers.items() if key not in inner} | {name: reader}
    if len(makers) > 1:
        raise SweepError(f"{text} takes parsed flags, but its file has several parsers: {', '.join(makers)}")
    if makers:
        [(name, maker)] = makers.items()
        if name in readers:
            return maker  # type: ignore[no-any-return]
        return lambda: maker if isinstance(maker, ArgumentParser) else _find_parser(text, maker)
    raise SweepError(
        f"{text} takes parsed flags, but its file has no parser: a parser that is made under `if __name__ == "
        f"'__main__':` is not made by an import. Put it into a function that returns it, such as `def parser():`"
    )


def _returns_flags(reader: FunctionType, function: FunctionType) -> bool:
    """Whether a function reads flags for another function, and returns them."""
    if _READING.isdisjoint(reader.__code__.co_names) or function.__name__ in reader.__code__.co_names:
        return False
    try:
        tree = ast.parse(dedent(inspect.getsource(reader)))
    except (OSError, SyntaxError):
        return False
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree))


def _find_parser(text: str, function: Callable[[], Any]) -> ArgumentParser:
    """Calls a function; returns the parser that it returns, or that is about to read the command line.

    Raises:
        SweepError: it does neither, or it raises something before.
    """

    def stop(parser: ArgumentParser, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _ParserFound(parser)

    try:
        with reading_by(stop):
            result = function()
    except _ParserFound as found:
        return found.parser
    except (Exception, SystemExit) as error:
        raise SweepError(f"{text}: before it reads its flags, {describe_error(error)}") from error
    if isinstance(result, ArgumentParser):
        return result
    raise SweepError(
        f"{text}: {getattr(function, '__name__', function)} makes a parser, but neither reads nor returns it"
    )


def _adapt(text: str, function: FunctionType, maker: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Makes a function of the flags that calls ``function`` as the command line would.

    Args:
        text: The function's name in the sweep file.
        function: The program's function.
        maker: Makes the parser, or the parsed flags, that the function takes; None if the function reads the flags.
    """
    words = [x for x in inspect.signature(function).parameters.values() if x.default is x.empty]

    def call() -> Any:
        original, sys.argv = sys.argv, [function.__code__.co_filename]  # no flags: the values come from `reading_by`
        try:
            return function(*[sys.argv] * len(words))
        finally:
            sys.argv = original

    def called(**values: Any) -> Any:
        flags = FlagValues(text, values)
        with reading_by(flags.read):
            if maker is None:
                returned = call()
            else:
                parser = maker()
                parsed = parser.parse_args() if isinstance(parser, ArgumentParser) else parser
                returned = function(parsed if isinstance(parsed, Namespace) else flags.namespace)
        flags.check_read()
        return returned

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(called, name, getattr(function, name))
    call.__name__ = function.__name__
    called.reads_flags = True  # type: ignore[attr-defined]
    parameters = keys_of_flags(text, _find_parser(text, maker or call))
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
