"""The language of sweep files as a JSON Schema, with which editors complete keys and underline mistakes.

It is made from ``sweep_file.py`` and ``TrainConfig``. What only a plan can know (whether a format exists, whether
values go together) it lets pass.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ...agents import FIXES, TrainConfig
from ...agents.config.baselines import BASELINES
from ...agents.config.fixes import OPTIONAL_FIXES
from ...agents.environments.tasks import GYMNASIUM_PREFIX, TASKS
from .sweep_file import SWEEP


class _Untitled(GenerateJsonSchema):
    """Without a title for every field, which says its name once more."""

    def field_title_should_be_set(self, _: Any) -> bool:
        return False


def sweep_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of sweep files."""
    shape = SWEEP.json_schema(schema_generator=_Untitled)
    shape["$defs"] |= _keys()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shape, "title": "A sweep of roundoff"}


def _keys() -> dict[str, Any]:
    """What is allowed for every key of a run, by key."""
    fixes = {"type": "array", "items": {"enum": [*FIXES, *OPTIONAL_FIXES]}, "uniqueItems": True}
    written: dict[str, dict[str, Any]] = {
        "task": {"anyOf": [{"enum": list(TASKS)}, {"type": "string", "pattern": f"^{GYMNASIUM_PREFIX}"}]},
        "fixes": {"anyOf": [{"enum": ["all", "none"]}, fixes]},
        "baseline": {"enum": list(BASELINES)},
        "policy": {"type": ["string", "object"]},
        "device": {"type": "string", "pattern": r"^(cpu|cuda(:\d+)?)$"},
    }
    schema = TrainConfig.model_json_schema()["properties"]
    described = _descriptions()
    keys = {}
    for key in sorted(TrainConfig.model_fields):
        of_field = {name: value for name, value in schema[key].items() if name not in ("title", "default")}
        keys[key] = {
            "description": described[key],
            **written.get(key, of_field),
            "default": schema[key]["default"],
        }
    return keys


def _descriptions() -> dict[str, str]:
    """What ``TrainConfig`` says of each of its fields."""
    text = inspect.getdoc(TrainConfig) or ""
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {key: re.sub(r"\s+", " ", description).replace("``", "") for key, description in entries}
