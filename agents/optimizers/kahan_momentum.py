"""Exponential moving averages of parameters: plain, and by compensated summation (Kahan-momentum)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import Any, ClassVar, Self, final

import torch

from ...formats import unsimulated
from ...simulate import Role, Slots, in_role
from ..errors import RunError
from ..stored import Kept
from .decisions import copy_, magnitude, multiply_, number_or_tensor, number_tensor, subtract_product, with_number
from .kahan_gradients import add_compensated_, kahan_add_
from .stochastic_compensation import step_towards

_add = unsimulated(torch.add)
_rounding_error = unsimulated(lambda average, step, new_average: (new_average - average) - step)


class MovingAverage(ABC):
    """An average that follows a tensor: average <- average + tau (source - average).

    Operations of its updates have the role ``averages``, for use in rules of policies.
    """

    average: torch.Tensor

    @abstractmethod
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source`` by one step, in place."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the state, besides the average itself, that is needed to continue identically."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""


class TraceableAverage(MovingAverage):
    """An average that compiled programs can update: its state is tensors, and numbers that a program takes as data."""

    kept_in: ClassVar[tuple[str, ...]] = ("average",)
    """The names of the attributes that an update reads or writes; attributes may be None."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that an update reads or writes, and its constants, which are data to programs."""
        attributes = [(name, x) for name, x in Slots.attributes(self, self.kept_in) if x is not None]
        return {name: x if isinstance(x, torch.Tensor) else self.average.new_tensor(x) for name, x in attributes}

    def bound_to(self, tensors: dict[str, torch.Tensor]) -> Self:
        """Returns this average with its state in ``tensors``."""
        bound = copy(self)
        Slots.attributes(bound, self.kept_in).put(map(tensors.get, self.kept_in))
        return bound


@final
class PlainEMA(TraceableAverage):
    """The usual formula of the average: average <- (1 - tau) average + tau source.

    In low precision it stops: once tau * |source - average| is below half an ulp of the average (for tau = 0.005 in
    e5m10 that is a difference of ten percent), nothing changes any more.

    Args:
        average: the average; any floating-point type; changed in place.
        tau: the step, in (0, 1].

    Source:
        Low-precision SAC, Section 3, "Stability of Soft-Updates", with beta = 1 - tau.
    """

    kept_in = ("average", "one_minus_tau", "tau")

    def __init__(self, average: torch.Tensor, tau: float) -> None:
        self.average = average
        self.one_minus_tau: float | torch.Tensor = 1 - tau  # In float64, whatever the format of the average.
        self.tau: float | torch.Tensor = tau

    @torch.no_grad()
    @in_role(Role.AVERAGES)
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``; NaN and infinity spread into it."""
        self.average.mul_(self.one_minus_tau).add_(source * self.tau)

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: there is no state besides the average."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores nothing: there is no state besides the average."""


