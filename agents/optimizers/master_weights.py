"""Master weights: parameters kept in full precision; the network computes with a rounded copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from ...formats import Format, round
from ...simulate import Simulation, Watcher
from .kahan_momentum import MovingAverage, PlainEMA


@final
class MasterWeights:
    """Parameters in full precision for the low-precision tensor that forward and backward pass use.

    ``weights`` is updated, by changes that the low-precision tensor would not notice, and ``low`` becomes its
    rounded copy (to nearest). Full precision is float32, or the format's carrier where that is wider.

    Args:
        low: the initial parameters in the format (in its carrier, or in a half precision of PyTorch).
        format: the format.

    Attributes:
        low: the copy; overwritten in place.
        weights: the master weights, as ``low`` in full precision; ``weights.grad`` is the input of their optimizer.

    Source:
        Micikevicius et al., "Mixed Precision Training", Section 3.1; Low-precision SAC, Section 4.3.
    """

    def __init__(self, low: torch.Tensor, format: Format) -> None:
        self.low = low
        self.weights = low.detach().to(dtype=format.carrier, copy=True)
        self._format = format
        self._unrounded = Simulation("fp32", warn_unused=False)

    def watch(self, watcher: Watcher) -> None:
        """Notifies a watcher of computations in full precision, which are outside of surrounding simulations."""
        self._unrounded = Simulation("fp32", warn_unused=False, watchers=[watcher])

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Computes in full precision for the block, inside of any simulation; then updates ``low``."""
        with self._unrounded:
            yield
            self._publish()

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Copies the gradients of ``low``, including their scale, to the master weights."""
        assert self.low.grad is not None
        self.weights.grad = self.low.grad.to(dtype=self.weights.dtype, copy=True)

    def load(self, weights: torch.Tensor) -> None:
        """Restores master weights from a checkpoint; ``low`` is stored separately."""
        self.weights.copy_(weights)

    @torch.no_grad()
    def _publish(self) -> None:
        self.low.copy_(round(self.weights, self._format))


@final
class MasterEMA(MovingAverage):
    """The plain average, kept in full precision, with a rounded copy for the network that is averaged.

    Args:
        average: the average in low precision, with its initial value; changed in place.
        tau: the step, in (0, 1].
        format: the format of ``average``.
    """

    def __init__(self, average: torch.Tensor, tau: float, format: Format) -> None:
        self.average = average
        self._master = MasterWeights(average, format)
        self._plain = PlainEMA(self._master.weights, tau)

    def watch(self, watcher: Watcher) -> None:
        """Notifies a watcher of computations in full precision, which are outside of surrounding simulations."""
        self._master.watch(watcher)

    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``, which is also in full precision; NaN and infinity spread into it."""
        with self._master.updating():
            self._plain.update_(source)

    def state_dict(self) -> dict[str, Any]:
        """Returns the average in full precision."""
        return {"master": self._master.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._master.load(state["master"])
