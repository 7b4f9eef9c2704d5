"""The report of the counted cost of a simulation: operations, products by format, and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from roundoff.notebook import as_html

from ..watching.watcher import Place
from .models import CostModel

_PLACE = ["role", "module", "operation"]
NO_FORMULA = "products without a formula: not counted"
"""The note of an operation with products that cannot be counted."""
NOT_FOLLOWED = "not all of its tensors are in plain memory: their bytes are not counted"
_MOST_ROWS = 12


class MultipliedFormats(NamedTuple):
    """The formats of a product's operands ``a`` and ``b``, with their bits, and of its accumulator."""

    a: str
    a_bits: int
    b: str
    b_bits: int
    accumulator: str


class OperationCost(NamedTuple):
    """The memory traffic of an operation at one place."""

    calls: int
    elements_read: int
    bytes_read: float
    elements_written: int
    bytes_written: float
    without_formula: int
    not_followed: int


class KeptMemory(NamedTuple):
    """The memory of one kind of tensors that are kept between steps."""

    kind: str
    elements: int
    bytes: float


_FORMATS = ("a", "b", "accumulator")
_SUMMED = ("macs", "bops", "elements_read", "bytes_read", "elements_written", "bytes_written")


@dataclass(frozen=True)
class Cost:
    """A snapshot of the costs of a simulated program so far; ``print`` it, or take its tables.

    Attributes:
        table: one row per role, module and operation: ``calls``, ``macs`` (multiply-accumulates of products), ``bops``
            (bit operations: multiply-accumulates times the bits of either operand), elements and bytes read and
            written, and a ``note`` on what could not be counted.
        products: one row per role, module, operation, product, formats ``a`` and ``b`` of the operands and
            ``accumulator``, with ``macs`` and ``bops``.
        memory: one row per kind of tensor kept between steps, and one for the peak: ``elements`` and ``bytes``.
        steps: the number of steps of optimizers.
        uncounted: the operations with products that could not be counted, by name.
    """

    table: pd.DataFrame
    products: pd.DataFrame
    memory: pd.DataFrame
    steps: int
    uncounted: tuple[str, ...]

    @staticmethod
    def of(
        operations: Mapping[Place, OperationCost], macs: Mapping[tuple[Place, str, MultipliedFormats], int],
        kept: Sequence[KeptMemory], peak_bytes: float, steps: int,
    ) -> Cost:  # fmt: skip
        """Collects the counts."""
        # Products, a row for each place and combination of formats
        rows = [
            (*place, product, f.a, f.b, f.accumulator, count, count * f.a_bits * f.b_bits)
            for (place, product, f), count in macs.items()
        ]
        products = pd.DataFrame(rows, columns=[*_PLACE, "product", "a", "b", "accumulator", "macs", "bops"])
        products = products.sort_values([*_PLACE, "product", "a", "b", "accumulator"], ignore_index=True)
        # Operations, a row for each place, with the sums of its products
        macs_by_place: Counter[tuple[str, ...]] = Counter()
        bit_operations: Counter[tuple[str, ...]] = Counter()
        for row in rows:  # place in front, counts at the end
            macs_by_place[row[:3]] += row[-2]
            bit_operations[row[:3]] += row[-1]
        table_rows = []
        for place, o in operations.items():
            notes = [NO_FORMULA] * bool(o.without_formula) + [NOT_FOLLOWED] * bool(o.not_followed)
            table_rows.append((*place, o.calls, macs_by_place[place], bit_operations[place], *o[1:5], "; ".join(notes)))
        names = ["calls", "macs", "bops", *OperationCost._fields[1:5], "note"]
        table = pd.DataFrame(table_rows, columns=[*_PLACE, *names]).sort_values(_PLACE, ignore_index=True)
        # Memory: after the kinds come their sum and the peak, which `totals` and `as_json` rely on.
        total = (sum(kind.elements for kind in kept), sum(kind.bytes for kind in kept))
        memory = pd.DataFrame(
            [*kept, ("kept between steps", *total), ("peak", None, peak_bytes)], columns=KeptMemory._fields
        )
        memory["elements"] = memory["elements"].astype("Int64")  # the peak has none
        uncounted = sorted({place.operation for place, o in operations.items() if o.without_formula})
        return Cost(table, products, memory, steps, tuple(uncounted))

    def totals(self) -> dict[str, float]:
        """Returns the sums of the table's columns except ``calls``, and the bytes ``kept`` and at the ``peak``."""
        sums = {name: float(self.table[name].sum()) for name in _SUMMED}
        kept, peak = self.memory["bytes"].iloc[-2:]  # the last two rows
        return {**sums, "kept": float(kept), "peak": float(peak)}

    def as_json(self, steps: int = 1, models: Sequence[CostModel] = ()) -> dict[str, Any]:
        """Returns the cost of a step as plain data: products by format, sums, and the tensors kept.

        Args:
            steps: the number of steps counted.
            models: Models of costs; the result includes the cost of the products by each of them.
        """
        totals = self.totals()
        products = [
            dict(zip(_FORMATS, key, strict=True)) | {"macs": count / steps}
            for key, count in self._by_format().most_common()
        ]
        results = {model.name: (model, model.of(self.products, totals)) for model in models}
        return {
            **{name: totals[name] / steps for name in _SUMMED},  # sums are of one step, memory is not divided
            "bytes_kept": totals["kept"],
            "bytes_peak": totals["peak"],
            "kept": dict(zip(self.memory["kind"].iloc[:-2], map(float, self.memory["bytes"].iloc[:-2]), strict=True)),
            "products": products,
            "uncounted": list(self.uncounted),
            "modules": sorted(set(self.table["module"]) - {""}),
            "operations": sorted(set(self.table["operation"])),
            "models": {
                name: {
                    "value": None if cost.value is None else cost.value / steps,
                    "unit": model.unit,
                    "source": model.source,
                    "without": sorted(cost.missing),
                }
                for name, (model, cost) in results.items()
            },
        }

    def __str__(self) -> str:
        return "\n".join([*self._lines(), self._largest().to_string(index=False, float_format=number)])

    def _repr_html_(self) -> str:
        """Returns the lines and the largest entries as HTML, for notebooks."""
        return as_html("\n".join(self._lines()), self._largest())

    def told(self, model: CostModel) -> str:
        """Describes the cost of the products by a model, with the model's name and source."""
        return model.of(self.products, self.totals()).text

    def _lines(self) -> list[str]:
        totals = self.totals()
        moved = totals["bytes_read"] + totals["bytes_written"]
        calls = int(self.table["calls"].sum())
        text = (
            f"cost of {calls} operations, {self.steps} steps of optimizers: {number(totals['macs'])}"
            f" multiply-accumulates of products, {number(totals['bops'])} bit operations, {number(moved)} bytes moved"
            f" ({number(totals['bytes_read'])} read, {number(totals['bytes_written'])} written)"
        )
        lines = [text]
        kept = zip(self.memory["kind"], self.memory["bytes"], strict=True)
        listed = ", ".join(f"{kind} {number(size)}" for kind, size in kept if kind != "peak")
        lines.append(f"memory in bytes: {listed}; {number(totals['peak'])} at the peak")
        lines += [f"  {number(n)} of {a} x {b}, added in {c}" for (a, b, c), n in self._by_format().most_common()]
        if self.uncounted:
            lines.append(f"not counted, since their products have no formula: {', '.join(self.uncounted)}")
        return lines

    def _by_format(self) -> Counter[tuple[str, str, str]]:
        """Sums the multiply-accumulates by the formats of both operands and the accumulator."""
        macs_by_format: Counter[tuple[str, str, str]] = Counter()
        for *formats, macs in zip(*(self.products[name] for name in (*_FORMATS, "macs")), strict=True):
            macs_by_format[tuple(formats)] += int(macs)
        return macs_by_format

    def _largest(self) -> pd.DataFrame:
        """Returns the rows of the operations with most multiply-accumulates, then most bytes moved."""
        moved = self.table["bytes_read"] + self.table["bytes_written"]
        order = self.table.assign(moved=moved).sort_values(["macs", "moved"], ascending=False, kind="stable")
        return order.drop(columns="moved").head(_MOST_ROWS)


def number(value: float) -> str:
    """Formats a number for people: integers with separators of thousands, others with four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"
