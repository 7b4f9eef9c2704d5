"""The optimizer of one network for a config: with any of the fixes, or as a baseline."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from ...formats import Format, round, unsimulated
from ...simulate import Watcher
from ..config.fixes import BASELINES, STOCHASTIC_MOMENTS, is_stochastic
from ..stored import Kept, coerce_
from .adam import Adam, AdamBase
from .compound_loss_scaling import CompoundLossScaler
from .decisions import copy_, number_or_tensor, number_tensor
from .dynamic_loss_scale import DynamicLossScale, LossScaler
from .hadam import HAdam
from .master_weights import MasterWeights
from .rmsprop import HRMSProp, RMSProp
from .scaled_norms import norm_over, norm_over_naive

if TYPE_CHECKING:
    from ..config.learning_keys import OptimizerKeys
    from ..config.storage import Storage
    from .step_norms import StepNorms

_CLIPPING_EPS = 1e-6  # From ``torch.nn.utils.clip_grad_norm_``.

# For each tensor of an optimizer, the key of ``storage`` with its format.
_STORED = {
    "gradients": "weight_gradients",
    "parameters": "weights",
    "moment": "first_moments",
    "second": "second_moments",
    "compensation": "compensations",
}

_SCALED = ("gradients", "moment", "second")
"""The tensors that contain the loss scale as a factor."""


class Together(Protocol):
    """The learners of a run that update the same parameters."""

    def mean_count(self, count: int) -> int:
        """Returns the divisor for the weight of one of a learner's ``count`` values in a mean."""

    def step(self, optimizer: NetworkOptimizer, largest_norm: float | None) -> None:
        """Updates the parameters of an optimizer by its own and the other learners' gradients, clipped to a norm."""


