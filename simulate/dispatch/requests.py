"""Requests of a program to the active simulation: store a tensor, describe the rounding of results, or pause."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, final, overload

import torch
from torch._ops import OpOverload
from torch.compiler import is_compiling

from ...formats import Format, Rounding, round
from ...formats.families.floats import FP32
from ..presence.decorating import decorated
from ..presence.entering import innermost, simulations_off
from .simulation import Simulation, at_work, unrounded


def is_exact(operation: OpOverload) -> bool:
    """Whether the simulation that the caller runs in rounds the exact results of an operation: once, and as one."""
    simulation = at_work()
    if simulation is None:
        return False
    place = simulation.places.here() if simulation.places else ("", "")
    plan = simulation._runner.plan(operation, *place)  # noqa: SLF001  of this folder
    return plan.exact and plan.decomposition is None


def store(x: torch.Tensor, format: Format | str, rounding: Rounding | str = Rounding.NEAREST_EVEN) -> torch.Tensor:
    """Rounds ``x`` to a format other than the current arithmetic's, as when it is written to memory in that format.

    Inside a simulation, and in steps that are compiled with it, stochastic rounding draws the simulation's random bits.

    Args:
        x: float32 or float64, any shape.
        format: any that ``roundoff.round`` takes; it determines the treatment of NaN, infinities and overflow.
        rounding: how ``x`` is rounded.

    Returns:
        A new tensor like ``x``, without a gradient.

    Raises:
        FormatError: ``x`` cannot hold values of the format; the format or mode does not exist; or rounding
            is stochastic, outside of any simulation.
    """
    format, rounding = Format.parse(format), Rounding.parse(rounding)
    simulation = at_work() or innermost()  # an outer simulation in fp32 is on no stack
    with simulations_off(), torch.no_grad():
        if not isinstance(simulation, Simulation):
            return round(x, format, rounding=rounding)
        rounded = simulation._runner.results.stored(x, format, rounding)  # noqa: SLF001  of this folder
        for watcher in simulation.watchers:
            watcher.stored(rounded, format)
        return rounded


def result_format(operation: str) -> Format | None:
    """Returns the format that results of an operation are rounded to at the place of the caller.

    Args:
        operation: name of an ATen operation without overload, such as ``add``, as in rules of policies.

    Returns:
        The format; None outside of simulations, in :func:`exact`, and where the policy leaves results in the carrier.
    """
    simulation = at_work()
    if simulation is None:
        return None
    role, module = simulation.places.here() if simulation.places else ("", "")
    fmt = simulation.policy.arithmetic(operation, module, role)[0].format
    return None if fmt == FP32 else fmt


_F = TypeVar("_F", bound="Callable[..., Any]")


@final
class ExactBlock:
    """The context manager and decorator that :func:`exact` returns; it can be entered any number of times."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None

    def __repr__(self) -> str:
        return "exact()"

    def __enter__(self) -> None:
        """Pauses the simulations of this thread."""
        if is_compiling():  # torch.compile compiles only outside of simulations
            return
        if self._simulation is None:
            self._simulation = unrounded()
        self._simulation.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Resumes the simulations, also when an exception leaves the block."""
        if self._simulation is not None and not is_compiling():
            self._simulation.__exit__(kind, error, traceback)

    def __call__(self, function: _F) -> _F:
        """Wraps ``function`` so that each call is such a block.

        Raises:
            FormatError: it is a class, or an asynchronous generator.
        """
        return decorated(function, ExactBlock, "roundoff.exact()")


@overload
def exact() -> ExactBlock: ...
@overload
def exact(function: _F) -> _F: ...
def exact(function: _F | None = None) -> ExactBlock | _F:
    """Pauses simulations for code that must not be rounded: metrics, data loading, evaluation.

    ``with roundoff.exact(): accuracy = (net(x).argmax(-1) == labels).float().mean()`` computes as without a simulation,
    bit for bit, and returns tensors that need not hold values of the format, until an operation outside of the block
    rounds its results from them (also copies). ``@roundoff.exact()`` (or ``@roundoff.exact``) makes such a block
    of each call of a function, method, generator or coroutine. Where nothing is simulated it does nothing.

    - It is ``with simulate("fp32")``: observers and shadows of simulations around it see nothing of it, rules about
      optimizers do not round the values that an optimizer stores in it, and no random bits are drawn. A simulation
      that is entered inside of the block simulates again.
    - It holds for the thread that enters it. A generator or coroutine that is suspended in the block does
      not affect the arithmetic of its caller.
    - The backward pass is rounded where ``backward`` is called, not where the forward operations ran: through results
      of the block it is rounded if called outside, and exact if called inside.
    - In a step of :func:`roundoff.compile`, the results of the block are not rounded either. A compiled step that is
      called inside of a block runs in its own simulation.
    - Values that were rounded before do not come back: a loss from outside of the block stays rounded.

    Args:
        function: to decorate; None for a ``with`` block.

    Returns:
        A context manager, which may be entered again, and is also a decorator; or the decorated function.

    Raises:
        FormatError: the decorated object is not a function, or is an asynchronous generator.
    """
    return ExactBlock() if function is None else ExactBlock()(function)
