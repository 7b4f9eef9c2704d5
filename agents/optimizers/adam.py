"""Adam by the usual formulas (naive in low precision), and the part that it shares with hAdam and RMSProp."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import lru_cache
from operator import truediv
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch

# In-place operations on lists of tensors: one kernel launch for all parameters.
from torch import Tensor, _foreach_add_, _foreach_addcmul_, _foreach_mul_

from ...formats import unsimulated
from ...simulate import Role, in_role
from ..errors import RunError
from .decisions import (
    add_number_,
    add_quotients_,
    choose_,
    copies,
    is_readable,
    known_true,
    magnitude,
    multiply_,
    number_or_tensor,
    number_tensor,
    with_number,
)
from .kahan_gradients import kahan_add_
from .stochastic_compensation import stochastic_kahan_add_
from .stochastic_moments import stochastic_mean_, stochastic_mean_square_

LONGEST_TABLE = 400_000
"""The largest length of a table of step numbers: it takes a second to compute; decays up to 0.9999 need less."""

_MOST_TABLES = 16  # In a cache.
_filled, _divide = unsimulated(torch.full), unsimulated(truediv)
_and_is_within = unsimulated(lambda magnitude, limit, others: others & (magnitude <= limit))  # False for NaN.


class StepNumbers(NamedTuple):
    """Coefficients of a step that depend on its number; tensors if the number cannot be read without waiting."""

    divisor: float | Tensor
    """Divisor that removes the bias of the second moment."""
    rate: float | Tensor
    """Minus the learning rate, over the bias of the first moment."""


def steps_until_constant(beta: float) -> int:
    """Returns the number of steps after which ``1 - beta**step`` is 1 in float64: the length of a table of it."""
    return max(2, math.ceil(math.log(2.0**-54) / math.log(beta))) if beta else 2


def _optimizer_method(name: str) -> Any:
    """Returns a method of ``torch.optim.Optimizer``, if possible without the wrapper that excludes it from compilation.

    The wrapper imports the compiler, which takes 1.3 s. As long as that is not imported, nothing is compiled, and the
    wrapper is not needed.
    """
    method = getattr(torch.optim.Optimizer, name)
    return method if "torch._dynamo" in sys.modules else getattr(method, "__wrapped__", method)


class AdamBase(torch.optim.Optimizer, ABC):
    """The part common to :class:`Adam`, ``HAdam`` and RMSProp: first moment, bias corrections, the step.

    theta <- theta - lr * m_hat / (d + gamma * eps), with m <- b1 m + (1 - b1) g, m_hat = m / (1 - b1^t), and the
    denominator d an estimate of the root mean square of g, which the subclass keeps. gamma is the loss scale: if the
    gradients come multiplied by gamma, so are m and d, the quotient is the same, and nothing needs to be unscaled.

    RMSProp has neither m nor bias corrections: theta <- theta - lr * g / (d + gamma * eps).

    Counts of steps (``state[p]["step"]``) and loss scales (``param_groups[i]["loss_scale"]``) are kept in tensors.

    Args:
        params: tensors, or groups of them as for every ``torch.optim`` optimizer.
        lr: learning rate.
        betas: decay b1 of the first and b2 of the second moment, each in [0, 1).
        eps: added to the denominator.
        kahan: whether parameters are updated by compensated summation (Kahan-gradients).
        loss_scale: gamma, the factor that the given gradients contain.
        eps_floor: smallest gamma * eps; give the smallest positive number of the format, below which
            gamma * eps would round to 0, and 0 / 0 would be NaN where all gradients were 0.
        anneal_over: the number of steps until the learning rate falls linearly to 0, the first one having ``lr``
            itself; None: it is constant. Steps that are skipped are not counted.
        keep: with ``kahan``, rounds new parameters for memory, to fewer bits than they are computed in; the rounding
            error is compensated. None: keeps all bits.
        stochastic: with ``kahan``, whether each step, with the earlier rounding error, is computed as one operation
            and rounded once, stochastically: see ``stochastic_kahan_add_``, also for the random bits.
        stochastic_moments: whether each moment is computed as one operation and rounded once, stochastically: see
            ``stochastic_mean_``.

    Raises:
        RunError: an argument is out of range, or is for compensated steps without ``kahan``; in :meth:`step`, a
            gradient is sparse.
    """

    averages_gradients: ClassVar[bool] = True
    """Whether there are a first moment and bias corrections; else steps use the gradients themselves."""
    keep: Callable[[Tensor], Tensor] | None = None  # A default: copies of an optimizer lack the attribute.

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        kahan: bool = False,
        loss_scale: float = 1.0,
        eps_floor: float = 0.0,
        anneal_over: int | None = None,
        keep: Callable[[Tensor], Tensor] | None = None,
        stochastic: bool = False,
        stochastic_moments: bool = False,
    ) -> None:
        if not (lr > 0 and all(0 <= beta < 1 for beta in betas) and eps >= 0 and eps_floor >= 0 and loss_scale > 0):
            raise RunError(
                f"{type(self).__name__} needs lr > 0, betas in [0, 1), eps >= 0, eps_floor >= 0 and loss_scale > 0;"
                f" got {lr=}, {betas=}, {eps=}, {eps_floor=}, {loss_scale=}"
            )
        options: dict[str, Any] = {
            "lr": lr, "betas": betas, "eps": eps, "kahan": kahan, "loss_scale": loss_scale, "eps_floor": eps_floor,
        }  # fmt: skip
        if anneal_over is not None:
            options["anneal_over"] = anneal_over
        if stochastic:
            options["stochastic"] = True
        if stochastic_moments:
            options["stochastic_moments"] = True
        super().__init__(params, options)
        self.keep = keep
        ignored = [name for name, value in (("keep", keep), ("stochastic", stochastic)) if value]
        if ignored and not any(group["kahan"] for group in self.param_groups):
            raise RunError(f"{ignored[0]} is for compensated steps: set kahan=True, or leave it out")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, as every ``torch.optim`` optimizer does."""
        _optimizer_method("add_param_group")(self, param_group)
        self._keep_scales()

    def _keep_scales(self) -> None:
        """Converts loss scales to tensors; groups with equal initial scales share one."""
        device = next((p.device for group in self.param_groups for p in group["params"]), torch.device("cpu"))
        scales: dict[float, Tensor] = {}
        for group in (*self.param_groups, self.defaults):  # The defaults are for groups that are added later.
            if not isinstance(group["loss_scale"], torch.Tensor):
                scale = float(group["loss_scale"])
                group["loss_scale"] = scales.setdefault(scale, number_tensor(scale, device))

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, *, where: Tensor | None = None
    ) -> float | None:
        """Updates every parameter that has a gradient.

        Gradients that are not finite make the parameters NaN; ``CompoundLossScaler`` skips such steps.

        Args:
            closure: computes the loss again, and its gradients, before the step.
            where: a boolean tensor without dimensions; if it is false, nothing changes.

        Returns:
            The result of ``closure``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group, where)
        return loss

    @torch.no_grad()
    @in_role(Role.OPTIMIZER)
    def rescale_(self, factor: float | Tensor) -> None:
        """Changes the loss scale by ``factor`` and with it the buffers, so that the next step is the same as before.

        m <- factor m, and the second moment by factor (hAdam's w) or factor^2 (Adam's v). By a power of two this is
        exact unless a buffer overflows or becomes subnormal.

        Args:
            factor: > 0.
        """
        second_factor = self._rescale_numbers(factor)
        for buffers, number in zip(self._buffers(), (factor, second_factor), strict=True):
            for buffer in buffers:
                buffer.mul_(number_or_tensor(number, buffer.dtype) if isinstance(number, torch.Tensor) else number)

    @unsimulated
    def _rescale_numbers(self, factor: Any) -> Any:
        """Changes the loss scales; returns the factor of second moments."""
        scales = {id(group["loss_scale"]): group["loss_scale"] for group in (*self.param_groups, self.defaults)}
        for scale in scales.values():
            scale.mul_(factor)
        return self.second_factor(factor)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as every ``torch.optim`` optimizer does, with step counts and scales as Python numbers."""
        saved: dict[str, Any] = _optimizer_method("state_dict")(self)
        saved["state"] = {
            p: {**state, "step": int(state["step"])} if state else state for p, state in saved["state"].items()
        }
        for group in saved["param_groups"]:
            group["loss_scale"] = float(group["loss_scale"])
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the result of ``state_dict``; groups added later have the loss scale of its first group."""
        _optimizer_method("load_state_dict")(self, state_dict)
        self.defaults["loss_scale"] = self.param_groups[0]["loss_scale"]
        self._keep_scales()
        for p, state in self.state.items():
            if state:
                state["step"] = number_tensor(int(state["step"]), p.device)

    def has_room(self, factor: float, largest: float | Tensor) -> Tensor:
        """Returns whether every buffer stays within ``largest`` when :meth:`rescale_` is called with ``factor``."""
        fits: Tensor = _filled((), True, device=self.defaults["loss_scale"].device)
        limits = _divide(largest, factor), _divide(largest, self.second_factor(factor))  # Of first and second moments.
        for buffers, limit in zip(self._buffers(), limits, strict=True):
            for buffer in buffers:
                fits = _and_is_within(magnitude(buffer), limit, fits)
                if is_readable(fits) and not known_true(fits):
                    return fits
        return fits

    @abstractmethod
    def _update_second(self, seconds: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        """Updates the second moments by one step."""

    @abstractmethod
    def _move_second(self, second: Tensor, gradient: Tensor, beta2: float) -> None:
        """Updates one second moment by one step, as one operation that is rounded stochastically."""

    @staticmethod
    @abstractmethod
    def _divisor(correction: float) -> float:
        """Returns the divisor that corrects the bias of the second moment; ``correction`` is 1 - b2^t."""

    @abstractmethod
    def _denominators(self, seconds: list[Tensor], divisors: Sequence[float | Tensor]) -> list[Tensor]:
        """Returns the root mean squares, with the bias corrected, as new tensors."""

    @abstractmethod
    def second_factor(self, factor: Any) -> Any:
        """Returns the factor of the second moment when gradients are multiplied by ``factor``."""

    def _buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        states = [state for state in self.state.values() if state]
        moments = [state["moment"] for state in states] if self.averages_gradients else []
        return moments, [state["second"] for state in states]

    def _step_group(self, group: dict[str, Any], where: Tensor | None) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        gradients = [p.grad for p in params]
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise RunError(f"{type(self).__name__} takes dense gradients, got a sparse one; use sparse=False there")
        states = [self.state_of(p, kahan=group["kahan"]) for p in params]
        numbers = [self._numbers(group, state["step"], p.dtype) for p, state in zip(params, states, strict=True)]
        eps = _eps(group, params[0].dtype)
        if where is None or known_true(where):
            self.move(group, params, gradients, states, numbers, eps)
            _add_steps([state["step"] for state in states], 1)
            return
        # Whether to step is known only on the device: updates copies, and copies them back if the condition is true.
        names = [name for name in states[0] if name != "step"]  # Counts are moved by the condition itself, below.
        tensors = params + [state[name] for state in states for name in names]
        moved = copies(tensors)
        moved_buffers = iter(moved[len(params) :])
        moved_states = [{name: next(moved_buffers) for name in names} for _ in states]
        self.move(group, moved[: len(params)], gradients, moved_states, numbers, eps)
        choose_(where, tensors, moved)
        _add_steps([state["step"] for state in states], where)

    @unsimulated
    def _numbers(self, group: dict[str, Any], steps: Tensor, dtype: torch.dtype) -> StepNumbers:
        """Returns the numbers of the step that follows ``steps`` steps."""
        step_count = number_or_tensor(steps, torch.int64)
        if isinstance(step_count, torch.Tensor) and self._steps_until_constant(group) > LONGEST_TABLE:
            step_count = int(step_count)  # Waits for the device; traced programs refuse such a config.
        if not isinstance(step_count, torch.Tensor):
            return self.numbers(group, step_count + 1)
        table = group["table"] if "table" in group else self._kept_table(group, steps.device)
        row = table.index_select(0, steps.clamp(max=len(table) - 1)).view(2)  # Later steps have the last row.
        return StepNumbers(*number_or_tensor(row, dtype).unbind())

    @classmethod
    def numbers(cls, group: dict[str, Any], step: int) -> StepNumbers:
        """Returns the numbers of step ``step`` >= 1, in Python's floats: 1 - 0.999 is 0 in eight bits."""
        lr, annealing_steps = group["lr"], group.get("anneal_over")
        if annealing_steps is not None:
            lr *= max(0.0, 1 - (step - 1) / annealing_steps)
        if not cls.averages_gradients:
            return StepNumbers(1.0, -lr)
        beta1, beta2 = group["betas"]
        return StepNumbers(cls._divisor(1 - beta2**step), -lr / (1 - beta1**step))

    @classmethod
    def _steps_until_constant(cls, group: dict[str, Any]) -> int:
        annealing_steps: int = group.get("anneal_over") or 0
        counts = [steps_until_constant(beta) for beta in group["betas"]] if cls.averages_gradients else []
        return max([annealing_steps + 1, *counts])

    def _kept_table(self, group: dict[str, Any], device: torch.device) -> Tensor:
        tables: dict[Any, Tensor] = self.__dict__.setdefault("_tables", {})  # Copies lack the attribute.
        key = (group["lr"], *group["betas"], group.get("anneal_over"), device)
        if key not in tables:
            if len(tables) == _MOST_TABLES:  # A scheduler changes the learning rate.
                tables.clear()
            tables[key] = self.table(group, device)
        return tables[key]

    def table(self, group: dict[str, Any], device: torch.device) -> Tensor:
        """Returns the numbers of steps 1, 2, ..., until they no longer change: (steps, 2)."""
        return number_tensor(self._rows(group["lr"], tuple(group["betas"]), group.get("anneal_over")), device)

    @classmethod
    @lru_cache(maxsize=_MOST_TABLES)  # The optimizers of an agent, and all agents of a process, mostly share one.
    def _rows(cls, lr: float, betas: tuple[float, ...], annealing: int | None) -> np.ndarray[Any, np.dtype[np.float64]]:
        group = {"lr": lr, "betas": betas} | ({} if annealing is None else {"anneal_over": annealing})
        return np.array([cls.numbers(group, step) for step in range(1, cls._steps_until_constant(group) + 1)])

    def move(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        gradients: list[Tensor],
        states: list[dict[str, Any]],
        numbers: Sequence[StepNumbers],
        eps: float | Tensor,
    ) -> None:
        """Updates buffers and parameters by one step."""
        beta1, beta2 = group["betas"]
        seconds = [state["second"] for state in states]
        moments = [state["moment"] for state in states] if self.averages_gradients else gradients
        # Moments.
        if group.get("stochastic_moments"):
            for first, second, gradient in zip(moments, seconds, gradients, strict=True):
                if self.averages_gradients:
                    stochastic_mean_(first, gradient, beta1)
                self._move_second(second, gradient, beta2)
        else:
            if self.averages_gradients:
                _foreach_mul_(moments, beta1)
                _foreach_add_(moments, gradients, alpha=1 - beta1)
            self._update_second(seconds, gradients, beta2)
        # The step: -rate * moment / (root + eps), added to the parameters.
        denominators = self._denominators(seconds, [number.divisor for number in numbers])
        add_number_(denominators, eps)
        if group["kahan"]:
            for p, state, moment, denominator, number in zip(
                params, states, moments, denominators, numbers, strict=True
            ):
                # The quotient is of the order of 1; lr * m first could underflow.
                change = torch.div(moment, denominator, out=denominator)
                if group.get("stochastic"):
                    stochastic_kahan_add_(p, state["compensation"], change, number.rate, self.keep)
                else:
                    kahan_add_(p, state["compensation"], multiply_(change, number.rate), self.keep)
        else:
            add_quotients_(params, moments, denominators, [number.rate for number in numbers])

    @torch.no_grad()
    def add_steps(
        self, moments: list[Tensor], seconds: list[Tensor], sums: list[Tensor], roots: list[Tensor], steps: int
    ) -> None:
        """Adds the effect of several steps to moments; see ``MultiStepAdam``.

        Args:
            moments: first moments, changed in place.
            seconds: second moments (of hAdam their roots), changed in place.
            sums: a_g of those steps, for each moment.
            roots: a_h of those steps, for each moment.
            steps: the number of those steps; 0 changes nothing.
        """
        if not steps:
            return
        beta1, beta2 = self.param_groups[0]["betas"]
        if steps > 1:  # Decay for all steps but the last, which follows.
            _foreach_mul_(moments, beta1 ** (steps - 1))
            _foreach_mul_(seconds, self.second_factor(math.sqrt(beta2) ** (steps - 1)))
        _foreach_mul_(moments, beta1)
        _foreach_add_(moments, sums, alpha=1 - beta1)
        self._update_second(seconds, roots, beta2)

    def bound_to(self, tensors: dict[str, Tensor]) -> Self:
        """Returns this optimizer, of one parameter, with its state in ``tensors``; see ``NetworkOptimizer.tensors``."""
        (group,) = self.param_groups
        bound, p = copy(self), tensors["parameters"]
        bound.keep = self.keep  # Copies lack the attribute.
        constants = {name: tensors[name] for name in ("loss_scale", "eps_floor", "table")}
        bound.param_groups = [{**group, "params": [p], **constants}]
        bound.defaults = {**self.defaults, "loss_scale": tensors["loss_scale"]}
        bound.state = defaultdict(dict, {p: {name: tensors[name] for name in self.state[group["params"][0]]}})
        return bound

    def state_of(self, p: Tensor, *, kahan: bool) -> dict[str, Any]:
        """Returns the buffers of a parameter and its number of steps; zeros before the first step."""
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = number_tensor(0, p.device)
            first_moments = ("moment",) if self.averages_gradients else ()
            for name in (*first_moments, "second", *(("compensation",) if kahan else ())):
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


