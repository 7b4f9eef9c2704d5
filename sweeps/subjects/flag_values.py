"""Gives flags of argparse the values of a sweep in place of the words of a command line.

A value is set in the parsed namespace unchanged. Only text and numbers go through a flag's own type, as words do. So
the program gets the setting that the sweep records. A run is refused if a flag makes another value of it.
"""

from __future__ import annotations

import argparse
import json
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from inspect import Parameter
from keyword import iskeyword
from typing import Annotated, Any, Literal, NoReturn, Union, final

from pydantic import AfterValidator, Field

from ..errors import SweepError
from ..wording import shown

_RESERVED = ("arithmetic", "format", "policy", "rounding", "accumulate", "granularity", "observe")
PASSED_ON = ("seed", "device", "threads")
"""Settings of a run that flags with these names get."""
_PLAIN = (int, float, str)
_CONSTANT_TYPES = (bool, *_PLAIN)  # types of the constants that a sweep file can hold
_PARSING = ("parse_known_args", "parse_known_intermixed_args")  # every way to read flags calls one of these
_LIST: Any = list  # type checkers do not accept types that are made at run time, such as list[x]
_LITERAL: Any = Literal
_MOST_LISTED = 100  # choices in a message


class _NoRemainder(list[str]):
    """The empty list of words that a parser leaves to the program's next parser."""


@contextmanager
def reading_by(read: Callable[[ArgumentParser, Any, Any], Any], methods: Sequence[str] = _PARSING) -> Iterator[None]:
    """Replaces the parsing of all parsers by a function of the parser, the words and the namespace."""
    originals = {name: getattr(ArgumentParser, name) for name in methods}
    for name in methods:
        setattr(ArgumentParser, name, lambda parser, args=None, namespace=None: read(parser, args, namespace))
    try:
        yield
    finally:
        for name, method in originals.items():
            setattr(ArgumentParser, name, method)


