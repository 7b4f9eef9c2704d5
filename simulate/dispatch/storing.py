"""Requests of a program to the active simulation: store a tensor, or describe the rounding of results."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from ...formats import Format, Rounding, round
from ...formats.families.floats import FP32
from ..presence.entering import innermost, unsimulated
from .simulation import Simulation, at_work


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
    simulation = at_work() or innermost()  # fp32 alone is not on the stack
    with unsimulated(), torch.no_grad():
        if not isinstance(simulation, Simulation):
            return round(x, format, rounding=rounding)
        kept = simulation._runner.results.stored(x, format, rounding)  # noqa: SLF001  of this folder
        for watcher in simulation.watchers:
            watcher.stored(kept, format)
        return kept


def result_format(operation: str) -> Format | None:
    """The rounding format for the results of an operation where the caller runs.

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
