"""From a sweep file to the list of its runs, validated whole: all mistakes are reported, each with its place."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from roundoff.agents import FIXES, TrainConfig
from roundoff.sweeps.errors import Problem, SweepError, SweepFileError
from roundoff.sweeps.located_yaml import Located, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TOP_KEYS = ("name", "description", "base", "grid")
_MAX_RUNS = 100_000
_KEYS = tuple(TrainConfig.model_fields)
_NAME_CHARACTERS = "letters, digits, '-', '_' and '.'"


class Run(NamedTuple):
    """One planned run."""

    id: str
    """Name of its directory: task, format, seed, and a hash of the whole config."""
    config: TrainConfig


@dataclass(frozen=True)
class Plan:
    """A validated sweep.

    Attributes:
        name: of the sweep.
        description: one or more lines for people.
        varying: keys that take several values, in the order of the file.
        runs: the product of the grid, the last key varying fastest.
    """

    name: str
    description: str
    varying: tuple[str, ...]
    runs: tuple[Run, ...]


def plan_file(path: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """Plans the sweep described in a YAML file.

    Args:
        path: the file.
        overrides: ``key=value`` arguments; see :func:`plan_text`.

    Raises:
        SweepError: the file cannot be read.
        SweepFileError: it is not a sweep; every mistake is listed.
    """
    return plan_text(_read(path), str(path), overrides)


def plan_text(text: str, source: str, overrides: Sequence[str] = ()) -> Plan:
    """Plans the sweep described by YAML text.

    Args:
        text: mapping with ``name``, ``grid`` (lists of values by key) and, optionally, ``description`` and ``base`` (a
            value by key). Keys are those of ``TrainConfig``.
        source: what to call the text in messages.
        overrides: ``key=value`` with a YAML value. A list replaces the values of the key in the grid, anything
            else makes the key a constant. (For ``fixes`` too: one list of names is ``fixes=[[hadam, normal_fix]]``.)

    Raises:
        SweepFileError: every mistake is listed.
    """
    checker = _Checker()
    name, description, base, grid = checker.top(parse(text, source), Path(source).stem)
    for override in overrides:
        checker.override(override, base, grid)
    for key, value in base.items():
        checker.value(key, value)
    for key, values in grid.items():
        for value in values:
            checker.value(key, value)
        checker.repeated(key, values)
    if checker.problems:
        raise SweepFileError(checker.problems)
    return Plan(name, description, tuple(grid), tuple(_product(base, grid, source)))


def plan_run(path: str | Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The config of a single run.

    Args:
        path: a YAML or JSON file with a mapping of ``TrainConfig`` keys, or the ``config.json`` of a run; None for
            the defaults.
        overrides: ``key=value`` arguments.

    Raises:
        SweepError: the file cannot be read.
        SweepFileError: every mistake is listed.
    """
    checker = _Checker()
    settings: dict[str, Located] = {}
    source = "arguments" if path is None else str(path)
    if path is not None:
        document = parse(_read(path), source)
        if isinstance(document.value, dict) and "config" in document.value:
            document = document.value["config"]
        settings = checker.settings(document, "a run")
    lists: dict[str, list[Located]] = {}
    for override in overrides:
        checker.override(override, settings, lists)
    # a list is a value here, not several runs
    settings |= {key: Located(values, values[0].place) for key, values in lists.items() if values}
    for key, value in settings.items():
        checker.value(key, value)
    if checker.problems:
        raise SweepFileError(checker.problems)
    (run,) = _product(settings, {}, source)
    return run.config