@final
class NetworkOptimizer:
    """Steps one flat parameter tensor by the gradients in its ``grad``.

    Args:
        flat: the parameters.
        config: the optimizer, the learning rate, its constants, and the enabled fixes, or the baseline.
        format: the number format of the run, for its largest and smallest values.
        kahan: whether this network's updates are compensated if ``kahan_gradients`` is on; with
            ``stochastic_compensation`` the updates of every network are.
        storage: the formats for keeping parameters, gradients and the optimizer's buffers; None: ``format``. With
            a format for compensations every network's updates are compensated.

    Attributes:
        flat: the parameters, numbers of the format.
        optimizer: the optimizer itself.
        scaler: its loss scaler, if there is one.
        parameters: the updated tensor: ``flat``, or its master weights in full precision.
        group: the learners that move these parameters together; None: there is one.
        norms: measures every step; None: steps are not measured.
    """

    group: Together | None = None
    norms: StepNorms | None = None

    def __init__(
        self, flat: torch.Tensor, config: OptimizerKeys, format: Format, *, kahan: bool, storage: Storage | None = None
    ) -> None:
        assert format.max is not None
        assert format.smallest is not None
        compound = "compound_loss_scaling" in config.fixes
        baseline = BASELINES[config.baseline]
        self.flat = flat
        stored = {} if storage is None else storage.formats
        self._storage = {name: Kept.of(stored[key]) for name, key in _STORED.items() if key in stored}
        self._keep({"parameters": flat})
        # Kahan-gradients: also for all networks if compensations are stored, or rounded stochastically.
        stochastic = is_stochastic(config.fixes, "weights")
        kahan = (kahan or "compensation" in self._storage or stochastic) and "kahan_gradients" in config.fixes
        self._scaled_norms = "scaled_norms" in config.fixes
        self._coerced_to = format.max if baseline.coercion else None
        self._master = MasterWeights(flat, format) if baseline.master_weights else None
        self.parameters = self._master.weights if self._master else flat
        options: dict[str, Any] = {
            "lr": config.lr,
            "eps": config.adam_eps * baseline.eps_factor,
            "kahan": kahan,
            "keep": self._storage.pop("parameters", None) if kahan else None,  # The compensated sum itself rounds them.
            "eps_floor": format.smallest if compound else 0.0,  # Else scale * eps could round to 0.
            "anneal_over": config.anneal_over,
            "stochastic": kahan and stochastic,
            "stochastic_moments": STOCHASTIC_MOMENTS in config.fixes,
        }
        roots = "hadam" in config.fixes
        self.optimizer: AdamBase
        if config.optimizer == "rmsprop":
            self.optimizer = (HRMSProp if roots else RMSProp)([self.parameters], alpha=config.adam_beta2, **options)
        else:
            betas = (config.adam_beta1, config.adam_beta2)
            self.optimizer = (HAdam if roots else Adam)([self.parameters], betas=betas, **options)
        # Formats without infinities saturate: their largest number also represents overflow.
        scaled = [keep.format for name, keep in self._storage.items() if name in _SCALED]
        narrow = [fmt for fmt in scaled if not round(torch.tensor(math.inf), fmt).isinf()]
        largest = min(fmt.max for fmt in (format, *narrow) if fmt.max is not None)
        self.scaler: DynamicLossScale | None = None
        if compound or baseline.loss_scaling:
            scale = CompoundLossScaler if compound else LossScaler
            self.scaler = scale(
                self.optimizer,
                initial_scale=baseline.initial_scale or config.initial_loss_scale,
                growth_interval=baseline.growth_interval or config.loss_scale_growth_interval,
                largest=largest,
            )

    @property
    def scale(self) -> float:
        """The factor to multiply gradients by; waits for the device."""
        return self.scaler.scale if self.scaler else 1.0

    def mean_weight(self, factor: float, count: int) -> Any:
        """Returns the derivative of ``scale * factor * mean`` by each of the ``count`` values of a learner."""
        return self._times_scale(factor, self.group.mean_count(count) if self.group else count)

    @unsimulated
    def _times_scale(self, factor: float, count: int = 1) -> Any:
        if self.scaler is None:
            return factor / count
        return number_or_tensor(factor * self.scaler.tensors["scale"] / count, self.flat.dtype)

    def watch(self, watcher: Watcher) -> None:
        """Notifies a watcher of computations with master weights, which are outside of surrounding simulations."""
        if self._master:
            self._master.watch(watcher)

    def clip_gradients(self, most: float) -> None:
        """Scales the gradients down if their norm, without the loss scale, is above ``most``.

        g <- g / max(1, (norm + 1e-6) / most), as in ``torch.nn.utils.clip_grad_norm_``. Non-finite gradients remain
        non-finite. With :func:`~roundoff.agents.optimizers.scaled_norms.norm_over_naive`, the norm of finite gradients
        may be infinite, and all gradients become 0.
        """
        gradient = self.flat.grad
        assert gradient is not None
        # Over ``most`` times the loss scale, which gradients contain.
        norm = (norm_over if self._scaled_norms else norm_over_naive)(gradient, self._times_scale(most))
        gradient.div_(norm.add_(_CLIPPING_EPS / most).clamp_(min=1.0))

    def step(self, largest_norm: float | None = None) -> None:
        """Updates the parameters, or skips the step if the scaler finds gradients that are not finite.

        Args:
            largest_norm: clip the gradients of all learners together to this norm first; None: do not clip.
        """
        if self.norms:
            self.norms.before(self.flat, self.scaler)  # Before learners exchange their gradients.
        if self.group:
            self.group.step(self, largest_norm)
        else:
            self.step_alone(largest_norm)
        if self.norms:
            self.norms.after(self.flat, self.optimizer)

    def step_alone(self, largest_norm: float | None = None) -> None:
        """Updates the parameters with this learner's gradients only."""
        if largest_norm is not None:
            self.clip_gradients(largest_norm)
        assert self.flat.grad is not None
        if self._coerced_to is not None:
            coerce_([self.flat.grad], self._coerced_to)
        self._keep({"gradients": self.flat.grad})
        if self._master:  # The optimizer steps in full precision, outside of the simulation.
            with self._master.updating():
                self._master.take_gradients()
                self._step()
        else:
            self._step()
        self._keep({"parameters": self.parameters, **self.optimizer.state[self.parameters]})
        if self._coerced_to is not None:
            buffers = [x for name, x in self.optimizer.state[self.parameters].items() if name != "step"]
            coerce_([self.flat, *buffers], self._coerced_to)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors besides gradients that a step reads and writes; also constants, which programs take as data."""
        adam, device = self.optimizer, self.parameters.device
        (group,) = adam.param_groups
        tensors = {
            "parameters": self.parameters,
            **adam.state_of(self.parameters, kahan=group["kahan"]),
            "loss_scale": group["loss_scale"],
            "eps_floor": number_tensor(group["eps_floor"], device),
            "table": adam.table(group, device),
        }
        if self.scaler is None:
            return tensors
        return {**tensors, **self.scaler.tensors, "largest": number_tensor(self.scaler.largest, device)}

    def bound_to(self, tensors: dict[str, torch.Tensor]) -> NetworkOptimizer:
        """Returns this optimizer, which has no master weights, with its state in ``tensors``."""
        assert self._master is None
        bound = copy(self)
        bound.flat = bound.parameters = tensors["parameters"]  # Equal, since there are no master weights.
        bound.optimizer = self.optimizer.bound_to(tensors)
        if self.scaler:
            bound.scaler = scaler = copy(self.scaler)
            scaler.optimizer = bound.optimizer
            scaler.tensors = {name: tensors[name] for name in scaler.tensors}
            scaler.largest = tensors["largest"]
        return bound

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the optimizer and its scaler, and the master weights if there are any."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            **({"master": self._master.weights} if self._master else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        if self._master:
            self._master.load(state["master"])

    def _keep(self, tensors: dict[str, torch.Tensor]) -> None:
        """Rounds tensors in place to the storage formats that the config has for them."""
        for name, keep in self._storage.items():
            if name in tensors:
                copy_(tensors[name], keep(tensors[name]))

    def _step(self) -> None:
        if self.scaler:
            self.scaler.step_if_finite()
        else:
            self.optimizer.step()