@contextmanager
def checked_flags(text: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Makes parsers of the command line refuse flags that differ from settings of the run which they do not get.

    A flag that is None is not checked: it leaves the choice to the program.

    Args:
        text: The program's name in the sweep file.
        settings: The settings that the program does not take, by name.

    Raises:
        SweepError: a flag has another value.
    """
    parse = ArgumentParser.parse_known_args

    def read(parser: ArgumentParser, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        parsed, rest = parse(parser, args, namespace)
        flags = _by_dest(parser) if args is None or isinstance(args, _NoRemainder) else {}
        for name in flags.keys() & settings.keys():
            value = getattr(parsed, name, None)
            if value is not None and str(value) != str(settings[name]):  # a torch.device is no text
                raise SweepError(
                    f"{text}: {name} of the run is {shown(settings[name])}, but the program's own flag"
                    f" {_flag(flags[name][0])} is {shown(value)}: let the function take {name}, or have its first"
                    " parser read this flag"
                )
        return parsed, rest

    with reading_by(read, _PARSING[:1]):
        yield


@final
class FlagValues:
    """The values of a run, which parsers get in place of a command line.

    Args:
        text: The program's name in the sweep file.
        values: The values by ``dest``.

    Attributes:
        namespace: The result of the last parser, or None before the first.
    """

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        self._text, self._values, self._unread = text, values, set(values)
        self._parse = ArgumentParser.parse_known_args
        self.namespace: Any = None

    def read(self, parser: ArgumentParser, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        """Parses as ``parse_known_args`` does, with the run's values in place of the words of the command line.

        A later parser with explicit words does not read the command line, and parses as usual.

        Raises:
            SweepError: the flags cannot have these values, or these exclude each other.
        """
        if self.namespace is not None and args is not None and not isinstance(args, _NoRemainder):
            return self._parse(parser, args, namespace)
        for group in parser._mutually_exclusive_groups:
            members = [action for action in group._group_actions if self._values.get(action.dest) is not None]
            values = [(action, self._values[action.dest]) for action in members]
            unused = [flag for flag, x in values if _are_equal(x, flag.default) or (x is False and not flag.default)]
            used = {action.dest: _flag(action) for action in members if action not in unused}
            if len(used) > 1:
                self._refuse(f"the flags {' and '.join(used.values())} exclude each other")
        flags = {dest: actions for dest, actions in _by_dest(parser).items() if dest in self._values}
        converted = {
            dest: self._convert(parser, actions, self._values[dest])
            for dest, actions in flags.items()
            if not all(map(_is_custom, actions))
        }
        parsed = Namespace() if namespace is None else namespace
        _set(parsed, converted)  # before the defaults: those of other flags only are converted
        other_flags = copy(parser)
        other_flags._actions = [action for action in parser._actions if action.dest not in flags]
        other_flags._mutually_exclusive_groups = [
            group
            for group in parser._mutually_exclusive_groups
            if all(action.dest not in flags for action in group._group_actions)
        ]
        other_flags.error = self._refuse  # type: ignore[method-assign]
        self._parse(other_flags, _NoRemainder(), parsed)
        for dest, actions in flags.items():
            if dest not in converted:
                converted[dest] = self._call_custom_action(parser, parsed, actions)
        _set(parsed, converted)  # again, since positional flags and custom actions may have written to it
        self._unread -= flags.keys()
        self.namespace = parsed
        return parsed, _NoRemainder()

    def check_read(self) -> None:
        """Checks that the program has read its flags.

        Raises:
            SweepError: some were given, but no parser has read them.
        """
        if self._unread:
            self._refuse(
                f"it did not read the flags {', '.join(sorted(self._unread))}; each call must parse them again"
            )

    def _refuse(self, message: str) -> NoReturn:
        raise SweepError(f"{self._text}: {message}")

    def _convert(self, parser: ArgumentParser, actions: Sequence[Action], value: Any, depth: int = -1) -> Any:
        """Converts a value as the flags of a ``dest`` do, inside ``depth`` lists; -1: all lists of the flag."""
        flag = next((action for action in actions if action.nargs != 0), None)
        constants = [action.const for action in actions if action.nargs == 0 or not isinstance(action.const, str)]
        if flag is None or value is None or any(type(value) is type(x) and value == x for x in constants):
            return value
        depth = _is_repeated(flag) + _holds_lists(flag) if depth < 0 else depth
        if depth:
            elements = value if isinstance(value, list) else [value]
            return [self._convert(parser, actions, element, depth - 1) for element in elements]
        # One element, converted by the flag's type. A word may become anything; other values must stay equal
        problem: Any = ""
        is_word = type(value) in _PLAIN
        for word in [str(value)] if is_word else [json.dumps(value), str(value)]:
            try:
                converted = value if type(value) is flag.type else parser._get_value(flag, word)
                parser._check_value(flag, converted)
                is_choice = flag.choices is not None and value in flag.choices
            except Exception as error:  # noqa: BLE001  a type is any function
                problem = error if isinstance(error, argparse.ArgumentError) else f"{type(error).__name__}: {error}"
                continue
            if _are_equal(converted, value) or (is_word and not is_choice):
                return converted
            problem = f"its type makes {shown(converted)} of {shown(word)}"
        return self._refuse(f"the flag {_flag(flag)} cannot be {shown(value)}, since {problem}")

    def _call_custom_action(self, parser: ArgumentParser, namespace: Any, actions: Sequence[Action]) -> Any:
        """Calls a custom action as argparse does, and returns its result."""
        dest = actions[0].dest
        value, default = self._values[dest], _default_of(actions)
        if default is not SUPPRESS and not hasattr(namespace, dest):
            setattr(namespace, dest, default)
        if value is None or (actions[0].nargs == 0 and _are_equal(default, value)):
            return value
        refusing_parser = copy(parser)
        refusing_parser.error = self._refuse  # type: ignore[method-assign]
        for action in actions:
            words = [] if action.nargs == 0 else self._convert(parser, [action], value)
            options: list[Any] = [*action.option_strings] or [None]
            for option in options:
                result = copy(namespace)
                try:
                    action(refusing_parser, result, words, option)
                except (ValueError, TypeError, argparse.ArgumentError) as error:
                    self._refuse(f"the flag {_flag(action)} cannot be {shown(value)}, since {error}")
                stored = getattr(result, dest, None)
                if _are_equal(stored, value) or (action.nargs != 0 and _is_word(value)):
                    _set(namespace, vars(result))
                    return stored
        return self._refuse(
            f"the flag {_flag(actions[0])} cannot be {shown(value)}, since its action makes {shown(stored)}"
        )


def keys_of_flags(text: str, parser: ArgumentParser) -> list[Parameter]:
    """Describes the flags of a parser as parameters of a function.

    Constants that a sweep file cannot hold, such as functions, cannot be chosen.

    Raises:
        SweepError: a flag cannot be a key.
    """
    parameters = []
    for dest, actions in _by_dest(parser).items():
        for action in actions:
            flag = _flag(action)
            if action.nargs == argparse.PARSER:
                raise SweepError(f"{text} has sub-commands, which are no keys; name a function of one of them")
            if action.dest in _RESERVED or (action.dest in PASSED_ON and action.nargs == 0):
                raise SweepError(f"{text}: the flag {flag} has the name of a key of roundoff's own; rename it (dest=)")
            if not action.dest.isidentifier() or iskeyword(action.dest):
                raise SweepError(f"{text}: {flag} cannot be the name of a key; rename it (dest=)")
            if action.type is bool:
                raise SweepError(f"{text}: the flag {flag} has type=bool, which makes every text true; use store_true")
        default, kinds = _default_of(actions), [_annotation(action, actions) for action in actions]
        kinds = [kind for kind in kinds if kind is not None]
        if not kinds:
            continue
        annotation: Any = Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007  their number is not known before
        # Before Python 3.13, positional flags that may be left out are called required.
        if any(action.required and (action.option_strings or action.nargs != "*") for action in actions):
            default = Parameter.empty
        elif default is None and annotation is not Any:
            annotation |= None
        default = None if default is SUPPRESS else default
        parameters.append(Parameter(dest, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return parameters


def _by_dest(parser: ArgumentParser) -> dict[str, list[Action]]:
    flags: dict[str, list[Action]] = {}
    for action in parser._actions:
        only_acts = isinstance(action, argparse._HelpAction | argparse._VersionAction) or (
            _is_custom(action) and action.nargs == 0 and SUPPRESS in (action.dest, action.default)
        )
        if not only_acts:
            flags.setdefault(action.dest, []).append(action)
    return flags


def _annotation(action: Action, actions: Sequence[Action]) -> Any:
    """Returns the type of a flag's values; None if a sweep file can hold none of them."""
    if action.nargs == 0 and _is_custom(action):
        return Any
    if isinstance(action, argparse._CountAction):
        return int
    if isinstance(action, argparse.BooleanOptionalAction) or (action.nargs == 0 and isinstance(action.const, bool)):
        return bool
    if action.nargs == 0:
        in_list = isinstance(action, argparse._AppendConstAction)
        constants = [flag.const for flag in actions if flag.nargs == 0] + [_default_of(actions)] * (not in_list)
        allowed = tuple(x for x in constants if type(x) in _CONSTANT_TYPES and x != SUPPRESS)
        return None if not allowed else _LIST[_LITERAL[allowed]] if in_list else _LITERAL[allowed]
    annotation = _element_type(action)
    if action.nargs == "?" and type(action.const) in _CONSTANT_TYPES and annotation is not Any:
        annotation |= _LITERAL[action.const]
    if isinstance(action, argparse._ExtendAction):  # repeated flags may add any number of elements
        return _LIST[annotation]
    if _holds_lists(action):
        exact = action.nargs if isinstance(action.nargs, int) else None
        annotation = Annotated[_LIST[annotation], Field(min_length=exact or int(action.nargs == "+"), max_length=exact)]
    return _LIST[annotation] if _is_repeated(action) else annotation


def _element_type(action: Action) -> Any:
    kind: Any = action.type if action.type in _PLAIN else str if action.type is None else Any
    choices: Any = action.choices
    if choices is None:
        return kind
    with suppress(TypeError):  # a container without a length, or without an order
        if len(choices) <= _MOST_LISTED and all(type(choice) in _CONSTANT_TYPES for choice in choices):
            return _LITERAL[tuple(choices)]
    return kind if kind is Any else Annotated[kind, AfterValidator(lambda value: _one_of(choices, value))]


def _one_of(choices: Any, value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"must be one of {shown(choices)}, got {shown(value)}")
    return value


def _default_of(actions: Sequence[Action]) -> Any:
    """Returns the default of the first flag with one, converted by the type of the flags."""
    default = next((action.default for action in actions if action.default is not SUPPRESS), SUPPRESS)
    kind = next((action.type for action in actions if action.type in _PLAIN), None)
    if isinstance(default, str) and default != SUPPRESS and kind is not None:
        with suppress(ValueError):  # argparse ends the program at such a default, unless the flag is given
            return kind(default)
    return default


def _is_custom(action: Action) -> bool:
    return type(action).__module__ != "argparse"


def _is_repeated(action: Action) -> bool:
    """Whether the flag may come several times, and each adds an element."""
    return isinstance(action, argparse._AppendAction) and not isinstance(action, argparse._ExtendAction)


def _holds_lists(action: Action) -> bool:
    """Whether the flag takes a list of words."""
    several = action.nargs in ("+", "*", "...") or isinstance(action.nargs, int)
    return several or isinstance(action, argparse._ExtendAction)


def _flag(action: Action) -> str:
    return "/".join(action.option_strings) or action.dest


def _is_word(value: Any) -> bool:
    """Whether a value is written in the same way on a command line: text, a number, or a list of them."""
    return all(map(_is_word, value)) if isinstance(value, list) else type(value) in _PLAIN


def _are_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except Exception:  # noqa: BLE001  arrays, and whatever else a type makes
        return False


def _set(namespace: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(namespace, name, value)
