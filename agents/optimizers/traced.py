"""An agent's optimizers and averages as a traced program has them: what the eager ones decide, as numbers in tensors.

A traced program has no branches. Where the eager parts skip a step or change a scale, these compute both outcomes and
choose, which needs no number from the device. They are the eager parts but for that, and change the same memory.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any, final

import torch

from ...simulate import Simulation
from ...simulate.dispatch.simulation import is_exact
from .adam import StepNumbers
from .compound_loss_scaling import HEADROOM, CompoundLossScaler
from .dynamic_loss_scale import SMALLEST_SCALE
from .kahan_momentum import KahanEMA, PlainEMA

if TYPE_CHECKING:
    from torch import Tensor

    from .adam import AdamBase
    from .network_optimizer import NetworkOptimizer

LONGEST_TABLE = 400_000
"""Tables of this length take a second to make for each of an agent's three optimizers; 0.9999 needs less."""

_aten = torch.ops.aten
_exactly = Simulation("fp32")
"""Inside a simulation: what is computed here is not rounded."""


def _element(vector: Tensor, index: Tensor) -> Tensor:
    """``vector[index]`` without reading the index from the device."""
    return vector.gather(0, index.view(1)).view(())


def filled_like(x: Tensor, value: float | Tensor) -> Tensor:
    """A tensor like ``x``, every element ``value``, which in a traced program is a tensor itself."""
    return value.expand(x.shape).clone() if isinstance(value, torch.Tensor) else torch.full_like(x, value)


