"""The significand bits, or the widths of other formats, that each task needs, as a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..statistics.equivalence import MARGIN
from ..statistics.needed_bits import needed_bits
from .sides import selections, sides, why_unsaid
from .summary import REFERENCE, ended, exponent_bits, parsed, significand_bits

if TYPE_CHECKING:
    from ..runs.experiment import Experiment
    from .sides import Side


def needed_table(experiment: Experiment, margin: float = MARGIN) -> pd.DataFrame:
    """The bits needed on each task, for each family of formats and condition.

    A family is the floats of one width of the exponent, which differ in significand bits; or formats that have one
    number in their name (int8, posit16), which is their width; or any other format by itself, whose width is 0.

    Columns: ``task``, ``family`` (empty for floats), ``exponent_bits``, the conditions, ``bits``, ``confidence``,
    ``by_means``, ``runs``, ``paired`` and ``reason`` (see ``NeededBits``), ``smallest`` and ``largest`` (widths
    tested), ``margin``.
    """
    runs = ended(experiment.runs)
    keys = experiment.conditions.keys
    families: dict[tuple[Any, ...], dict[int, Side]] = {}
    references: dict[tuple[Any, ...], Side] = {}
    for side, reference in sides(runs, keys, experiment.metric, experiment.runs):
        if side.where["format"] == REFERENCE:  # whose first weights were moved
            continue
        name, width = _family(side.where["format"])
        family = (name, *(side.where[key] for key in keys))
        families.setdefault(family, {}).setdefault(width, side)
        references[family] = reference
    rows: list[dict[str, Any]] = []
    for family, widths in families.items():
        reference = references[family]
        for selection in selections(reference, set(runs["task"]), experiment.metric):
            there = {m: side for m, side in widths.items() if set(selection.tasks) <= side.judged.keys()}
            if not there:
                continue
            tested = {m: selection.of(side.judged) for m, side in there.items()}
            found = needed_bits(selection.of(reference.judged), tested, margin=margin)
            unsaid = (why_unsaid(side, reference, selection.tasks, margin) for side in there.values())
            if why := next(filter(None, unsaid), ""):
                found = found._replace(bits=None, confidence=float("nan"), reason=found.reason or why)
            answer = {key: value for key, value in found._asdict().items() if key != "confidences"}
            floats = isinstance(family[0], int)
            values = {"family": "" if floats else family[0], "exponent_bits": family[0] if floats else pd.NA}
            values |= dict(zip(keys, family[1:], strict=True))
            sizes = {"smallest": min(tested), "largest": max(tested)}
            rows.append({"task": selection.name, **values, **answer, **sizes, "margin": margin})
    columns = ["task", "family", "exponent_bits", *keys, "bits", "confidence", "by_means", "runs", "paired", "reason"]
    columns += ["smallest", "largest", "margin"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("exponent_bits", "bits", "by_means"), "Int64"))
    ascending = [*[True] * (1 + len(keys)), False]
    return table.sort_values(["task", *keys, "exponent_bits"], ascending=ascending, ignore_index=True)


def _family(name: str) -> tuple[int | str, int]:
    """The family of a format, by exponent bits or by name, and its width."""
    if not np.isnan(significand_bits(name)):
        return int(exponent_bits(name)), int(significand_bits(name))
    numbered = re.fullmatch(r"([a-z]+)([0-9]{1,4})", str(parsed(name) or ""))
    return (f"{numbered[1]}X", int(numbered[2])) if numbered else (name, 0)
