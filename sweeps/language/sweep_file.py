"""Defines the shape of sweep files as a type, which checks documents, and makes the schema for editors.

It defines the sections, and where a key has a value or a list. The values of a key are checked once all
documents are merged, since replaced values do not matter (``expansion.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Optional, Union

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

CASE = "case"
"""The key of the name of a case, for choosing runs by it."""
DISTRIBUTIONS = ("uniform", "log_uniform", "choice")
MAX_DRAWS = 10_000
MAX_SEED = 2**63 - 1
LOG_TO = ("name", "project")
METRIC = ("name", "goal", "crash", "error", "unit", "range")
SEARCH = ("for", "of", "bits", "until", "by", "over", "within", "formats", "choose")
_EXAMPLE = "such as {log_uniform: [1e-5, 1e-3]}"


def _must_be(rule: str, is_valid: Callable[[Any], bool] = lambda _: True, *, only: bool = False) -> WrapValidator:
    """Reports ``rule`` for a value of wrong shape, or not valid; mistakes inside report their own, unless ``only``."""

    def validate(value: Any, shape: Callable[[Any], Any]) -> Any:
        try:
            if is_valid(checked := shape(value)):
                return checked
        except ValidationError as error:
            if not only and any(inside["loc"] for inside in error.errors()):
                raise
        raise PydanticCustomError("rule", "must be {rule}", {"rule": rule})

    return WrapValidator(validate)


def _mapping(name: str, keys: dict[str, Any], rule: str = "a mapping from keys to values") -> Any:
    """Makes the type of a mapping that may have each of the keys."""
    mapping = TypedDict(name, keys, total=False)  # type: ignore[misc]
    return Annotated[with_config(ConfigDict(extra="forbid", strict=True))(mapping), _must_be(rule)]


def _list(item: Any, rule: str = "a list of at least one value", least: int = 1) -> Any:
    return Annotated[list[item], Field(min_length=least), _must_be(rule)]


def _names(rule: str) -> Any:
    names = Union[str, list[str]]  # noqa: UP007
    return Annotated[names, _must_be(f"a name, or a list of names, {rule}", only=True)]


def _bounds(rule: str, is_valid: Callable[[Any], bool]) -> Any:
    numbers = list[Annotated[float, Field(allow_inf_nan=False)]]
    return Annotated[numbers, Field(min_length=2, max_length=2), _must_be(f"{rule}, {_EXAMPLE}", is_valid, only=True)]


def _whole_number(least: int, most: int) -> Any:
    return Annotated[int, Field(ge=least, le=most), _must_be(f"an integer from {least} to {most}")]


def _distribution(key: str, choice: Any) -> Any:
    one_of = f"one of {', '.join(DISTRIBUTIONS)}, {_EXAMPLE}"
    lower_first = "two numbers, the lower one first"
    shapes = (
        _bounds(lower_first, lambda bounds: bounds[0] < bounds[1]),
        _bounds(f"{lower_first}, both above 0", lambda bounds: 0 < bounds[0] < bounds[1]),
        choice,
    )
    return Annotated[
        _mapping(f"drawn_{key}", dict(zip(DISTRIBUTIONS, shapes, strict=True)), one_of),
        _must_be(one_of, lambda entry: len(entry) == 1),
        Field(json_schema_extra={"minProperties": 1, "maxProperties": 1}),
    ]


class Shape(NamedTuple):
    """The allowed content of the files of a sweep of runs with certain keys."""

    sweep: TypeAdapter[Any]
    """A document: a sweep file, or an argument as one."""
    run: TypeAdapter[Any]
    """The file of a single run."""
    keys: tuple[str, ...]
    """The keys of runs."""
    other_keys: dict[str, tuple[str, ...]]
    """Names that are allowed next to the keys of runs."""


@functools.lru_cache(maxsize=16)
def shape_of(keys: tuple[str, ...]) -> Shape:
    """The shape of sweep files for runs with these keys."""
    # Each key is a named type, which the schema replaces by the type of the model's field.
    values: dict[str, Any] = {key: TypeAliasType(key, Any) for key in keys}
    lists = {key: _list(value) for key, value in values.items()}
    draws = {key: _distribution(key, choice) for key, choice in lists.items()}
    # The parts of sections
    settings = _mapping("Settings", values)
    random = {
        "draws": _whole_number(1, MAX_DRAWS),
        "seed": _whole_number(0, MAX_SEED),
        "values": _mapping("Draws", draws),
    }
    case = {"name": Annotated[str, Field(pattern=r"\S"), _must_be("text")], **values}
    exclusion = {CASE: _names("of cases"), **{key: Union[value, lists[key]] for key, value in values.items()}}  # noqa: UP007
    # The sections
    file = {
        **_ABOUT,
        "base": _section("Values of all runs.", settings),
        "grid": _section(
            "Lists of values: every combination is run; the last key varies fastest.", _mapping("Lists", lists)
        ),
        "zip": _section(
            "Lists of equal length: the first values go together, then the second ones, ...", _mapping("Lists", lists)
        ),
        "cases": _section(
            "Settings that go together, each with an optional name.",
            _list(_mapping("Case", case), "a list of at least one mapping"),
        ),
        "random": _section(
            "Values drawn at random, the same ones for the same seed.",
            _mapping("Random", random, f"a mapping with the keys {', '.join(random)}"),
        ),
        "exclude": _section(
            "Runs to leave out: those that have one of the values for each of the keys.",
            _list(
                Annotated[
                    _mapping("Exclusion", exclusion),
                    _must_be("a mapping with at least one key: an empty one would leave no run", bool),
                    Field(json_schema_extra={"minProperties": 1}),
                ],
                "a list of mappings",
                least=0,
            ),
        ),
    }
    sweep = _mapping("SweepFile", file, f"a mapping with the keys {', '.join(file)}")
    others = {
        "a sweep": tuple(file),
        "metric": METRIC,
        "log_to": LOG_TO,
        "search": SEARCH,
        "random": tuple(random),
        "cases": tuple(case),
        "exclude": tuple(exclusion),
    }
    return Shape(TypeAdapter(sweep), TypeAdapter(settings), keys, others)


def _section(description: str, shape: Any) -> Any:
    """Makes the type of a section, which may be empty."""
    return Annotated[Optional[shape], Field(description=description)]  # noqa: UP045


_METRIC_RULE = f"a name, or a mapping with the keys {', '.join(METRIC)}"
_METRIC: Any = Annotated[
    Union[str, _mapping("Metric", dict.fromkeys(METRIC, Any))], _must_be(_METRIC_RULE, only=True)  # noqa: UP007
]
_LOG_TO_RULE = f"the name of a tracker, or a mapping with the keys {', '.join(LOG_TO)}"
_LOG_TO: Any = Annotated[
    Union[str, _mapping("LogTo", dict.fromkeys(LOG_TO, str))], _must_be(_LOG_TO_RULE, only=True)  # noqa: UP007
]
_ABOUT = {
    "name": _section(
        "The name of the sweep, and of its results folder [default: the name of the file].",
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"),
            _must_be("text of letters, digits, '-', '_' and '.' that does not begin with '.'"),
        ],
    ),
    "description": _section("For people.", Annotated[str, _must_be("text")]),
    "reproduces": _section(
        "Figures and tables of the paper that the sweep is about, such as fig4.", _names("such as [fig4]")
    ),
    "program": _section(
        "The program to run instead of an agent: a function of a file in this folder, or of a module; its parameters"
        " are the keys of runs.",
        Annotated[str, _must_be("text such as train.py:train or package.module:train")],
    ),
    "metric": _section("The returned value that counts as the score, and its goal.", _METRIC),
    "search": _section(
        "A search in place of all runs: for the fewest bits that are good enough, the best candidate, or the cheapest"
        " formats.",
        _mapping("Search", dict.fromkeys(SEARCH, Any), f"a mapping with the keys {', '.join(SEARCH)}"),
    ),
    "log_to": _section(
        "A tracker that records each run that has ended: wandb or mlflow, or a mapping with its name and a project.",
        _LOG_TO,
    ),
    "include": _section(
        "Presets or files with settings for this file, which replaces those that it sets itself.",
        _names("of presets or files"),
    ),
}
SECTIONS = (*_ABOUT, "base", "grid", "zip", "cases", "random", "exclude")
