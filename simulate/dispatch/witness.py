"""Questions to a simulation about past operations: values, errors and cost."""

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
    """A mode with the watchers that the package itself has, and with their answers.

    Attributes:
        observer: counts what rounding does; None: nobody asked for it.
        shadow: carries the float64 twins; None: nobody asked for them.
        counter: counts products, bytes and memory; None: nobody asked for it.
    """

    observer: Observer | None = None
    shadow: Shadow | None = None
    counter: CostCounter | None = None

    def watch(
        self, format: Format, watchers: Sequence[Watcher], *, observe: bool, shadow: str | None, cost: bool
    ) -> list[Watcher]:
        """Makes the requested watchers, and returns them after further ones.

        Raises:
            FormatError: one of these is not a watcher, or the shadow does not exist.
        """
        self.shadow = _shadow(shadow)
        self.observer = None
        if observe:
            from ..watching.observer import Observer  # noqa: PLC0415  pandas costs half a second

            self.observer = Observer(format)
        self.counter = cost_counter() if cost else None
        own = (self.shadow, self.observer, self.counter)
        if not isinstance(watchers, (list, tuple)) or not all(isinstance(watcher, Watcher) for watcher in watchers):
            raise FormatError(f"watchers must be a list of objects of classes made from Watcher, got {watchers!r}")
        return [*watchers, *(watcher for watcher in own if watcher is not None)]

    def asked_for(self) -> list[str]:
        """The names of the arguments of :func:`simulate` that made it watch."""
        own = {"observe": self.observer, "shadow": self.shadow, "cost": self.counter}
        return [name for name, given in own.items() if given]

    def report(self) -> Report:
        """Returns the report of an observing simulation so far.

        Raises:
            FormatError: it does not observe.
        """
        with simulations_off():  # it may be asked for inside, and what it computes is not the program's
            return self._observing().report()

    def observer_state(self) -> dict[str, Any]:
        """Returns the counts of an observing simulation as plain numbers and tensors, for a checkpoint.

        Raises:
            FormatError: it does not observe.
        """
        with simulations_off():
            return self._observing().state_dict()

    def load_observer_state(self, state: dict[str, Any]) -> None:
        """Goes on counting from what :meth:`observer_state` returned.

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
