"""Random values for keys, each drawn from a stream of its own, so that neither more keys nor more draws change others.

A drawn number has three significant digits, as a paper would print it: a run can be repeated from what its config
says, on any machine.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

from ..errors import Problem
from .located_yaml import Located
from .outline import Choice
from .sweep_file import MAX_DRAWS, MAX_SEED

if TYPE_CHECKING:
    from .outline import Outline

_DIGITS = 3


def draw_choices(outline: Outline) -> list[Choice]:
    """The draws that the outline's section ``random`` describes; mistakes are noted there."""
    parts, axis = outline.random, outline.axes["random"]
    values: dict[str, Located] = parts["values"]
    for key, how in values.items():
        for arguments in how.value.values():
            for value in arguments.value:
                outline.problems += [
                    Problem(value.place, message) for message in outline.subject.mistakes(key, value.plain())
                ]
    if not outline.problems:  # what was given and is wrong is not missing
        for name, numbers in (("draws", f"1 to {MAX_DRAWS}"), ("seed", f"0 to {MAX_SEED}")):
            if name not in parts:
                outline.complain(axis.place, f"random needs {name}, a whole number from {numbers}")
        if not values:
            outline.complain(axis.place, "random needs values: a distribution for at least one key")
    if outline.problems:
        return []
    count, seed = parts["draws"].value, parts["seed"].value
    columns: dict[str, list[Any]] = {}
    for key, how in values.items():
        ((distribution, arguments),) = how.plain().items()
        stream = Random(f"{seed}:{key}")  # noqa: S311  experiments, not secrets
        whole = outline.subject.is_whole(key)
        columns[key] = [_draw(distribution, arguments, stream.random(), whole=whole) for _ in range(count)]
    return [
        Choice({key: Located(value, values[key].place) for key, value in zip(columns, row, strict=True)}, axis.place)
        for row in zip(*columns.values(), strict=True)
    ]


def _draw(distribution: str, arguments: list[Any], u: float, *, whole: bool) -> Any:
    """The value at ``u`` in [0, 1) of the distribution."""
    if distribution == "choice":
        return arguments[int(u * len(arguments))]
    low, high = arguments
    if distribution == "log_uniform":
        value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        value = low + u * (high - low)
    rounded = round(value) if whole else float(f"{value:.{_DIGITS}g}")
    return min(max(rounded, low), high)
