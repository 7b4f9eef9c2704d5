"""Acting of a learner in training and in evaluations: quantized, observed, and in compiled programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, ClassVar, Self

import torch

from ..errors import RunError
from ..models.policy_layers import PolicyLayers
from ..quantization.products import QuantizedProducts
from ..quantization.quantization import Quantization
from .arithmetic import change_to, simulation_of
from .state import ACT, LearnerState

_EVALUATION = 1 << 31  # Half of the steps that a simulation can count.
_LONGEST_EVALUATION = 1_000_003  # Actions; odd, so that numbers repeat rarely modulo 2^31.


class Acting(LearnerState, ABC):
    """A learner's choice of actions, by one of its networks.

    Attributes:
        acting_network: the name of the network that acts, and of the part that moves it.
        acting: the program that chooses actions in training, from observations and noise; None: the learner itself.
        products: the products with rounded operands for the actions of an evaluation; None: operands are not rounded.
        samples: whether the actions of an evaluation are sampled as in training, as for :meth:`sampling`.
        acted: the number of actions that it has chosen in training, if exploration depends on it.
    """

    acting_network: ClassVar[str] = "actor"
    acting: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    products: QuantizedProducts | None = None
    samples: bool = False
    acted: int = 0

    @abstractmethod
    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the actions of an evaluation, (n, action), for (n, observation); see ``TaskEnvironment``."""

    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the basis of actions, (n, output), for (n, observation); by default the actions of an evaluation."""
        return self.best_actions(observations)

    @abstractmethod
    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns the actions of training, (n, action); ``noise`` is the result of :meth:`action_noise`."""

    def action_noise(self, count: int, first: int = 0) -> torch.Tensor:  # noqa: ARG002
        """Draws standard normal noise for ``count`` actions in training, from ``generators["act_noise"]``.

        ``first`` is the number of the first environment; the other environments follow.
        """
        return self._normal(count, "act_noise")

    def policy_layers(self) -> PolicyLayers:
        """Returns the policy of an evaluation: copies of its layers, in float32 on the CPU, and its decision rule.

        Raises:
            RunError: the policy has other layers than linear layers and convolutions.
        """
        raise RunError(
            f"the policy of {self.config.algorithm} is more than linear layers and convolutions, and cannot act outside"
            " of its run; those of a2c, d4pg, dqn, ppo, sac and td3 can"
        )

    @torch.no_grad()
    def act(self, observations: torch.Tensor, *, deterministic: bool, number: int = 0, first: int = 0) -> torch.Tensor:
        """Chooses actions: samples in training, the best ones in an evaluation.

        Args:
            observations: (n, observation), numbers of the format.
            deterministic: the actions of an evaluation: the best ones, or samples in a copy by :meth:`sampling`.
            number: the index of these actions in an evaluation. The random bits of stochastic rounding follow from
                it and from the updates so far, so that an evaluation neither depends on others nor disturbs training.
                Samples are counted by the agent itself.
            first: for samples, the index of the first environment that they are for; see :meth:`action_noise`.

        Returns:
            (n, action); NaN where the network has become NaN (0 if the baseline is coercion).
        """
        if deterministic:
            with self._evaluation_arithmetic(number), self.products or nullcontext():
                if self.samples:
                    return self._coerced(self.sample_actions(observations, self.action_noise(len(observations))))
                return self._coerced(self.best_actions(observations))
        self.actions += 1
        with self._arithmetic(self.actions, ACT):
            noise = self.action_noise(len(observations), first)
            if not self.acting:
                return self._coerced(self.sample_actions(observations, noise))
        return self.acting(observations, noise)  # Outside: a program contains the rounding of the simulation.

    @torch.no_grad()
    def policy_at(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns :meth:`policy_outputs`, (n, output), without an effect on training."""
        with self._evaluation_arithmetic(0):
            return self._coerced(self.policy_outputs(observations))

    @property
    def numbers_to_act(self) -> dict[str, torch.Tensor]:
        """The entries of ``numbers`` that :meth:`sample_actions` needs in programs, as tensors."""
        return {}

    def acting_by(self, parameters: torch.Tensor, numbers: dict[str, torch.Tensor]) -> Self:
        """Returns this learner with other tensors as acting parameters, for a program that chooses actions."""
        bound = copy(self)
        bound.numbers = {**self.numbers, **numbers}
        bound.networks = {**self.networks, self.acting_network: self.networks[self.acting_network].bound_to(parameters)}
        return bound

    def quantized(self, quantization: Quantization, *, watch: bool = False) -> Self:
        """Returns a copy that acts quantized, with the current weights, for one evaluation.

        Args:
            quantization: the arithmetic of the copy.
            watch: whether ``products`` of the copy records the ranges of activations.
        """
        quantized = copy(self)
        # Only operands of products are quantized: in the learner's arithmetic, but not counted by its simulation.
        if quantization.policy is None:
            quantized.simulation = simulation_of(self.config.model_copy(update={"observe": False}))
            if quantized.simulation is not None and self._quantized:
                change_to(quantized.simulation, self.config, quantized=True)
            parameters = [network.flat for network in self.networks.values()]
            quantized.products = QuantizedProducts(quantization, parameters, watch=watch)
            return quantized
        quantized.simulation = quantization.simulation(self.config.seed)
        quantized.layers_stored = None  # The quantization determines the whole inference.
        quantized.networks = {name: net.bound_to(quantization.number(net.flat)) for name, net in self.networks.items()}
        quantized.numbers = {
            name: quantization.number(number) if isinstance(number, torch.Tensor) else number
            for name, number in self.numbers.items()
        }
        quantized.bind()
        return quantized

    def sampling(self, generator: torch.Generator) -> Self:
        """Returns a copy that acts in evaluations as in training, with noise from the generator."""
        sampling = copy(self)
        sampling.samples = True
        sampling.generators = {**self.generators, "act_noise": generator}
        return sampling

    def _evaluation_arithmetic(self, number: int) -> AbstractContextManager[Any]:
        """Returns the simulation with the random bits of an action that is not part of training."""
        if self.simulation is None:
            return nullcontext()
        # After all steps of training; a number may repeat after 2^31 others, in another evaluation.
        self.simulation.step = _EVALUATION + (self.updates * _LONGEST_EVALUATION + number) % _EVALUATION
        return self.simulation