@unsimulated
def _eps(group: dict[str, Any], dtype: torch.dtype) -> Any:
    """Returns the term that is added to denominators."""
    return number_or_tensor((group["loss_scale"] * group["eps"]).clamp(min=group["eps_floor"]), dtype)


@unsimulated
def _add_steps(steps: Sequence[Tensor], amount: int | Tensor) -> None:
    for step in steps:
        step.add_(amount)


class KeepingSquares(AdamBase):
    """Adam with the second moment of the gradients, v <- b2 v + (1 - b2) g^2; the denominator d is its root."""

    def _update_second(self, seconds: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        _foreach_mul_(seconds, beta2)
        _foreach_addcmul_(seconds, gradients, gradients, 1 - beta2)

    def _move_second(self, second: Tensor, gradient: Tensor, beta2: float) -> None:
        stochastic_mean_square_(second, gradient, beta2)

    @staticmethod
    def _divisor(correction: float) -> float:
        return correction

    def _denominators(self, seconds: list[Tensor], divisors: Sequence[float | Tensor]) -> list[Tensor]:
        return [with_number(torch.div, v, divisor).sqrt_() for v, divisor in zip(seconds, divisors, strict=True)]

    def second_factor(self, factor: Any) -> Any:
        """Returns the square, since v is a mean of squares."""
        return factor * factor


@final
class Adam(KeepingSquares):
    """Adam by the book: v <- b2 v + (1 - b2) g^2, and d = sqrt(v / (1 - b2^t)).

    In low precision v underflows: in e5m10 v is 0 wherever |g| < 5e-3, and eps = 1e-8 is also 0, so that the step
    is infinite, or NaN where g is 0. See :class:`AdamBase` for the arguments, and ``HAdam`` for the remedy.

    Source:
        Kingma & Ba, "Adam", Algorithm 1.
    """
