"""Adam as usually written (naive in low precision), and what it shares with hAdam."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

# The list versions of the in-place operations, one kernel launch for all parameters.
from torch import _foreach_add_, _foreach_addcdiv_, _foreach_addcmul_, _foreach_mul_

from ..errors import RunError
from .kahan_gradients import kahan_add_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor


class StepNumbers(NamedTuple):
    """What a step needs to know of its number and the loss scale; tensors where a program is traced."""

    divisor: float | Tensor
    """What the second moment is divided by, to free it of its bias."""
    eps: float | Tensor
    """Added to the denominator."""
    rate: float | Tensor
    """Minus the learning rate, over the bias of the first moment."""


class AdamBase(torch.optim.Optimizer, ABC):
    """The part common to :class:`Adam` and ``HAdam``: first moment, bias corrections, the step.

    theta <- theta - lr * m_hat / (d + gamma * eps), with m <- b1 m + (1 - b1) g, m_hat = m / (1 - b1^t), and the
    denominator d an estimate of the root mean square of g, which the subclass keeps. gamma is the loss scale: if the
    gradients come multiplied by gamma, so are m and d, the quotient is the same, and nothing needs to be unscaled.

    Args:
        params: tensors, or groups of them as for every ``torch.optim`` optimizer.
        lr: learning rate.
        betas: decay b1 of the first and b2 of the second moment, each in [0, 1).
        eps: added to the denominator.
        kahan: whether parameters are updated by compensated summation (Kahan-gradients).
        loss_scale: gamma, by which the gradients given are multiplied.
        eps_floor: smallest gamma * eps; give the smallest positive number of the format, below which
            gamma * eps would round to 0, and 0 / 0 would be NaN where all gradients were 0.

    Raises:
        RunError: an argument is out of range; in :meth:`step`, a gradient is sparse.
    """

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
    ) -> None:
        if not (lr > 0 and all(0 <= beta < 1 for beta in betas) and eps >= 0 and eps_floor >= 0 and loss_scale > 0):
            raise RunError(
                f"{type(self).__name__} needs lr > 0, betas in [0, 1), eps >= 0, eps_floor >= 0 and loss_scale > 0;"
                f" got {lr=}, {betas=}, {eps=}, {eps_floor=}, {loss_scale=}"
            )
        options = {
            "lr": lr, "betas": betas, "eps": eps, "kahan": kahan, "loss_scale": loss_scale, "eps_floor": eps_floor,
        }  # fmt: skip
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates every parameter that has a gradient.

        Gradients that are not finite make the parameters NaN; ``CompoundLossScaler`` skips such steps.

        Args:
            closure: computes the loss again, and its gradients, before the step.

        Returns:
            What ``closure`` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    @torch.no_grad()
    def rescale_(self, factor: float) -> None:
        """Changes the loss scale by ``factor`` and with it the buffers, so that the next step is the same as before.

        m <- factor m, and the second moment by factor (hAdam's w) or factor^2 (Adam's v). By a power of two this is
        exact unless a buffer overflows or becomes subnormal.

        Args:
            factor: > 0.
        """
        for group in (*self.param_groups, self.defaults):  # the latter are for groups that are added later
            group["loss_scale"] *= factor
        moments, seconds = self._buffers()
        if moments:
            _foreach_mul_(moments, factor)
            _foreach_mul_(seconds, self.second_factor(factor))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what ``state_dict`` returned; groups added later have the loss scale of the first one there."""
        super().load_state_dict(state_dict)
        self.defaults["loss_scale"] = self.param_groups[0]["loss_scale"]

    def can_rescale(self, factor: float, largest: float) -> bool:
        """Whether every buffer stays within ``largest`` when :meth:`rescale_` is called with ``factor``."""
        moments, seconds = self._buffers()
        limits = [largest / factor] * len(moments) + [largest / self.second_factor(factor)] * len(seconds)
        for buffer, limit in zip(moments + seconds, limits, strict=True):
            if not buffer.numel():
                continue
            low, high = torch.aminmax(buffer)
            if not max(-low.item(), high.item()) <= limit:  # NaN is not
                return False
        return True

    @abstractmethod
    def _update_second(self, seconds: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        """Updates the second moments by one step."""

    @abstractmethod
    def _divisor(self, correction: float) -> float:
        """What frees the second moment of its bias when it is divided by it; ``correction`` is 1 - b2^t."""

    @abstractmethod
    def _denominators(self, seconds: list[Tensor], divisors: Sequence[float | Tensor]) -> list[Tensor]:
        """The root mean squares, without their bias: new tensors."""

    @abstractmethod
    def second_factor(self, factor: float) -> float:
        """By what the second moment is multiplied when gradients are multiplied by ``factor``."""

    def _buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        states = [state for state in self.state.values() if state]
        return [state["moment"] for state in states], [state["second"] for state in states]

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        gradients = [p.grad for p in params]
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise RunError(f"{type(self).__name__} takes dense gradients, got a sparse one; use sparse=False there")
        states = [self.state_of(p, kahan=group["kahan"]) for p in params]
        for state in states:
            state["step"] += 1
        self.move(group, params, gradients, states, [self.numbers(group, state["step"]) for state in states])

    def numbers(self, group: dict[str, Any], step: int) -> StepNumbers:
        """The numbers of the step with this number, 1 or more, computed exactly: 1 - 0.999 is 0 in eight bits."""
        beta1, beta2 = group["betas"]
        return StepNumbers(
            self._divisor(1 - beta2**step),
            max(group["loss_scale"] * group["eps"], group["eps_floor"]),
            -group["lr"] / (1 - beta1**step),
        )

    def move(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        gradients: list[Tensor],
        states: list[dict[str, Any]],
        numbers: Sequence[StepNumbers],
    ) -> None:
        """Updates buffers and parameters."""
        beta1, beta2 = group["betas"]
        moments = [state["moment"] for state in states]
        seconds = [state["second"] for state in states]
        _foreach_mul_(moments, beta1)
        _foreach_add_(moments, gradients, alpha=1 - beta1)
        self._update_second(seconds, gradients, beta2)
        denominators = self._denominators(seconds, [number.divisor for number in numbers])
        self.add_eps(denominators, numbers[0].eps)
        if group["kahan"]:
            for p, state, denominator, number in zip(params, states, denominators, numbers, strict=True):
                # The quotient is of the order of 1; lr * m first could underflow.
                change = torch.div(state["moment"], denominator, out=denominator).mul_(number.rate)
                kahan_add_(p, state["compensation"], change)
        else:
            self.add_quotients(params, moments, denominators, [number.rate for number in numbers])

    def add_eps(self, denominators: list[Tensor], eps: Any) -> None:
        """D <- d + eps, which is the same for all."""
        _foreach_add_(denominators, eps)

    def add_quotients(
        self, params: list[Tensor], moments: list[Tensor], denominators: list[Tensor], rates: Sequence[Any]
    ) -> None:
        """P <- p + rate m / d, as one operation."""
        _foreach_addcdiv_(params, moments, denominators, rates)

    def state_of(self, p: Tensor, *, kahan: bool) -> dict[str, Any]:
        """The buffers of a parameter, and how many steps it has made; zeros before the first."""
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = 0
            for name in ("moment", "second", "compensation") if kahan else ("moment", "second"):
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


@final
class Adam(AdamBase):
    """Adam by the book: v <- b2 v + (1 - b2) g^2, and d = sqrt(v / (1 - b2^t)).

    In low precision v underflows: in e5m10 v is 0 wherever |g| < 5e-3, and eps = 1e-8 is 0 too, so that the step
    is infinite, or NaN where g is 0. See :class:`AdamBase` for the arguments, and ``HAdam`` for the remedy.

    Source:
        Kingma & Ba, "Adam", Algorithm 1.
    """

    def _update_second(self, seconds: list[Tensor], gradients: list[Tensor], beta2: float) -> None:
        _foreach_mul_(seconds, beta2)
        _foreach_addcmul_(seconds, gradients, gradients, 1 - beta2)

    def _divisor(self, correction: float) -> float:
        return correction

    def _denominators(self, seconds: list[Tensor], divisors: Sequence[float | Tensor]) -> list[Tensor]:
        return [torch.div(v, divisor).sqrt_() for v, divisor in zip(seconds, divisors, strict=True)]

    def second_factor(self, factor: float) -> float:
        """The square: v is one."""
        return factor * factor
