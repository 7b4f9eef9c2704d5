"""Programs that read flags by argparse, ``main(args)`` and ``main()``, called with keys of a sweep.

The parser says which keys there are, and their types and defaults, as parameters do of a plain function.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from argparse import ArgumentParser, Namespace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ..errors import SweepError
from ..user_code import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PARSED = ("args", "arguments", "opt", "opts", "options")  # what a parameter is called that is given parsed flags
_OURS = ("format", "policy", "rounding", "accumulate", "granularity", "observe")
_READING = {"parse_args", "parse_known_args"}
_PLAIN = (int, float, str)


class _Reached(BaseException):
    """A parser is about to read the command line."""

    def __init__(self, parser: ArgumentParser) -> None:
        self.parser = parser


def with_flags(text: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose parameters are the flags, if ``function`` reads flags; else ``function``.

    A function reads flags if its one parameter is called ``args`` (or is annotated as ``Namespace``) and its module
    uses argparse; or if it has no parameter, and calls ``parse_args``.

    Args:
        text: what the sweep file calls it.
        function: as it was imported.

    Raises:
        SweepError: its parser cannot be found, or has flags that are no keys.
    """
    if not isinstance(function, FunctionType):
        return function
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters and any(_READING & set(one.__code__.co_names) for one in (function, *_called(function))):
        return _adapted(text, _reached(text, function), function, parsed=False)
    if len(parameters) == 1 and _takes_flags(parameters[0], function.__globals__):
        return _adapted(text, _parser_beside(text, function), function, parsed=True)
    return function


def _takes_flags(parameter: inspect.Parameter, names: Mapping[str, Any]) -> bool:
    if parameter.default is not parameter.empty:
        return False
    if parameter.annotation in (Namespace, "Namespace", "argparse.Namespace"):
        return True
    uses = any(value is argparse or value is ArgumentParser for value in names.values())
    return uses and parameter.annotation is parameter.empty and parameter.name in _PARSED


def _called(function: FunctionType) -> list[FunctionType]:
    """Functions of the same module that it names."""
    found = (function.__globals__.get(name) for name in function.__code__.co_names)
    return [one for one in found if isinstance(one, FunctionType) and one.__module__ == function.__module__]


def _parser_beside(text: str, function: FunctionType) -> ArgumentParser:
    """The parser of the module: one of its variables, or what one of its functions makes.

    Raises:
        SweepError: there is none, or several.
    """
    names = function.__globals__
    parsers = {name: value for name, value in names.items() if isinstance(value, ArgumentParser)}
    for name, made in names.items() if not parsers else ():
        if isinstance(made, FunctionType) and made.__module__ == function.__module__ and made is not function:
            needs = [one for one in inspect.signature(made).parameters.values() if one.default is one.empty]
            if "ArgumentParser" in made.__code__.co_names and not needs:
                parsers[f"{name}()"] = _reached(text, made)
    if len(parsers) == 1:
        return next(iter(parsers.values()))
    if parsers:
        raise SweepError(f"{text} takes parsed flags, but there are several parsers beside it: {', '.join(parsers)}")
    raise SweepError(
        f"{text} takes parsed flags, but no parser is found beside it: one that is made under `if __name__ == "
        f"'__main__':` is not made by an import. Put it into a function that returns it, such as `def parser():`"
    )


