"""An audit of every operation under a simulation: whether its result was rounded, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pandas as pd

from roundoff.notebook import as_html

from ..policy.rules import Rule
from .plan import OperationPlan

_COLUMNS = ["operation", "role", "module", "treatment", "format", "rounding"]
_COLUMNS += ["calls", "rounded", "unrounded integers", "operands"]


@dataclass(frozen=True)
class Audit:
    """A snapshot; ``print`` it, or take its table.

    Attributes:
        table: One row per operation (with its overload), role and module; ``treatment`` describes its handling,
            ``format`` and ``rounding`` the policy's request, ``calls`` the number of calls, ``rounded`` the number of
            rounded tensors, ``unrounded integers`` the number of calls that made counts, positions or steps, and
            ``operands`` the formats of its rounded operands, by product. Role and module are empty where the policy
            does not ask for them. A decomposed operation is listed next to the operations of its decomposition.
        unused: rules of the policy that name an operation or module, and matched nothing.
    """

    table: pd.DataFrame
    unused: tuple[Rule, ...]

    @staticmethod
    def of(plans: Iterable[OperationPlan], unused: Iterable[Rule], unreached: Collection[OperationPlan] = ()) -> Audit:
        """Collects the plans and counts of a simulation; ``unreached`` are products that no rule reaches."""
        rows = [
            (
                str(plan),
                plan.role,
                plan.module,
                plan.kind() + ("; a product that no rule about products reaches" if plan in unreached else ""),
                str(plan.arithmetic.format),
                str(plan.arithmetic.rounding),
                plan.outcome.calls,
                plan.outcome.rounded,
                plan.outcome.left_whole,
                plan.describe_operands(),
            )
            for plan in plans
            if plan.outcome.calls  # else it was unrounded at this place, in the program's own float32
        ]
        table = pd.DataFrame(rows, columns=_COLUMNS)
        return Audit(table.sort_values(_COLUMNS[:3], ignore_index=True), tuple(unused))

    def __str__(self) -> str:
        return "\n".join([*self._totals(), self.table.to_string(index=False), *self._unused()])

    def _repr_html_(self) -> str:
        """Returns the totals, the table and the unused rules as HTML, for notebooks."""
        return as_html("\n".join(self._totals()), self.table, *self._unused())

    def _totals(self) -> list[str]:
        totals = self.table.groupby("treatment", sort=False)["calls"].sum().sort_values(ascending=False)  # most first
        return [f"{count} calls {treatment}" for treatment, count in totals.items()]

    def _unused(self) -> list[str]:
        return [f"unused rule: {rule}" for rule in self.unused]
