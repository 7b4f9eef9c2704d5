"""Random values for keys, each drawn from a stream of its own, so that neither more keys nor more draws change others.

A drawn number has three significant digits, as a paper would print it: a run can be repeated from what its config
says, on any machine.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

from .keys import is_whole, mistakes, shown, unknown
from .located_yaml import Located
from .outline import Choice

if TYPE_CHECKING:
    from .outline import Outline

DISTRIBUTIONS = ("uniform", "log_uniform", "choice")
MAX_DRAWS = 10_000
_DIGITS = 3


def draw_choices(outline: Outline) -> list[Choice]:
    """The draws that the outline's section ``random`` describes; mistakes are noted there."""
    parts, axis = outline.random, outline.axes["random"]
    values: dict[str, Located] = parts["values"]
    if not values:
        outline.complain(axis.place, "random needs values: a distribution for at least one key")
    count = _whole_number(outline, "draws", parts.get("draws"), axis.place, 1, MAX_DRAWS)
    seed = _whole_number(outline, "seed", parts.get("seed"), axis.place, 0, 2**63 - 1)
    columns: dict[str, list[Any]] = {}
    for key, how in values.items():
        distribution = _distribution(outline, key, how)
        if distribution and count is not None and seed is not None:
            stream = Random(f"{seed}:{key}")  # noqa: S311  experiments, not secrets
            columns[key] = [_draw(key, *distribution, stream.random()) for _ in range(count)]
    rows = zip(*columns.values(), strict=True) if columns else []
    return [
        Choice({key: Located(value, values[key].place) for key, value in zip(columns, row, strict=True)}, axis.place)
        for row in rows
    ]


def _draw(key: str, kind: str, arguments: list[Any], u: float) -> Any:
    """The value at ``u`` in [0, 1) of the distribution."""
    if kind == "choice":
        return arguments[int(u * len(arguments))]
    low, high = arguments
    if kind == "log_uniform":
        value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        value = low + u * (high - low)
    rounded = round(value) if is_whole(key) else float(f"{value:.{_DIGITS}g}")
    return min(max(rounded, low), high)


def _whole_number(outline: Outline, name: str, item: Located | None, place: str, least: int, most: int) -> int | None:
    if item is None:
        outline.complain(place, f"random needs {name}, a whole number from {least} to {most}")
        return None
    if type(item.value) is not int or not least <= item.value <= most:
        got = shown(item.plain())
        outline.complain(item.place, f"{name} of random must be a whole number from {least} to {most}, got {got}")
        return None
    return item.value


def _distribution(outline: Outline, key: str, how: Located) -> tuple[str, list[Any]] | None:
    """A distribution's name and arguments; None, with a complaint, if it is none."""
    example = "{log_uniform: [1e-5, 1e-3]}"
    if not isinstance(how.value, dict) or len(how.value) != 1:
        allowed = ", ".join(DISTRIBUTIONS)
        outline.complain(how.place, f"{key} needs one of {allowed}, such as {example}, got {shown(how.plain())}")
        return None
    ((kind, item),) = how.value.items()
    if kind not in DISTRIBUTIONS:
        outline.complain((how.key_places or {})[kind], unknown("distribution", kind, DISTRIBUTIONS))
        return None
    arguments = item.plain()
    if kind == "choice":
        if not isinstance(arguments, list) or not arguments:
            outline.complain(item.place, f"choice needs a list of at least one value, got {shown(arguments)}")
            return None
        bad = [(value.place, message) for value in item.value for message in mistakes(key, value.plain())]
    else:
        if not _is_range(arguments) or (kind == "log_uniform" and arguments[0] <= 0):
            above = ", both above 0" if kind == "log_uniform" else ""
            needs = f"{kind} needs two numbers, the lower one first{above}, such as {example}"
            outline.complain(item.place, f"{needs}, got {shown(arguments)}")
            return None
        bad = [(value.place, message) for value in item.value for message in mistakes(key, value.plain())]
    for place, message in bad:
        outline.complain(place, message)
    return None if bad else (kind, arguments)


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    if any(type(bound) not in (int, float) or not math.isfinite(bound) for bound in value):
        return False
    return bool(value[0] < value[1])
