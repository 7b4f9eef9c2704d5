"""The shape of a sweep file, as a type: documents are checked by it, and the schema for editors is made from it.

It says which sections there are, and where a key has a value or a list. Which values a key takes is asked once all
documents are merged, since nobody asks what was replaced (``expansion.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

from .keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

CASE = "case"
"""What the name of a case is called where runs are chosen by it."""
DISTRIBUTIONS = ("uniform", "log_uniform", "choice")
MAX_DRAWS = 10_000
MAX_SEED = 2**63 - 1
_EXAMPLE = "such as {log_uniform: [1e-5, 1e-3]}"


def _must_be(rule: str, holds: Callable[[Any], bool] = lambda _: True, *, whole: bool = False) -> WrapValidator:
    """Says the rule where a shape is wrong, or does not hold; an error inside says its own, unless ``whole`` is set."""

    def validate(value: Any, shape: Callable[[Any], Any]) -> Any:
        try:
            if holds(found := shape(value)):
                return found
        except ValidationError as error:
            if not whole and any(inside["loc"] for inside in error.errors()):
                raise
        raise PydanticCustomError("rule", "must be {rule}", {"rule": rule})

    return WrapValidator(validate)


def _mapping(name: str, keys: dict[str, Any], rule: str = "a mapping from keys to values") -> Any:
    """A mapping in which each of the keys may stand."""
    mapping = TypedDict(name, keys, total=False)  # type: ignore[misc]
    return Annotated[with_config(ConfigDict(extra="forbid", strict=True))(mapping), _must_be(rule)]


def _list(item: Any, rule: str = "a list of at least one value", least: int = 1) -> Any:
    return Annotated[list[item], Field(min_length=least), _must_be(rule)]


def _names(which: str) -> Any:
    names = Union[str, list[str]]  # noqa: UP007
    return Annotated[names, _must_be(f"a name, or a list of names, {which}", whole=True)]


def _bounds(rule: str, holds: Callable[[Any], bool]) -> Any:
    numbers = list[Annotated[float, Field(allow_inf_nan=False)]]
    return Annotated[numbers, Field(min_length=2, max_length=2), _must_be(f"{rule}, {_EXAMPLE}", holds, whole=True)]


def _whole_number(least: int, most: int) -> Any:
    return Annotated[int, Field(ge=least, le=most), _must_be(f"a whole number from {least} to {most}")]


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
        _must_be(one_of, lambda given: len(given) == 1),
        Field(json_schema_extra={"minProperties": 1, "maxProperties": 1}),
    ]


# Each key is a type, so that the schema can say of it what a model knows.
_VALUES: dict[str, Any] = {key: TypeAliasType(key, Any) for key in KEYS}
_LISTS = {key: _list(value) for key, value in _VALUES.items()}
_DRAWS = {key: _distribution(key, values) for key, values in _LISTS.items()}
_Settings = _mapping("Settings", _VALUES)
_Lists = _mapping("Lists", _LISTS)
_RANDOM = {
    "draws": _whole_number(1, MAX_DRAWS),
    "seed": _whole_number(0, MAX_SEED),
    "values": _mapping("Draws", _DRAWS),
}
_CASE = {"name": Annotated[str, Field(pattern=r"\S"), _must_be("text")], **_VALUES}
_EXCLUSION = {CASE: _names("of cases"), **{key: Union[value, _LISTS[key]] for key, value in _VALUES.items()}}  # noqa: UP007
_Exclusion: Any = Annotated[
    _mapping("Exclusion", _EXCLUSION),
    _must_be("a mapping with at least one key: an empty one would leave no run", bool),
    Field(json_schema_extra={"minProperties": 1}),
]


def _section(description: str, shape: Any) -> Any:
    """A section may be there and empty."""
    return Annotated[Optional[shape], Field(description=description)]  # noqa: UP045


_FILE = {
    "name": _section(
        "Of the sweep, and of its folder of results; that of the file if it is missing.",
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
    "include": _section(
        "Presets, or files (beside this one), whose settings this file takes over; what it says itself wins.",
        _names("of presets or files"),
    ),
    "base": _section("Values of all runs.", _Settings),
    "grid": _section("Lists of values: every combination is run; the last key varies fastest.", _Lists),
    "zip": _section("Lists of equal length: the first values go together, then the second ones, ...", _Lists),
    "cases": _section(
        "Settings that go together, each with an optional name.",
        _list(_mapping("Case", _CASE), "a list of at least one mapping"),
    ),
    "random": _section(
        "Values drawn at random, the same ones for the same seed.",
        _mapping("Random", _RANDOM, f"a mapping with the keys {', '.join(_RANDOM)}"),
    ),
    "exclude": _section(
        "Runs to leave out: those that have one of the values for each of the keys.",
        _list(_Exclusion, "a list of mappings", least=0),
    ),
}
SWEEP: TypeAdapter[Any] = TypeAdapter(_mapping("SweepFile", _FILE, f"a mapping with the keys {', '.join(_FILE)}"))
"""A document: a sweep file, or an argument as one."""
RUN: TypeAdapter[Any] = TypeAdapter(_Settings)
"""The file of a single run."""

SECTIONS = tuple(_FILE)
OTHER_KEYS = {"a sweep": SECTIONS, "random": tuple(_RANDOM), "cases": tuple(_CASE), "exclude": tuple(_EXCLUSION)}
"""What may stand where not only keys of runs may."""