def add_product(x: Tensor, a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """``x + factor * a * b``, as one operation; in a traced program the factor is a tensor itself."""
    if not isinstance(factor, torch.Tensor):
        return torch.addcmul(x, a, b, value=factor)
    if is_exact(_aten._foreach_addcmul.Tensor):  # noqa: SLF001  which takes its factors in a tensor
        return torch._foreach_addcmul([x], [a], [b], factor.view(1))[0]  # noqa: SLF001  it has no other name
    with _exactly:  # as the kernel multiplies first
        scaled = a * factor
    return torch.addcmul(x, scaled, b)


@final
class OptimizerState:
    """What one ``NetworkOptimizer`` keeps, as tensors that a traced step changes.

    Args:
        optimizer: the eager one; its buffers are made if it has not stepped yet.
    """

    def __init__(self, optimizer: NetworkOptimizer) -> None:
        adam, scaler, p = optimizer.optimizer, optimizer.scaler, optimizer.parameters
        (group,) = adam.param_groups
        self._optimizer = optimizer
        state = adam.state_of(p, kahan=group["kahan"])
        exact: dict[str, Any] = {"dtype": torch.float64, "device": p.device}
        self.tensors: dict[str, Tensor] = {
            "parameters": p,
            **{name: value for name, value in state.items() if isinstance(value, torch.Tensor)},
            "steps": torch.tensor(state["step"], dtype=torch.int64, device=p.device),
            "scale": torch.tensor(scaler.scale if scaler else 1.0, **exact),
            "finite_steps": torch.tensor(scaler.finite_steps if scaler else 0, dtype=torch.int64, device=p.device),
            "largest": torch.tensor(scaler.largest if scaler else math.inf, **exact),
            "eps_floor": torch.tensor(group["eps_floor"], **exact),
            **_tables(adam, p.device),
        }

    def write_back(self) -> None:
        """Tells the eager optimizer what the traced steps have changed beside its buffers; waits for the device."""
        adam, scaler = self._optimizer.optimizer, self._optimizer.scaler
        adam.state[self._optimizer.parameters]["step"] = int(self.tensors["steps"])
        if scaler:
            scaler.scale = float(self.tensors["scale"])
            scaler.finite_steps = int(self.tensors["finite_steps"])
            for group in (*adam.param_groups, adam.defaults):
                group["loss_scale"] = scaler.scale


def steps_until_constant(beta: float) -> int:
    """After how many steps ``1 - beta**step`` is 1 in float64: how long a table of it is."""
    return max(2, math.ceil(math.log(2.0**-54) / math.log(beta))) if beta else 2


def _tables(adam: AdamBase, device: torch.device) -> dict[str, Tensor]:
    """Divisors and rates of steps 1, 2, ..., up to where they no longer change, as the eager optimizer has them."""
    (group,) = adam.param_groups
    count = max(steps_until_constant(beta) for beta in group["betas"])
    numbers = [adam.numbers(group, step) for step in range(1, count + 1)]
    return {
        name: torch.tensor([getattr(number, name) for number in numbers], dtype=torch.float64, device=device)
        for name in ("divisor", "rate")
    }


@final
class TracedOptimizer:
    """``NetworkOptimizer`` in a traced program, for one flat parameter tensor.

    Args:
        optimizer: the eager one, for its constants.
        tensors: of its :class:`OptimizerState`, or what stands for them.
    """

    def __init__(self, optimizer: NetworkOptimizer, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._scaler = optimizer.scaler
        self._adam = copy(optimizer.optimizer)
        # These take numbers in lists, which a tensor is not.
        self._adam.add_eps = _add_eps  # type: ignore[method-assign]
        self._adam.add_quotients = _add_quotients  # type: ignore[method-assign,assignment]
        self.parameters = self.flat = tensors["parameters"]

    @property
    def scale(self) -> Tensor:
        """By what gradients must be multiplied."""
        with _exactly:
            return self._tensors["scale"].to(self.parameters.dtype)

    def mean_weight(self, factor: float, count: int) -> Tensor:
        """The derivative of ``scale * factor * mean`` by each of ``count`` numbers."""
        with _exactly:
            return (factor * self._tensors["scale"] / count).to(self.parameters.dtype)

    @torch.no_grad()
    def step(self) -> None:
        """Updates the parameters, or leaves everything where gradients are not finite."""
        (group,) = self._adam.param_groups
        p, t = self.parameters, self._tensors
        gradient = p.grad
        assert gradient is not None
        finite = self._is_finite(gradient)
        names = [name for name in ("moment", "second", "compensation") if name in t]
        with _exactly:
            moved: dict[str, Any] = {name: t[name].clone() for name in names}
            new_p = p.clone()
            index = t["steps"].clamp(max=len(t["rate"]) - 1)
            eps = torch.maximum(t["scale"] * group["eps"], t["eps_floor"])
            exact = (_element(t["divisor"], index), eps, _element(t["rate"], index))
            numbers = StepNumbers(*(x.to(p.dtype) for x in exact))
        self._adam.move(group, [new_p], [gradient], [moved], [numbers])
        with _exactly:
            t["steps"].add_(finite)
            p.copy_(torch.where(finite, new_p, p))
            for name in names:
                t[name].copy_(torch.where(finite, moved[name], t[name]))
        if self._scaler is not None:
            self._rescale(finite)

    def _is_finite(self, gradient: Tensor) -> Tensor:
        """Whether the step is taken; the operations that are rounded are those of the eager test."""
        if self._scaler is None:
            return torch.full((), True, dtype=torch.bool, device=gradient.device)
        low, high = torch.aminmax(gradient)
        with _exactly:
            return (low.abs() < self._tensors["largest"]) & (high.abs() < self._tensors["largest"])

    def _rescale(self, finite: Tensor) -> None:
        """Halves the scale after a step that was skipped, doubles it when it is time and there is room."""
        t, scaler, p = self._tensors, self._scaler, self.parameters
        assert isinstance(scaler, CompoundLossScaler)
        with _exactly:
            grown = t["finite_steps"] + 1
            due = finite & (grown >= scaler.growth_interval)
            may_halve = ~finite & (t["scale"] > SMALLEST_SCALE)
            may_double = due & self._has_room()
            factor = torch.where(may_halve, 0.5, torch.where(may_double, 2.0, 1.0)).to(torch.float64)
            t["finite_steps"].copy_(torch.where(finite & ~due, grown, 0))
            t["scale"].mul_(factor)
            of_second: Any = self._adam.second_factor(factor)  # type: ignore[arg-type]
            factors = [x.to(p.dtype) for x in (factor, of_second)]
        t["moment"].mul_(factors[0])
        t["second"].mul_(factors[1])

    def _has_room(self) -> Tensor:
        """``CompoundLossScaler._may_double``, without its branches."""
        t = self._tensors
        limit = t["largest"] / HEADROOM
        fits = torch.full((), True, dtype=torch.bool, device=limit.device)
        for buffer, factor in ((t["moment"], 2.0), (t["second"], self._adam.second_factor(2.0))):
            fits = fits & (buffer.abs().amax() <= limit / factor)
        return fits


def _add_eps(denominators: list[Tensor], eps: Tensor) -> None:
    for denominator in denominators:
        denominator.add_(eps)


def _add_quotients(
    params: list[Tensor], moments: list[Tensor], denominators: list[Tensor], rates: list[Tensor]
) -> None:
    """As ``AdamBase.add_quotients``, which takes numbers: the sum is computed by kernels and rounded by the copy."""
    if is_exact(_aten._foreach_addcdiv_.Tensor):
        with _exactly:
            factors = torch.stack(rates)
        torch._foreach_addcdiv_(params, moments, denominators, factors)
        return
    for p, moment, denominator, rate in zip(params, moments, denominators, rates, strict=True):
        with _exactly:
            total = p + moment * rate / denominator
        p.copy_(total)


@final
class TracedKahanEMA(KahanEMA):
    """:class:`~roundoff.agents.optimizers.kahan_momentum.KahanEMA` with its scale in a tensor.

    Args:
        eager: for its constants.
        tensors: of :func:`average_state`, or what stands for them.
    """

    def __init__(self, eager: KahanEMA, tensors: dict[str, Tensor]) -> None:
        self.__dict__.update(eager.__dict__)
        self.average, self.buffer, self.compensation = (tensors[x] for x in ("average", "buffer", "compensation"))
        self.minus_tau = tensors["minus_tau"]
        self._tensors = tensors

    def _make_room(self, source: Tensor) -> Any:
        t = self._tensors
        low, high = torch.aminmax(source)
        with _exactly:
            magnitude = torch.maximum(-low, high).to(torch.float64)
            scales = t["scale"] * t["halvings"]
            fits = (scales <= 1) | ~(2 * scales * magnitude > t["largest"]) | ~magnitude.isfinite()
            factor = _element(t["halvings"], fits.to(torch.int64).argmax())
            t["scale"].mul_(factor)
            self.scale: Any = t["scale"].to(source.dtype)
            return factor.to(source.dtype)

    def _difference(self, source: Tensor) -> Tensor:
        with _exactly:
            factor = -self.scale
        return torch.addcmul(self.buffer, source, factor)  # which is what torch.sub with alpha computes


def average_state(average: KahanEMA | PlainEMA) -> dict[str, Tensor]:
    """What an average keeps, as tensors that a traced update changes, and its factors."""
    if isinstance(average, PlainEMA):
        factors = {name: average.average.new_tensor(getattr(average, name)) for name in ("kept", "taken")}
        return {"average": average.average, **factors}
    exact: dict[str, Any] = {"dtype": torch.float64, "device": average.average.device}
    halvings = math.ceil(math.log2(average.largest_scale))
    return {
        "average": average.average,
        "minus_tau": average.average.new_tensor(average.minus_tau),
        "buffer": average.buffer,
        "compensation": average.compensation,
        "scale": torch.tensor(average.scale, **exact),
        "largest": torch.tensor(average.largest, **exact),
        "halvings": torch.tensor([2.0**-k for k in range(halvings + 1)], **exact),
    }


def traced_average(eager: KahanEMA | PlainEMA, tensors: dict[str, Tensor]) -> KahanEMA | PlainEMA:
    """An average with its numbers in tensors, those of :func:`average_state`."""
    if isinstance(eager, KahanEMA):
        return TracedKahanEMA(eager, tensors)
    average = copy(eager)
    average.average, average.kept, average.taken = (tensors[name] for name in ("average", "kept", "taken"))
    return average
