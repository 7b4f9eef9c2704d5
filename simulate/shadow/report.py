"""The report of a shadow run: the errors that each operation added and inherited, and the operations without twins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from roundoff.notebook import as_html

from ..watching.watcher import Place

_PLACE = ["role", "module", "operation"]
_ADDED = ["added_max", "added_rms"]
_INHERITED = ["given_rms", "inherited_max", "inherited_rms", "total_max", "total_rms"]
_COUNTS = ["overflowed", "lost", "undefined"]
_COLUMNS = [*_PLACE, "calls", "elements", *_ADDED, *_INHERITED, *_COUNTS]
_SHOWN = [*_PLACE, "calls", "added_max", "added_rms", "given_rms", "inherited_rms", "total_rms", "overflowed", "lost"]
_ROWS = 12


@dataclass(frozen=True)
class ShadowReport:
    """A snapshot of the measurements of a shadow run; ``print`` it, or take its table.

    Errors are relative: divided, element by element, by the largest magnitude that rounded result, exact result and
    twin have, so that they are at most 2; and at least by 2^-10 of the largest magnitude in the tensor, so that
    elements which are zero but for cancellation do not drown the rest.

    Attributes:
        table: one row per role, module and operation, the operation that adds most first (operations with an
            overflow in rounding before all others). ``calls`` counts operations, ``elements`` the elements that are
            finite in the simulation and its twin, for the errors. ``added``: of the rounded result, from the same
            operation in float64 on the same operands; ``inherited``: of that exact result, from the twin; ``total``: of
            the rounded result, from the twin. Each as largest (``_max``) and root mean square of elements (``_rms``).
            ``given_rms``: the root mean square error of the operands (of the worst of each call), as their memory was
            last written; an operation with inherited_rms far above given_rms cancels or otherwise amplifies.
            ``lost`` counts elements that are finite only in the twin, ``overflowed`` those among them that the exact
            result still had; ``undefined`` those not finite in the twin.
        unfollowed: operations that could not be run again in float64, with the reason: there the twin starts again
            from the rounded result, and later errors are measured from there.
        unseen: the number of elements changed outside of the simulation; their twins start again.
        float64_program: whether some results were float64 themselves, so that their twins are not more precise.
    """

    table: pd.DataFrame
    unfollowed: dict[str, str]
    unseen: int
    float64_program: bool

    @staticmethod
    def of(
        rows: Mapping[Place, Mapping[str, float]], unfollowed: Mapping[str, str], *, unseen: int, float64_program: bool
    ) -> ShadowReport:
        """Makes a report of measured rows: ``rows[place]`` has every column."""
        table = pd.DataFrame(
            [(*place, *(row[name] for name in _COLUMNS[3:])) for place, row in rows.items()], columns=_COLUMNS
        )
        table = table.astype(dict.fromkeys(["calls", "elements", *_COUNTS], "int64"))
        order = table.assign(worst=table["overflowed"] > 0).sort_values(
            ["worst", "added_rms", "added_max"], ascending=False, kind="stable", ignore_index=True
        )
        return ShadowReport(order.drop(columns="worst"), dict(unfollowed), unseen, float64_program)

    def by_amplification(self) -> pd.DataFrame:
        """Returns the rows sorted by the ratio of inherited error to the operands' error: cancellations come first."""
        table = self.table[self.table["given_rms"] > 0]
        table = table.assign(amplified=table["inherited_rms"] / table["given_rms"])
        return table.sort_values("amplified", ascending=False, kind="stable", ignore_index=True)

    def __str__(self) -> str:
        return "\n".join(part if isinstance(part, str) else _table_text(part) for part in self._parts())

    def _repr_html_(self) -> str:
        """Returns the report as HTML, for notebooks."""
        return as_html(*self._parts())

    def _parts(self) -> list[str | pd.DataFrame]:
        """Returns the parts of the report in order: lines and tables."""
        table = self.table
        total = table[["calls", *_COUNTS]].sum()
        lines: list[str | pd.DataFrame] = [f"shadow run in float64: {total['calls']} operations at {len(table)} places"]
        lines.append(f"{total['overflowed']} values overflowed; {total['lost']} are not finite only in the format")
        shown = table[(table["added_rms"] > 0) | (table["overflowed"] > 0)]  # others add no error
        if len(shown):
            lines += ["where error is added:", shown[_SHOWN]]
        amplified = self.by_amplification()
        amplified = amplified[amplified["amplified"] > 2]
        if len(amplified):
            lines += ["where incoming error is amplified:", amplified[[*_SHOWN, "amplified"]]]
        lines += [f"not followed: {name}: {reason}" for name, reason in sorted(self.unfollowed.items())]
        if self.unseen:
            lines.append(f"{self.unseen} numbers were changed outside of the simulation; their twins started again")
        if self.float64_program:
            lines.append("part of the program computes in float64, and its reference has no more bits than that")
        return lines


def _table_text(table: pd.DataFrame) -> str:
    text: str = table.head(_ROWS).to_string(index=False, float_format=lambda x: f"{x:.3g}")
    return text if len(table) <= _ROWS else f"{text}\n... and {len(table) - _ROWS} more"
