"""The keys a run may set, and what is allowed for each: values are checked one by one, before runs are made of them."""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter, ValidationError

from ...agents import FIXES
from ...agents.config.registry import fields, keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

KEYS = keys()
_LONGEST_SHOWN = 200


def canonical(key: str, value: Any) -> Any:
    """``value`` as a config holds it: ``fp16`` becomes ``e5m10``, ``fixes: none`` an empty tuple.

    Args:
        key: one of :data:`KEYS`.
        value: as read from YAML.

    Raises:
        ValidationError: it is no value of the key.
    """
    return _adapter(key).validate_python(value, strict=True)


def mistakes(key: str, value: Any) -> list[str]:
    """What is wrong with ``value`` as a value of ``key``, regardless of other keys; usually nothing."""
    try:
        canonical(key, value)
    except ValidationError as error:
        return [f"{key}: {complaint(found)}" for found in error.errors()]
    return []


def is_whole(key: str) -> bool:
    """Whether the values of ``key`` are whole numbers."""
    return _field(key).annotation is int


def _field(key: str) -> FieldInfo:
    """What a key is to any algorithm: one of the same name has the same values, if not the same default."""
    return next(iter(fields(key).values()))


@functools.cache
def _adapter(key: str) -> TypeAdapter[Any]:
    field = _field(key)
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    # Infinity and NaN are refused by the model for all its numbers, and an adapter of a plain type can say so too.
    plain = {"allow_inf_nan": False, "strict": True}
    return TypeAdapter(annotation, config=plain)  # type: ignore[arg-type]


def complaint(error: Any) -> str:
    """An error of pydantic's in one sentence."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"]).replace("\n", "\\n")
    message = error["msg"][0].lower() + error["msg"][1:]
    value = error["input"]
    hint = ""
    if isinstance(value, str) and ("number" in message or "integer" in message) and _is_number(value):
        hint = ", which is text: write the number without quotes"
    return f"{message.replace('input should', 'must')}, got {shown(value)}{hint}"


def shown(value: Any) -> str:
    """``value`` as a message has it, cut where it is very long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Says that ``name`` does not exist, and which of the ``known`` comes near it."""
    near = difflib.get_close_matches(name, [*known, *FIXES], n=1, cutoff=0.6)
    if near and near[0] in FIXES:
        return f"unknown {what} {name!r}; fixes are chosen with fixes: [{near[0]}, ...]"
    hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(known)}"
    return f"unknown {what} {shown(name)}; {hint}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
