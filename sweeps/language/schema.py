"""Describes the language of sweep files as a JSON Schema: editors complete keys and underline mistakes with it.

It is made from ``sweep_file.py`` and the keys of all algorithms. It does not check what only planning can check
(whether a format exists, whether values go together).
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ...agents import FIXES, TASKS, TaskKind, adapted
from ...agents.config import (
    ALGORITHMS,
    BASELINES,
    LIBRARIES,
    OPTIONAL_FIXES,
    PARTS_OF_FIXES,
    QuantizationAware,
    config_of,
    fields_of,
    keys,
)
from ...agents.config import WRITTEN as OWN
from ..subjects.agents import AGENTS
from ..wording import RANGE
from .shorthand import MANY_FORMATS, NAME_WITH_A_GAP
from .sweep_file import shape_of

_ANNOTATIONS = ("title", "default", "description", "role")


class _Untitled(GenerateJsonSchema):
    """Makes a schema without titles, which would repeat the names of the fields."""

    def field_title_should_be_set(self, _: Any) -> bool:
        return False


def sweep_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of sweep files."""
    shape = shape_of(AGENTS.keys).sweep.json_schema(schema_generator=_Untitled)
    shape["$defs"] |= _keys() | _models()
    for name in ("Lists", "Exclusion"):
        properties = shape["$defs"][name]["properties"]
        properties |= {key: _allow_shorthand(properties[key], shorthand) for key, shorthand in _shorthands().items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shape, "title": "A sweep of roundoff"}


def _shorthands() -> dict[str, Any]:
    """Returns the schemas of shorthands for several values of a key, by key; see ``shorthand.py``."""
    numbers = {"type": "string", "pattern": f"^{RANGE.pattern}$"}
    names = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    gap = f"^{NAME_WITH_A_GAP.pattern}$"
    whole = {key: numbers for key in AGENTS.keys if AGENTS.is_whole(key)}
    return {**whole, MANY_FORMATS: {**names, "patternProperties": {gap: numbers}}}


def _allow_shorthand(schema: dict[str, Any], shorthand: dict[str, Any]) -> dict[str, Any]:
    """Extends the schema of a list: it may contain the shorthand, or be replaced by it."""
    allowed = [
        {**other, "items": {"anyOf": [other["items"], shorthand]}} if other.get("type") == "array" else other
        for other in schema.get("anyOf", [schema])
    ]
    return {"anyOf": [*allowed, shorthand]}


def _keys() -> dict[str, Any]:
    """Returns the schemas of the values of every key of a run, by key."""
    fixes = {"type": "array", "items": {"enum": ["all", *FIXES, *OPTIONAL_FIXES, *PARTS_OF_FIXES]}, "uniqueItems": True}
    qat = QuantizationAware.model_json_schema(schema_generator=_Untitled)
    qat = {name: value for name, value in qat.items() if name not in _ANNOTATIONS}
    own_schemas: dict[str, dict[str, Any]] = {
        "algorithm": {"anyOf": [{"enum": [*ALGORITHMS, *adapted()]}, {"type": "string", "pattern": f"^{OWN}$"}]},
        "task": {
            "anyOf": [{"enum": list(TASKS)}, {"type": "string", "pattern": f"^({'|'.join(filter(None, TaskKind))})"}]
        },
        "fixes": {"anyOf": [{"enum": ["all", "none"]}, fixes]},
        "baseline": {"enum": list(BASELINES)},
        "policy": {"type": ["string", "object"]},
        "qat": {"anyOf": [qat, {"type": "null"}]},
        "device": {"type": "string", "pattern": r"^(cpu|cuda(:\d+)?)$"},
    }
    schemas = {name: config_of(name).model_json_schema()["properties"] for name in (*ALGORITHMS, *LIBRARIES)}
    by_key = {}
    for key in sorted(keys()):
        algorithms = fields_of(key)
        field = schemas[next(iter(algorithms))][key]
        defaults = {name: schemas[name][key]["default"] for name in algorithms}
        is_common = all(default == field["default"] for default in defaults.values())
        by_key[key] = {
            "description": _describe(key),
            **own_schemas.get(key, {name: value for name, value in field.items() if name not in _ANNOTATIONS}),
            **({"default": field["default"]} if is_common else {}),
        }
    return by_key


def _models() -> dict[str, Any]:
    """Returns the schemas of the models that are values of keys, by name."""
    by_name: dict[str, Any] = {}
    for name in ALGORITHMS:
        for model, schema in config_of(name).model_json_schema(schema_generator=_Untitled).get("$defs", {}).items():
            properties = {
                key: {name: value for name, value in property_schema.items() if name != "role"}
                for key, property_schema in schema["properties"].items()
            }
            by_name[model] = {**schema, "properties": properties}
    return by_name


def _describe(key: str) -> str:
    """Returns the description of a key; if algorithms differ, the descriptions of all."""
    texts = {name: str(field.description).replace("`", "") for name, field in fields_of(key).items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{name}: {text}" for name, text in texts.items())
