"""Wording of error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from roundoff.errors import nearest

from ..agents import FIXES

RANGE = re.compile(r"([-+]?[0-9]{1,18})\.\.([-+]?[0-9]{1,18})")
"""Whole numbers, from the first to the last, such as ``0..9``."""
_LONGEST_SHOWN = 200


def complaint(error: Any) -> str:
    """Describes an error of pydantic in one sentence."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"]).replace("\n", "\\n")
    message = error["msg"][0].lower() + error["msg"][1:]
    value = error["input"]
    hint = ""
    if isinstance(value, str) and ("number" in message or "integer" in message) and _is_number(value):
        hint = ", which is text: write the number without quotes"
    if isinstance(value, str) and RANGE.fullmatch(value):
        hint = "; a range belongs in grid or zip, for a key of integers"
    return f"{message.replace('input should', 'must')}, got {shown(value)}{hint}"


def shown(value: Any) -> str:
    """Formats a value for a message, and cuts it if it is very long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def brief(value: Any) -> str:
    """Formats a setting for a list of runs, as short as possible."""
    if isinstance(value, dict):
        return value["preset"] if set(value) == {"preset"} else json.dumps(value).replace('"', "")
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Writes the message that ``name`` does not exist, with the nearest of the ``known`` names."""
    fixes = FIXES if "fixes" in known else ()
    near = nearest(name, [*known, *fixes])
    if near in fixes:
        return f"unknown {kind} {name!r}; fixes are chosen with fixes: [{near}, ...]"
    hint = f"did you mean {near!r}?" if near else f"allowed are {', '.join(known)}"
    return f"unknown {kind} {shown(name)}; {hint}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