@final
class StoredEMA(TraceableAverage):
    """The plain average, kept in a separate format: average <- average + tau (source - average), rounded once.

    In eight bits rounding to nearest would stop it. With stochastic rounding its expectation follows the source; with
    a compensation later steps correct the rounding errors of earlier ones.

    Args:
        average: the average; float32 or float64; changed in place, and rounded at once to its format.
        tau: the step, in (0, 1].
        keep: rounds the average to its format.
        keep_compensation: rounds the compensation to its format; None: the average is not compensated.
    """

    kept_in = ("average", "tau", "compensation")

    def __init__(self, average: torch.Tensor, tau: float, keep: Kept, keep_compensation: Kept | None = None) -> None:
        self.average = average
        self.tau: float | torch.Tensor = tau
        self._keep, self._keep_compensation = keep, keep_compensation
        copy_(average, keep(average))  # Without the rounding of a simulation.
        self.compensation = None if keep_compensation is None else torch.zeros_like(average)

    @torch.no_grad()
    @in_role(Role.AVERAGES)
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``; NaN and infinity spread into it."""
        step = self._step(source)
        new_average = self._keep(_add(self.average, step))  # The only rounding of the average.
        if self.compensation is not None and self._keep_compensation is not None:
            error = _rounding_error(self.average, step, new_average)
            copy_(self.compensation, self._keep_compensation(error))
        copy_(self.average, new_average)

    @unsimulated
    def _step(self, source: torch.Tensor) -> torch.Tensor:
        step = (source - self.average) * self.tau
        return step if self.compensation is None else step - self.compensation  # Kahan's y = values - c.

    def state_dict(self) -> dict[str, Any]:
        """Returns the compensation, if there is one."""
        return {} if self.compensation is None else {"compensation": self.compensation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        if self.compensation is not None:
            self.compensation.copy_(state["compensation"])


@final
class KahanEMA(TraceableAverage):
    """The average times C in a buffer that accumulates the steps by Kahan summation.

    buffer <-(Kahan)- buffer + tau (C source - buffer), and average = buffer / C, rounded. The scale C prevents
    underflow of the steps, the compensation prevents their absorption. If C source comes near the largest number
    (C = 1e4 in e5m10: sources above 6.55), C and the buffers are halved, which is exact.

    Args:
        average: the average, with its initial value; any floating-point type; changed in place.
        tau: the step, in (0, 1].
        scale: C >= 1, finite.
        largest: the largest finite number of the format.
        stochastic: whether the step, with the earlier rounding error, is computed as one operation and rounded once,
            stochastically. Kahan's sum has about 2 m + 2 bits: otherwise, an average with tau = 0.01 in three
            significand bits always lags by a fifth of itself. See ``stochastic_kahan_add_``, also for the random bits.

    Raises:
        RunError: an argument is out of range.

    Source:
        Low-precision SAC, Section 3, Kahan-momentum.
    """

    kept_in = ("average", "minus_tau", "buffer", "compensation", "_scale", "largest", "_halvings")

    def __init__(
        self,
        average: torch.Tensor,
        tau: float,
        *,
        scale: float = 1e4,
        largest: float = math.inf,
        stochastic: bool = False,
    ) -> None:
        if not (0 < tau <= 1 and 1 <= scale < math.inf and largest > 0):
            raise RunError(
                f"KahanEMA needs 0 < tau <= 1, a finite scale >= 1 and largest > 0; got {tau=}, {scale=}, {largest=}"
            )
        self.average = average
        self.minus_tau: float | torch.Tensor = -tau  # The factor of buffer - C source.
        self.largest = number_tensor(largest, average.device)
        self._stochastic = stochastic
        self._scale = number_tensor(float(scale), average.device)
        # All factors by which C can shrink, down to about 1: a choice among them needs no loop, and can be traced.
        self._halvings = number_tensor([2.0**-k for k in range(math.ceil(math.log2(scale)) + 1)], average.device)
        self._make_room(average)
        self.buffer = torch.mul(average.detach(), self.scale)  # C times the average.
        self.compensation = torch.zeros_like(self.buffer)

    @property
    def scale(self) -> float:
        """C; waits for the device."""
        return float(self._scale)

    @torch.no_grad()
    @in_role(Role.AVERAGES)
    def update_(self, source: torch.Tensor) -> None:
        """Moves the average towards ``source``; NaN and infinity spread into it."""
        factor, scale = self._make_room(source)
        # Also by 1, so that every update has the same operations and draws the same number of random bits.
        multiply_(self.buffer, factor)
        multiply_(self.compensation, factor)
        if self._stochastic:
            step = step_towards(self.buffer, self.compensation, source, scale, self.minus_tau)
            add_compensated_(self.buffer, self.compensation, step)
        else:
            change = subtract_product(self.buffer, source, scale).mul_(self.minus_tau)
            kahan_add_(self.buffer, self.compensation, change)
        with_number(torch.div, self.buffer, scale, out=self.average)  # For the network; sums use only the buffer.

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale C, the buffer and its compensation."""
        return {"scale": self.scale, "buffer": self.buffer, "compensation": self.compensation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._scale.fill_(state["scale"])
        self.buffer.copy_(state["buffer"])
        self.compensation.copy_(state["compensation"])

    @unsimulated
    def _make_room(self, source: torch.Tensor) -> tuple[Any, Any]:
        """Halves C until C |source| has a factor of 2 to spare; returns the factor of the change, and C.

        The buffer moves between itself and C * source at every step, so it cannot overflow if that cannot. The factor
        of 2 is for the compensation and the rounding of sums.
        """
        largest_source, dtype = magnitude(source), source.dtype
        scales = self._scale * self._halvings
        # A source that is not finite changes nothing; the first factor that fits is the largest.
        fits = (scales <= 1) | ~(2 * scales * largest_source > self.largest) | ~largest_source.isfinite()
        factor = self._halvings.gather(0, fits.to(torch.int64).argmax().view(1)).view(())
        self._scale.mul_(factor)
        return number_or_tensor(factor, dtype), number_or_tensor(self._scale, dtype)
