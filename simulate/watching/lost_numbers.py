"""Finds out whether a program failed because of NaN: in its weights, or in the variables of the code that raised.

A program with NaN may raise at once, or call ``sys.exit``, or fail later on the effects of NaN. The same rule
distinguishes such failures from others for users' programs, algorithms of libraries, and agents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self, final
from weakref import WeakMethod, ref

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from roundoff.errors import RoundoffError

from .last_read import LastRead

OutOfMemory = (MemoryError, torch.OutOfMemoryError)
OTHER_REASONS = (RoundoffError, *OutOfMemory)
"""Errors raised for other reasons, whatever the numbers."""


@final
class SteppedOptimizers:
    """PyTorch optimizers that make a step within the block: existing ones, and the last ones that were freed.

    A function's optimizers are freed when it returns. Their parameters are kept until another optimizer makes a step.
    """

    def __init__(self) -> None:
        self._groups: dict[ref[torch.optim.Optimizer], tuple[str, list[dict[str, Any]]]] = {}
        self._ended: list[tuple[str, list[dict[str, Any]]]] = []
        self._hook: RemovableHandle | None = None
        weak_end = WeakMethod(self._end)  # a callback must not keep the parameters
        self._on_end = lambda optimizer: (end := weak_end()) and end(optimizer)

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._note)
        return self

    def _note(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        self._groups[ref(optimizer, self._on_end)] = type(optimizer).__name__, optimizer.param_groups
        self._ended.clear()

    def _end(self, optimizer: ref[torch.optim.Optimizer]) -> None:
        self._ended.append(self._groups.pop(optimizer))

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.remove()

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the parameters by names such as ``0 of Adam, of shape (3, 4)``; ``Adam 2`` is the second optimizer.

        Frozen parameters, which no step changes, are left out.
        """
        return {
            f"{i} of {name}{f' {number}' if number > 1 else ''}, of shape {tuple(x.shape)}": x
            for number, (name, groups) in enumerate((*self._ended, *self._groups.values()), 1)
            for i, x in enumerate(x for group in groups for x in group["params"])
            if not is_lazy(x) and (x.requires_grad or x.grad is not None)  # a mask may hold infinities
        }


def damaged_weight(weights: Mapping[str, torch.Tensor]) -> str | None:
    """Returns the name of the first tensor that holds NaN or infinity; None if all values are finite or unreadable."""
    for name, tensor in weights.items():
        with suppress(RuntimeError):  # a tensor on the meta device has no values
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach()).all()):
                return name
    return None


def left_behind(last_read: LastRead, stepped: SteppedOptimizers) -> str:
    """Describes the non-finite value at the end of a program that completed: the last one read, or a weight.

    Returns:
        An empty text if all is finite.
    """
    damaged = damaged_weight(stepped.weights())
    return str(last_read) or ("" if damaged is None else f"parameter {damaged}, is not finite")


def nan_among_locals(error: BaseException) -> str | None:
    """Returns the innermost variable that held NaN where ``error`` was raised, as ``logits in forward``; None if none.

    This distinguishes exceptions raised because of NaN from others, whatever their class. A module counts if a
    parameter of it is NaN, and an infinite scalar counts if it has a gradient function, as a loss does.
    """
    variable = None
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            variable = next(
                (f"{name} in {frame.f_code.co_name}" for name, x in frame.f_locals.items() if _contains_nan(x)),
                variable,
            )
            trace = trace.tb_next
        cause = cause.__cause__ or cause.__context__
    return variable


def lost_numbers(error: BaseException, weights: Mapping[str, torch.Tensor]) -> str | None:
    """Describes the non-finite value when ``error`` was raised: one of the weights, or a variable of the raising code.

    Returns:
        None without such a value, or if the error is of :data:`OTHER_REASONS`.
    """
    if isinstance(error, OTHER_REASONS):
        return None
    if damaged := damaged_weight(weights):
        return f"the weights {damaged} are not finite"
    variable = nan_among_locals(error)
    return None if variable is None else f"there was NaN in {variable}"


def _contains_nan(x: Any) -> bool:
    if isinstance(x, torch.nn.Module):
        return any(map(_contains_nan, x.parameters()))
    if isinstance(x, torch.Tensor):
        return x.is_floating_point() and _tensor_has_nan(x)
    if isinstance(x, np.ndarray):
        return bool(np.issubdtype(x.dtype, np.floating) and np.isnan(x).any())
    return isinstance(x, float) and math.isnan(x)


def _tensor_has_nan(x: torch.Tensor) -> bool:
    try:
        if x.numel() == 1 and x.grad_fn is not None:
            return not bool(torch.isfinite(x.detach()).all())
        return bool(torch.isnan(x.detach()).any())
    except RuntimeError:  # it has no values, or a dtype without comparisons
        return False
