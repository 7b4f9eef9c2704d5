"""The paper's tables of time and memory: its numbers, and the bench that measures the same here."""

from __future__ import annotations

from ..statistics.markdown import table
from .published import PAPER, published

_ON_STATES = (
    "`python -m bench.update` measures this on a machine with a GPU: fp32 and native fp16 in these sizes, 500 updates"
    " after 500 warm ones, by events of the device, and the peak of memory. Without a GPU it measures the time of two"
    " sizes on one thread of the CPU."
)
_ON_PIXELS = (
    "`python -m bench.pixels` measures something else, the time of simulated against plain arithmetic on one thread of"
    " the CPU, in smaller sizes. Native fp16 in these sizes is not measured."
)

PERFORMANCE = {"table2": _ON_PIXELS, "table3": _ON_PIXELS, "table10": _ON_STATES, "table11": _ON_STATES}
"""By the name of the table: what measures the same in a checkout, and how far that goes."""


def performance_page(name: str) -> str:
    """The paper's numbers of a table of :data:`PERFORMANCE`, and how to measure here, in Markdown."""
    numbers = published(name)
    sizes: dict[str, dict[str, str]] = {}
    for number in numbers:
        size = ", ".join(f"{key} {value}" for key, value in number.where.items() if key != "format")
        sizes.setdefault(size, {})[number.where["format"]] = number.value
    rows = [
        {"size": size, **cells, "fp32 / fp16": f"{float(cells['fp32']) / float(cells['fp16']):.2f}"}
        for size, cells in sizes.items()
    ]
    what = f"{numbers[0].quantity.capitalize()} ({numbers[0].unit}) on a Tesla V100"
    return (
        f"# {name}\n\n{what}, as printed in {numbers[0].place} of {PAPER}:\n\n{table(rows)}\n\n"
        f"In a checkout, {PERFORMANCE[name]}"
    )
