"""Norms of an optimizer's parameters and buffers, and magnitudes of its gradients, for monitoring learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from ...formats import unsimulated
from .adam import AdamBase
from .dynamic_loss_scale import DynamicLossScale
from .hadam import KeepingRoots

_LEAST, _MOST = -1074, 1023
"""Binary exponents of the numbers of float64."""


@final
class StepNorms:
    """The norms of a step, of weights, gradients, the step itself and moments; and the magnitudes of gradients.

    They are computed in float64 outside of the simulation, which neither rounds nor counts them. NaN if one of the
    numbers is NaN, infinite if one is infinite; numbers of other formats cannot overflow.

    Args:
        first: the number of weights in the network's first layer, which comes first in its parameters.

    Attributes:
        latest: tensors by name: ``weights_norm`` after the step; ``gradients_norm`` before it, without the loss scale,
            not clipped, of this learner only; ``steps_norm``, of the change of the weights; the same of the first layer
            as ``first_layer_weights_norm`` and so on; ``first_moment_norm`` of the mean of gradients, if the optimizer
            has one, and ``second_moment_norm`` of the root of the mean of their squares, both without the loss scale.

    Source:
        Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Figure 8; for the magnitudes of
        gradients Low-precision SAC, Figure 6.
    """

    def __init__(self, first: int) -> None:
        self.latest: dict[str, torch.Tensor] = {}
        self._first = first
        self._before: torch.Tensor | None = None
        self._exponents: torch.Tensor | None = None

    @unsimulated
    def before(self, flat: torch.Tensor, scaler: DynamicLossScale | None) -> None:
        """Measures the gradients of the coming step, which contain the loss scale if there is one."""
        assert flat.grad is not None
        self._before = flat.clone()
        gradients = flat.grad.double() / (scaler.scale if scaler else 1.0)
        if self._exponents is None:
            self._exponents = torch.zeros(_MOST - _LEAST + 2, dtype=torch.int64, device=gradients.device)
        bins = gradients.frexp().exponent.to(torch.int64) - 1 - _LEAST
        bins[~gradients.isfinite() | (gradients == 0)] = _MOST - _LEAST + 1  # The last bin, which is not reported.
        self._exponents = self._exponents.to(gradients.device).index_add_(0, bins, torch.ones_like(bins))
        self.latest = self._norms("gradients", gradients)

    @unsimulated
    def after(self, flat: torch.Tensor, adam: AdamBase) -> None:
        """Measures the effect of the step on the parameters, and the moments of the tensor that ``adam`` updates."""
        assert self._before is not None
        weights = flat.double()
        self.latest |= self._norms("weights", weights) | self._norms("steps", weights - self._before.double())
        self._before = None
        (group,) = adam.param_groups
        (parameters,), scale = group["params"], float(group["loss_scale"])
        state = adam.state[parameters]
        if "moment" in state:
            self.latest["first_moment_norm"] = torch.linalg.vector_norm(state["moment"].double()) / scale
        if "second" in state:
            second = state["second"].double()
            roots = second if isinstance(adam, KeepingRoots) else second.sqrt()
            self.latest["second_moment_norm"] = torch.linalg.vector_norm(roots) / scale

    def take_exponents(self) -> dict[str, int]:
        """Counts the gradients of all steps since the last call with a magnitude in [2^k, 2^(k+1)), under k.

        They are the gradients in ``gradients_norm``. Zeros, infinities and NaN are in none.
        """
        if self._exponents is None:
            return {}
        counts, self._exponents = self._exponents[:-1], None
        return {str(_LEAST + i): int(counts[i]) for i in counts.nonzero().flatten().tolist()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue counting."""
        return {"exponents": self._exponents}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        self._exponents = state["exponents"]

    def _norms(self, name: str, values: torch.Tensor) -> dict[str, Any]:
        norm = torch.linalg.vector_norm
        return {f"{name}_norm": norm(values), f"first_layer_{name}_norm": norm(values[: self._first])}


@unsimulated
def half_batch_cosine(
    outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Returns the cosine of the angle between the gradient of a batch and the gradient of every other row.

    Near 1 / sqrt(2) the two halves are orthogonal, like noise; near 1 they agree, and a larger batch adds little. The
    forward pass is the rounded one; the gradients are in plain arithmetic, outside of the simulation, which neither
    rounds nor counts them. The graph is kept. NaN if a gradient is 0 or not finite.

    Args:
        outputs: the inputs of the loss, (n, ...) each, with their graph.
        weights: the derivatives of the loss by them.
        parameters: the tensors to differentiate by.

    Returns:
        float64, a tensor of no dimensions.

    Source:
        Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 5.5.
    """
    halves = []
    for parity in (0, 1):
        half_weights = [torch.zeros_like(weight) for weight in weights]
        for half_weight, weight in zip(half_weights, weights, strict=True):
            half_weight[parity::2] = weight[parity::2]
        gradients = torch.autograd.grad(outputs, parameters, half_weights, retain_graph=True)
        halves.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).double())
    full = halves[0] + halves[1]
    cosine: torch.Tensor = full @ halves[0] / (full.norm() * halves[0].norm())
    return cosine
