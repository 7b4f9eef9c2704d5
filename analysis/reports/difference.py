"""Makes the page of ``roundoff diff --html``: the differences of two runs, and whether rounding explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tables.wording import plural
from .markup import Column, definitions, element, table
from .page import page

_VERDICTS = {
    "explained by rounding": "The operands are equal, or the results differ by no more than the bounds of rounding.",
    "amplified": "Each run is right for its operands, which differ by rounding; its results differ by more than that.",
    "not explained": "The runs compute different things, one is less exact, or an operation errs beyond its bound.",
}
_NUMBERS = ("difference", "bound", "amplification")


def difference_page(comparison: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Makes an HTML document, which loads nothing, of the comparison of two runs.

    Args:
        comparison: the plain data of the comparison, as ``roundoff diff --json`` prints it.
        names: the names of both runs.
    """
    rows, paired = comparison["differences"], comparison["paired"]
    unexplained = sum(row["verdict"] == "not explained" for row in rows)
    answer = "Rounding explains all differences." if rows else "Corresponding results have equal bits."
    if unexplained:
        answer = f"Rounding does not explain {plural(unexplained, 'difference')}."
    runs = {
        f"{position} run": f"{name}: {plural(total, 'operation')}, {total - paired} only in this run"
        + f"; {lost} after the limit were not compared" * bool(lost)
        for position, name, total, lost in zip(
            ("First", "Second"), names, comparison["operations"], comparison["dropped"], strict=True
        )
    }
    content = [element("h1", "Two runs"), element("div", element("p", answer), class_="answer"), definitions(runs)]
    columns = [Column(name, numeric=name in _NUMBERS) for name in ("operation", "module", "verdict", *_NUMBERS)]
    values = ([row[column.heading] for column in columns] for row in rows)
    cells = [[f"{x:.2g}" if isinstance(x, float) else x for x in row] for row in values]
    if rows:
        content.append(table("First differences, in the order of the program", columns, cells))
    for row in rows:
        lines = {f"{name.title()} run": element("code", row[name]) for name in ("first", "second") if row[name]}
        content += [element("h3", f"{row['operation']}: {row['reason']}"), definitions(lines)]
    content += [element("h2", "The verdicts"), definitions(_VERDICTS)]
    return page("Two runs", [*content, element("footer", "Made by ", element("code", "roundoff diff --html"), ".")])
