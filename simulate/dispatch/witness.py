"""The reports of a simulation about past operations: values, errors and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...formats import Format, FormatError
from ..presence.entering import simulations_off
from ..watching.watcher import Watcher

if TYPE_CHECKING:
    from ..cost.counter import CostCounter
    from ..cost.report import Cost
    from ..shadow.shadow import Shadow, ShadowReport
    from ..watching.observer import Observer
    from ..watching.report import Report


class Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that holds the watchers of this package, and returns their reports.

    Attributes:
        observer: counts the effects of rounding; None if not requested.
        shadow: carries the float64 twins; None if not requested.
        counter: counts products, bytes and memory; None if not requested.
    """

    observer: Observer | None = None
    shadow: Shadow | None = None
    counter: CostCounter | None = None

    def watch(
        self, format: Format, watchers: Sequence[Watcher], *, observe: bool, shadow: str | None, cost: bool
    ) -> list[Watcher]:
        """Makes the requested watchers, and returns them after the user's own watchers.

        Raises:
            FormatError: one of these is not a watcher, or the shadow does not exist.
        """
        self.shadow = _shadow(shadow)
        self.observer = None
        if observe:
            from ..watching.observer import Observer  # noqa: PLC0415  pandas costs half a second

            self.observer = Observer(format)
        self.counter = cost_counter() if cost else None
        requested = (self.shadow, self.observer, self.counter)
        if not isinstance(watchers, (list, tuple)) or not all(isinstance(watcher, Watcher) for watcher in watchers):
            raise FormatError(f"watchers must be a list of objects of classes made from Watcher, got {watchers!r}")
        return [*watchers, *(watcher for watcher in requested if watcher is not None)]

    def requested_reports(self) -> list[str]:
        """Returns the names of the arguments of :func:`simulate` that request a report."""
        watchers = {"observe": self.observer, "shadow": self.shadow, "cost": self.counter}
        return [name for name, watcher in watchers.items() if watcher]

    def report(self) -> Report:
        """Returns the report of an observing simulation so far.

        Raises:
            FormatError: it does not observe.
        """
        with simulations_off():  # inside the block, the report's own operations are not the program's
            return self._observing().report()

    def observer_state(self) -> dict[str, Any]:
        """Returns the counts of an observing simulation as plain numbers and tensors, for a checkpoint.

        Raises:
            FormatError: it does not observe.
        """
        with simulations_off():
            return self._observing().state_dict()

    def load_observer_state(self, state: dict[str, Any]) -> None:
        """Continues counting from the counts that :meth:`observer_state` returned.

        Raises:
            FormatError: it does not observe.
        """
        with simulations_off():
            self._observing().load_state_dict(state)

    def _observing(self) -> Observer:
        if self.observer is None:
            raise FormatError("this simulation does not observe; make it with simulate(format, observe=True)")
        return self.observer

    def shadow_report(self) -> ShadowReport:
        """The errors that operations added and inherited, against the float64 twins.

        Raises:
            FormatError: the simulation runs without a shadow.
        """
        with simulations_off():
            return self._shadowing().report()

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        """The float64 twin of a tensor that a simulation with a shadow has seen; else its own values in float64.

        Raises:
            FormatError: the simulation runs without a shadow.
        """
        return self._shadowing().twin(x)

    def _shadowing(self) -> Shadow:
        if self.shadow is None:
            raise FormatError('this simulation has no shadow; make it with simulate(format, shadow="fp64")')
        return self.shadow

    def cost(self, kept: Mapping[str, Iterable[torch.Tensor]] | None = None) -> Cost:
        """Returns the cost of the program so far: products by format, bytes moved, memory.

        Args:
            kept: the tensors kept between steps, by kind; None for those in PyTorch modules and optimizers.

        Raises:
            FormatError: the simulation does not count it.
        """
        if self.counter is None:
            raise FormatError("this simulation does not count its cost; make it with simulate(format, cost=True)")
        return self.counter.report(kept)


def cost_counter() -> CostCounter:
    """A new counter of products, bytes and memory."""
    from ..cost.counter import CostCounter  # noqa: PLC0415  pandas costs half a second

    return CostCounter()


def _shadow(shadow: str | None) -> Shadow | None:
    if shadow is None:
        return None
    if shadow != "fp64":
        raise FormatError(f'shadow must be "fp64" or None, got {shadow!r}')
    from ..shadow.shadow import Shadow  # noqa: PLC0415  pandas costs half a second

    return Shadow()
