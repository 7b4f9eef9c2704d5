"""The report of a comparison of two runs, and the comparison of two functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...formats import Format, aligned
from ..dispatch.simulation import Simulation
from ..policy.policy import Policy
from ..presence.generators import remembered_generators
from .compare import Comparison, Difference, Verdict
from .recorder import Recorder
from .trace import MOST_OPERATIONS, Trace

_SHOWN = 10  # differences that are printed


@dataclass(frozen=True)
class DiffReport:
    """The differences of two runs; ``print`` it.

    Attributes:
        operations: the number of recorded operations of each run.
        dropped: the number of operations of each run after the limit, which are not compared.
        paired: the number of operations that correspond.
        differences: the first difference that rounding explains, the most amplified one, and all that are not
            explained, in the order of the program.
    """

    operations: tuple[int, ...]
    dropped: tuple[int, ...]
    paired: int
    differences: tuple[Difference, ...]

    @classmethod
    def of(cls, *traces: Trace) -> DiffReport:
        """Compares two traces."""
        comparison = Comparison(*traces)
        sizes, dropped = tuple(len(trace.operations) for trace in traces), tuple(trace.dropped for trace in traces)
        return cls(sizes, dropped, len(comparison.partners[0]), tuple(comparison.differences))

    @property
    def explained(self) -> bool:
        """Whether rounding explains all differences."""
        return all(row.verdict is not Verdict.NOT_EXPLAINED for row in self.differences)

    def __str__(self) -> str:
        first, second = self.operations
        only = f"{first - self.paired} only in the first run, {second - self.paired} only in the second"
        lines = [f"{first} and {second} operations: {self.paired} correspond, {only}"]
        if any(self.dropped):
            lines.append("not compared, after the limit: {} and {} operations".format(*self.dropped))
        if not self.differences:
            return "\n".join([*lines, "corresponding results have equal bits"])
        head = ("verdict", "operation", "module", "difference", "bound", "amplified")
        shown = self.differences[:_SHOWN]
        numbers = [["" if math.isnan(x) else f"{x:.2g}" for x in row[6:9]] for row in shown]
        lines.append(aligned([head, *((*row[:3], *x) for row, x in zip(shown, numbers, strict=True))], left=range(3)))
        for row in shown:
            lines.append(f"{row.operation}: {row.reason}")
            lines += [f"  {place}" for place in dict.fromkeys([row.first, row.second]) if place]
        more = len(self.differences) - _SHOWN
        return "\n".join([*lines, f"and {more} more, in the report's JSON"] if more > 0 else lines)

    def as_json(self) -> dict[str, Any]:
        """The report as plain data; unknown numbers are null."""
        rows = [row._asdict().items() for row in self.differences]
        plain = [{k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in row} for row in rows]
        return {**asdict(self), "explained": self.explained, "differences": plain}


def recording(
    policy: Policy | Format | str | None = None,
    limit: int = MOST_OPERATIONS,
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
) -> tuple[Simulation, Recorder]:
    """Makes a simulation that records; without a policy it changes no bit."""
    recorder = Recorder(limit)
    chosen = "fp32" if policy is None else policy
    return Simulation(chosen, watchers=[recorder], products="plain", root=root, warn_unused=False), recorder


def diff(
    first: Callable[[], Any],
    second: Callable[[], Any] | None = None,
    *,
    formats: tuple[Policy | Format | str | None, Policy | Format | str | None] = (None, None),
    limit: int = MOST_OPERATIONS,
    root: torch.nn.Module | Sequence[torch.nn.Module] = (),
) -> DiffReport:
    """Runs two functions that should compute the same, and explains where they differ.

    Both start from the same state of the random generators of PyTorch, NumPy and Python, and make their own model and
    data. Each PyTorch operation is compared, and the returned tensors and numbers.

    Args:
        first: a function without arguments.
        second: the other function; None: the first again, to compare two formats or to test reproducibility.
        formats: formats or policies to simulate, one for each function.
        limit: the number of operations that are recorded; later ones are not compared.
        root: the module, or modules, where names of modules begin.
    """
    restore = remembered_generators()
    traces = []
    for function, chosen in zip((first, second or first), formats, strict=True):
        restore()
        simulation, recorder = recording(chosen, limit, root)
        with simulation:
            recorder.finish(function())
        traces.append(recorder.trace)
    return DiffReport.of(*traces)
