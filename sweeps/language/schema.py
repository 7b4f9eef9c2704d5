"""The language of sweep files as a JSON Schema, with which editors complete keys and underline mistakes.

It is made from the keys of all algorithms and the sections of an outline. What only a plan can know (whether a
format exists, whether values go together) it lets pass.
"""

from __future__ import annotations

from typing import Any

from ...agents import FIXES
from ...agents.config.baselines import BASELINES
from ...agents.config.fixes import OPTIONAL_FIXES
from ...agents.config.registry import fields, keys
from ...agents.config.train_config import ALGORITHMS, config_of
from ...agents.environments.tasks import GYMNASIUM_PREFIX, TASKS
from .draws import MAX_DRAWS
from .outline import CASE, SECTIONS

_DESCRIPTIONS = {
    "name": "Of the sweep, and of its folder of results; that of the file if it is missing.",
    "description": "For people.",
    "reproduces": "Figures and tables of the paper that the sweep is about, such as fig4.",
    "include": "Presets, or files (beside this one), whose settings this file takes over; what it says itself wins.",
    "base": "Values of all runs.",
    "grid": "Lists of values: every combination is run; the last key varies fastest.",
    "zip": "Lists of equal length: the first values go together, then the second ones, ...",
    "cases": "Settings that go together, each with an optional name.",
    "random": "Values drawn at random, the same ones for the same seed.",
    "exclude": "Runs to leave out: those that have one of the values for each of the keys.",
}
_NOT_OF_VALUES = ("title", "default", "description", "role", "since")


def sweep_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of sweep files."""
    keys = _keys()
    values = {key: {"$ref": f"#/$defs/{key}"} for key in keys}
    lists = {key: {"type": "array", "items": value, "minItems": 1} for key, value in values.items()}
    some = {key: {"anyOf": [value, lists[key]]} for key, value in values.items()}
    name = {"type": "string", "minLength": 1}
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    sections: dict[str, dict[str, Any]] = {
        "name": {"type": "string", "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"},
        "description": {"type": "string"},
        "reproduces": names,
        "include": names,
        "base": _mapping(values),
        "grid": _mapping(lists),
        "zip": _mapping(lists),
        "cases": {"type": "array", "minItems": 1, "items": _mapping({"name": name, **values})},
        "random": _random(values, lists),
        "exclude": {"type": "array", "items": _mapping({CASE: names, **some}, minProperties=1)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A sweep of roundoff",
        **_mapping(
            {section: {"description": _DESCRIPTIONS[section], **_optional(sections[section])} for section in SECTIONS}
        ),
        "$defs": keys,
    }


def _mapping(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """A section may be there and empty."""
    return {"anyOf": [schema, {"type": "null"}]}


def _random(values: dict[str, Any], lists: dict[str, Any]) -> dict[str, Any]:
    interval = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    distributions = {
        key: {
            "type": "object",
            "additionalProperties": False,
            "properties": {"uniform": interval, "log_uniform": interval, "choice": lists[key]},
            "minProperties": 1,
            "maxProperties": 1,
        }
        for key in values
    }
    return _mapping(
        {
            "draws": {"description": "How many.", "type": "integer", "minimum": 1, "maximum": MAX_DRAWS},
            "seed": {"description": "Of the generator.", "type": "integer", "minimum": 0},
            "values": _mapping(distributions),
        }
    )


def _keys() -> dict[str, Any]:
    """What is allowed for every key of a run, by key."""
    fixes = {"type": "array", "items": {"enum": [*FIXES, *OPTIONAL_FIXES]}, "uniqueItems": True}
    written: dict[str, dict[str, Any]] = {
        "algorithm": {"enum": list(ALGORITHMS)},
        "task": {"anyOf": [{"enum": list(TASKS)}, {"type": "string", "pattern": f"^{GYMNASIUM_PREFIX}"}]},
        "fixes": {"anyOf": [{"enum": ["all", "none"]}, fixes]},
        "baseline": {"enum": list(BASELINES)},
        "policy": {"type": ["string", "object"]},
        "device": {"type": "string", "pattern": r"^(cpu|cuda(:\d+)?)$"},
    }
    schemas = {name: config_of(name).model_json_schema()["properties"] for name in ALGORITHMS}
    found = {}
    for key in sorted(keys()):
        algorithms = fields(key)
        of_field = schemas[next(iter(algorithms))][key]
        defaults = {name: schemas[name][key]["default"] for name in algorithms}
        same = all(default == of_field["default"] for default in defaults.values())
        found[key] = {
            "description": _described(key),
            **written.get(key, {name: value for name, value in of_field.items() if name not in _NOT_OF_VALUES}),
            **({"default": of_field["default"]} if same else {}),
        }
    return found


def _described(key: str) -> str:
    """What a key means; where algorithms differ, to each."""
    texts = {name: str(field.description).replace("`", "") for name, field in fields(key).items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{name}: {text}" for name, text in texts.items())