def run_id(config: TrainConfig) -> str:
    """The name of a run's directory; equal configs have equal names, whatever sweep they are part of."""
    canonical = json.dumps(config.as_json(), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
    task = re.sub(r"[^\w.-]", "_", config.task)  # gym:Pendulum-v1 would be no good name of a folder
    return f"{task}-{config.format}-s{config.seed}-{digest}"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise SweepError(
            f"{path}: cannot be read ({error.strerror}); give a YAML file, or a name that `roundoff presets` lists"
        ) from error
    except UnicodeDecodeError as error:
        raise SweepError(f"{path}: is not UTF-8 text (byte {error.start}); a YAML file is") from error


def _product(base: dict[str, Located], grid: dict[str, list[Located]], source: str) -> Iterable[Run]:
    count = math.prod(len(values) for values in grid.values())
    if count > _MAX_RUNS:
        raise SweepFileError([Problem(source, f"the grid has {count} runs; at most {_MAX_RUNS} are allowed")])
    constants = {key: value.plain() for key, value in base.items()}
    runs: dict[str, Run] = {}
    for values in itertools.product(*grid.values()):
        settings = constants | {key: value.plain() for key, value in zip(grid, values, strict=True)}
        try:
            config = TrainConfig(**settings)
        except ValidationError as error:  # the values are right one by one; together they are not
            raise SweepFileError(
                [Problem(source, f"{_complaint(e)} in the run {settings}") for e in error.errors()]
            ) from error
        run = Run(run_id(config), config)
        runs.setdefault(run.id, run)
    return runs.values()


def _complaint(error: Any) -> str:
    """A pydantic error in one sentence."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    message = error["msg"][0].lower() + error["msg"][1:]
    value = error["input"]
    hint = ""
    if isinstance(value, str) and ("number" in message or "integer" in message) and _is_number(value):
        hint = ", which is text: write the number without quotes"
    return f"{message.replace('input should', 'must')}, got {value!r}{hint}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Checker:
    """Collects problems; its methods say what can still be used."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def complain(self, place: str, message: str) -> None:
        self.problems.append(Problem(place, message))

    def top(
        self, document: Located, default_name: str
    ) -> tuple[str, str, dict[str, Located], dict[str, list[Located]]]:
        """Name, description, base and grid of the document."""
        if not isinstance(document.value, dict):
            self.complain(document.place, f"a sweep is a mapping with the keys {', '.join(_TOP_KEYS)}")
            return default_name, "", {}, {}
        for key in document.value:
            if key not in _TOP_KEYS:
                inside = " (keys of runs stand inside base or grid)" if key in _KEYS else ""
                self.complain((document.key_places or {})[key], _unknown("key", key, _TOP_KEYS) + inside)
        texts = []
        for key, default in (("name", default_name), ("description", "")):
            item = document.value.get(key)
            if item is not None and not isinstance(item.value, str):
                self.complain(item.place, f"{key} must be text, got {item.plain()!r}")
            texts.append(item.value if item is not None and isinstance(item.value, str) else default)
        if "name" in document.value and not _is_name(texts[0]):
            self.complain(document.value["name"].place, f"name must consist of {_NAME_CHARACTERS}, got {texts[0]!r}")
        base = self._section(document, "base")
        grid: dict[str, list[Located]] = {}
        for key, item in self._section(document, "grid").items():
            if key in base:
                self.complain(item.place, f"{key} stands in grid and in base ({base[key].place}); keep one of them")
            if not isinstance(item.value, list) or not item.value:
                self.complain(item.place, f"grid needs a list of at least one value for {key}, got {item.plain()!r}")
            else:
                grid[key] = item.value
        return texts[0], texts[1].strip(), base, grid

    def _section(self, document: Located, name: str) -> dict[str, Located]:
        item = document.value.get(name)
        return {} if item is None or item.value is None else self.settings(item, name)

    def settings(self, item: Located, name: str) -> dict[str, Located]:
        """The known keys of a mapping of settings."""
        if not isinstance(item.value, dict):
            self.complain(item.place, f"{name} must be a mapping from keys to values, got {item.plain()!r}")
            return {}
        for key in item.value:
            if key not in _KEYS:
                self.complain((item.key_places or {})[key], _unknown(f"key in {name}", key, _KEYS))
        return {key: value for key, value in item.value.items() if key in _KEYS}

    def override(self, text: str, base: dict[str, Located], grid: dict[str, list[Located]]) -> None:
        """Applies a ``key=value`` argument."""
        place = f"argument {text!r}"
        key, equals, value_text = text.partition("=")
        key = key.strip()
        if not equals:
            self.complain(place, "must have the form key=value")
            return
        if key not in _KEYS:
            self.complain(place, _unknown("key", key, _KEYS))
            return
        try:
            value = parse(value_text, place)
        except SweepFileError as error:
            self.problems += [Problem(place, problem.message) for problem in error.problems]
            return
        value = _placed(value, place)
        base.pop(key, None)
        if isinstance(value.value, list):
            if not value.value:
                self.complain(place, "an empty list leaves no run")
            grid[key] = value.value
        else:
            grid.pop(key, None)
            base[key] = value

    def value(self, key: str, value: Located) -> None:
        """Checks one value of one key on its own."""
        try:
            TrainConfig(**{key: value.plain()})
        except ValidationError as error:
            for found in error.errors():
                if found["loc"] and found["loc"][0] == key:
                    self.complain(value.place, f"{key}: {_complaint(found)}")

    def repeated(self, key: str, values: list[Located]) -> None:
        """Complains of equal values in a list of the grid."""
        seen: dict[str, str] = {}
        for value in values:
            text = json.dumps(value.plain(), sort_keys=True)
            if text in seen:
                self.complain(value.place, f"{key}: the value {value.plain()!r} stands twice ({seen[text]})")
            seen.setdefault(text, value.place)


def _placed(value: Located, place: str) -> Located:
    """``value`` with all its places replaced: a column within an argument helps nobody."""
    if isinstance(value.value, list):
        return Located([_placed(item, place) for item in value.value], place)
    return Located(value.value, place, value.key_places)


def _unknown(what: str, name: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [*allowed, *FIXES], n=1, cutoff=0.6)
    if near and near[0] in FIXES:
        return f"unknown {what} {name!r}; fixes are chosen with fixes: [{near[0]}, ...]"
    hint = f"; did you mean {near[0]!r}?" if near else f"; allowed are {', '.join(allowed)}"
    return f"unknown {what} {name!r}{hint}"


def _is_name(text: str) -> bool:
    return bool(text) and not text.startswith(".") and all(c.isascii() and (c.isalnum() or c in "-_.") for c in text)