def _reached(text: str, function: Callable[[], Any]) -> ArgumentParser:
    """The parser that a function returns, or with which it is about to read the command line.

    Raises:
        SweepError: neither happens, or it raises something before.
    """

    def stop(parser: ArgumentParser, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _Reached(parser)

    before = ArgumentParser.parse_known_args
    ArgumentParser.parse_known_args = stop  # type: ignore[assignment,method-assign]
    try:
        made = function()
    except _Reached as reached:
        return reached.parser
    except (Exception, SystemExit) as error:
        raise SweepError(f"{text}: before it reads its flags, {described(error)}") from error
    finally:
        ArgumentParser.parse_known_args = before  # type: ignore[method-assign]
    if isinstance(made, ArgumentParser):
        return made
    raise SweepError(
        f"{text}: {getattr(function, '__name__', function)} makes a parser, but neither reads nor returns it"
    )


def _adapted(text: str, parser: ArgumentParser, function: FunctionType, *, parsed: bool) -> Callable[..., Any]:
    """A function of the flags, which calls ``function`` as the command line would.

    Args:
        text: what the sweep file calls it.
        parser: of the flags.
        function: takes what was parsed, if ``parsed``; or parses ``sys.argv`` itself.
        parsed: which of them.
    """
    actions = {action.dest: action for action in _actions(text, parser)}

    def called(**given: Any) -> Any:
        # Positional ones come first, since a flag may take several words.
        ordered = sorted(given.items(), key=lambda item: bool(actions[item[0]].option_strings))
        words = [word for name, value in ordered for word in _words(actions[name], value)]
        if parsed:
            return function(parser.parse_args(words))
        before, sys.argv = sys.argv, [function.__code__.co_filename, *words]
        try:
            return function()
        finally:
            sys.argv = before

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(called, name, getattr(function, name))
    annotations = {name: _annotation(action) for name, action in actions.items()}
    called.__annotations__ = annotations
    keyword = inspect.Parameter.KEYWORD_ONLY
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, keyword, default=_default(action), annotation=annotations[name])
            for name, action in actions.items()
        ]
    )
    return called


def _actions(text: str, parser: ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001  the only access there is
        if action.default == argparse.SUPPRESS and action.nargs == 0:
            continue  # help and version
        flag = "/".join(action.option_strings) or action.dest
        if isinstance(action.choices, dict) and action.nargs == argparse.PARSER:
            raise SweepError(f"{text} has sub-commands, which are no keys; name a function of one of them")
        if action.dest in _OURS:
            raise SweepError(f"{text}: the flag {flag} has the name of a key of roundoff's own; rename it (dest=)")
        if not action.dest.isidentifier():
            raise SweepError(f"{text}: {flag} cannot be the name of a key; rename it (dest=)")
        if action.type is bool:
            raise SweepError(f"{text}: the flag {flag} has type=bool, to which every text is true; use store_true")
        yield action


def _annotation(action: argparse.Action) -> Any:
    if action.nargs == 0:
        return int if isinstance(action, argparse._CountAction) else bool  # noqa: SLF001  the only access there is
    inner: Any = action.type if action.type in _PLAIN else str if action.type is None else Any
    if action.choices is not None and all(type(choice) in (int, str, bool) for choice in action.choices):
        inner = Literal[tuple(action.choices)]
    many = action.nargs in ("+", "*") or isinstance(action.nargs, int)
    found = list[inner] if many or isinstance(action, argparse._AppendAction) else inner  # noqa: SLF001  as above
    return found if found is Any or action.required or action.default is not None else found | None


def _default(action: argparse.Action) -> Any:
    if action.required:
        return inspect.Parameter.empty
    if action.default == argparse.SUPPRESS:
        return None
    if action.nargs == 0 and not isinstance(action.default, bool) and not action.default:
        return False
    if isinstance(action.default, str) and callable(action.type):
        return action.type(action.default)
    return action.default


def _words(action: argparse.Action, value: Any) -> list[str]:
    """What the command line says for a value."""
    flag = max(action.option_strings, key=len, default="")
    if value is None:
        return []
    if isinstance(action, argparse.BooleanOptionalAction):
        return [flag if value else next(one for one in action.option_strings if one.startswith("--no-"))]
    if action.nargs == 0:
        if isinstance(value, bool):
            return [flag] if value != bool(action.default) else []
        return [flag] * value
    several = isinstance(value, list | tuple)
    words = [str(one) for one in value] if several else [str(value)]
    if several and not isinstance(action, argparse._AppendAction):  # noqa: SLF001  the only access there is
        return [flag, *words] if flag else words
    return [f"{flag}={word}" for word in words] if flag else words
