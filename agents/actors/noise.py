"""A control for quantized actors: a policy in fp32 with noise on its outputs as large as the error of a format."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from ..acting.engines import SimulatedEngine
from ..acting.packed import PackedPolicy
from ..models.policy_layers import Decision


@final
class NoisyPolicy:
    """Acts as an engine does, with other outputs: y + |q - y| u, with y in fp32 and q in a format.

    The noise is as long as the format's error in each state, and its direction u is drawn evenly at each
    step. So both perturb alike strongly, but rounding errs each time alike in the same state, and noise does not. What
    does not count is taken out of the error and of u: where the largest of the outputs decides, their common shift, and
    in a categorical head the common shift of each action's logits.

    Args:
        message: a packed policy in fp32.
        format: the format that causes the error, in weights and activations; see ``Simulated``.
        generator: draws the directions.
    """

    def __init__(self, message: bytes, format: str, generator: torch.Generator) -> None:
        packed = PackedPolicy.from_bytes(message)
        self._exact = SimulatedEngine(message)
        self._rounded = SimulatedEngine(PackedPolicy.of(packed.policy, format).to_bytes())
        # Of how many parts of the outputs a common shift changes nothing.
        self._parts = {Decision.LARGEST: 1, Decision.LARGEST_MEAN: packed.layout.action_size}.get(
            packed.layout.decision
        )
        self._generator = generator

    def outputs_and_actions(self, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The outputs with noise, (n, outputs), and the actions, (n, action); NaN where an output is."""
        exact, rounded = (
            torch.from_numpy(engine.outputs_and_actions(observations)[0]).double()
            for engine in (self._exact, self._rounded)
        )
        direction = torch.randn(exact.shape, generator=self._generator, dtype=torch.float64)
        error = rounded - exact
        if self._parts:
            error, direction = (_without_shifts(one, self._parts) for one in (error, direction))
        length, drawn = (one.norm(dim=1, keepdim=True) for one in (error, direction))
        noisy = (exact + direction * (length / drawn).where(drawn != 0, 0.0)).float()
        return noisy.numpy(), self._exact.decided(noisy).numpy()


def _without_shifts(numbers: torch.Tensor, parts: int) -> torch.Tensor:
    """Numbers, (n, outputs), less the mean of each of this number of equal parts of a row."""
    apart = numbers.view(len(numbers), parts, -1)
    return (apart - apart.mean(2, keepdim=True)).view_as(numbers)
