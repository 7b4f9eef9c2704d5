"""Rounding statistics of a run, from its observer: records during training, and a table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...simulate import Simulation
    from ..optimizers.step_norms import StepNorms

_COUNTS = ("results", "overflow", "underflow", "subnormal", "infinite", "nan", "additions", "absorbed")


@final
class Numerics:
    """Turns the cumulative counts of an observing simulation into one record per interval.

    Args:
        simulation: the simulation of the agent; it observes.
        watched: the observers of the gradients of each network, by name; None: not observed.
    """

    def __init__(self, simulation: Simulation, watched: Mapping[str, StepNorms] | None = None) -> None:
        self._simulation, self._watched = simulation, watched or {}
        self._before: dict[str, dict[str, int]] = {}

    def record(self) -> dict[str, Any]:
        """Returns the counts since the last record, by role, with results by binary exponent.

        ``{"forward": {"results": 512, "overflow": 0, ..., "exponents": {"-3": 100, ...}}, ...}``: ``exponents`` has
        under k the number of results with a magnitude in [2^k, 2^(k+1)); zeros and non-finite ones are in none.
        Exponents of the gradients of each network, without the loss scale, are under ``gradients of critic`` and so on.
        """
        now = self._sums()
        record: dict[str, Any] = {}
        for role, sums in now.items():
            before = self._before.get(role, {})
            new = {name: count - before.get(name, 0) for name, count in sums.items()}
            record[role] = {name: new[name] for name in _COUNTS}
            record[role]["exponents"] = {name: n for name, n in new.items() if name not in _COUNTS and n}
        self._before = now
        found = {name: norms.take_exponents() for name, norms in sorted(self._watched.items())}
        return record | {f"gradients of {name}": {"exponents": counts} for name, counts in found.items() if counts}

    def first_nonfinite(self) -> str:
        """Says where the first infinity or NaN was computed."""
        return str(self._simulation.report().birth or "no result was infinite or NaN").replace("\n ", "")

    def write_table(self, path: Path) -> None:
        """Writes the counts of the whole run by role and operation as CSV."""
        from roundoff.files import atomic_writer  # noqa: PLC0415  only observed runs need it

        table = self._simulation.report().table
        with atomic_writer(path) as file:
            file.write(table.to_csv(index=False, lineterminator="\n").encode())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on counting."""
        watched = {name: norms.state_dict() for name, norms in self._watched.items()}
        return {"before": self._before, "observer": self._simulation.observer_state(), "watched": watched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._before = state["before"]
        self._simulation.load_observer_state(state["observer"])
        for name, norms in self._watched.items():
            norms.load_state_dict(state["watched"][name])

    def _sums(self) -> dict[str, dict[str, int]]:
        report = self._simulation.report()
        sums: dict[str, dict[str, int]] = {}
        for role, rows in report.table.groupby("role"):
            sums[str(role)] = {name: int(rows[name].sum()) for name in _COUNTS}
        for role, exponent, results in report.histogram.itertuples(index=False):
            sums[str(role)][str(exponent)] = int(results)
        return sums
