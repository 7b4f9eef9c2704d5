"""Evaluations of a library's model: in our environments, in its arithmetic, or with its policy quantized."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from roundoff.extras import from_extras

from ...simulate import Simulation
from ..algorithms.arithmetic import change_to, simulation_of
from ..environments.parallel import EnvironmentGroup
from ..quantization.products import QuantizedProducts, Ranges
from ..quantization.quantization import Quantization
from ..run.evaluate import Evaluation, evaluate
from ..streams import Stream, sequence
from .settings import AdapterConfig

if TYPE_CHECKING:
    from .world import World


class Model(Protocol):
    """An algorithm of a library, made for a task."""

    network: torch.nn.Module
    """All that acts and learns."""
    action_space: Any
    """The space of actions of the environments to learn in."""
    observation_space: Any
    """The space of observations of the environments to learn in."""

    @property
    def updates(self) -> int | None:
        """The number of updates made; None if the library does not report it."""

    def learn(self, steps: int) -> None:
        """Learns for this number of agent steps, or a little longer, where the library takes whole rollouts."""

    def begin(self, count: int) -> None:
        """Clears its memory of episodes: ``count`` new ones begin, outside of training."""

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """The deterministic actions for observations, (n, ...), as the environment takes them."""

    def go_on(self, rows: NDArray[Any]) -> None:
        """Is told which of the episodes acted in last go on; a mask."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """All that is learned, by name."""

    def logged(self) -> dict[str, float]:
        """The numbers that the library has last logged of its updates."""


def make_model(config: AdapterConfig, world: Callable[[int], World]) -> Model:
    """The model that a config asks for, with its initial weights.

    Args:
        config: the config of the run.
        world: opens the environment of a number, from 0 to ``config.environments - 1``.
    """
    with from_extras():
        module = import_module(f".{config.library()}", __package__)
    made: Model = module.make(config, [lambda i=i: world(i) for i in range(config.environments)])
    return made


STEPS_OF_TRAINING = 1 << 31
"""Half of the steps that a simulation can count: stochastic rounding in evaluations has the other half."""


@final
class ModelEvaluation:
    """Evaluates a model as it is, without affecting its random streams.

    Args:
        config: the config of the run.
        model: the model with the policy that acts.
        environments: one for each episode.
        device: the device of the model's tensors.
    """

    def __init__(
        self, config: AdapterConfig, model: Model, environments: EnvironmentGroup, device: torch.device
    ) -> None:
        self.config, self.model, self.environments, self.device = config, model, environments, device
        self._simulation = simulation_of(config.model_copy(update={"observe": False}))

    def be_quantized(self) -> None:
        """Evaluates the model as ``config.qat`` says from here on."""
        assert self._simulation is not None
        change_to(self._simulation, self.config, quantized=True)

    def episodes(
        self, step: int, quantization: Quantization | None = None, *, watch: bool = False
    ) -> tuple[Evaluation, Ranges]:
        """The episodes of an evaluation, which the step and the seed decide, with the policy quantized if need be.

        Args:
            step: environment steps that the run has taken.
            quantization: how; None: as it is.
            watch: whether the ranges of activations are noted.

        Returns:
            The evaluation, and those ranges.
        """
        tensors = list(self.model.weights().values())
        if quantization is None:
            return self._episodes(step, self._simulation), []
        if quantization.policy is None:
            products = QuantizedProducts(quantization, tensors, watch=watch)
            return self._episodes(step, self._simulation, products), products.ranges
        with _quantized_parameters(tensors, quantization):
            simulation = quantization.simulation(self.config.seed)
            return self._episodes(step, simulation, quantization=quantization), []

    def _episodes(
        self,
        step: int,
        simulation: Simulation | None,
        products: QuantizedProducts | None = None,
        quantization: Quantization | None = None,
    ) -> Evaluation:
        model, config = self.model, self.config
        if simulation is not None:
            simulation.step = STEPS_OF_TRAINING + step % STEPS_OF_TRAINING
        seed = int(sequence(config.seed, Stream.EVALUATION, step).generate_state(1)[0])
        modes = {module: module.training for module in model.network.modules()}
        output, discrete = _LastOutput(model.network), not hasattr(model.action_space, "low")
        model.begin(config.eval_episodes)

        def policy(observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
            # Observations of our environments in the form that the library has
            space = self.model.observation_space
            inputs = observations.astype(space.dtype).reshape(len(observations), *space.shape)
            if quantization is not None and inputs.dtype in (np.float32, np.float64):
                inputs = quantization.number(torch.from_numpy(inputs)).numpy()
            with simulation or nullcontext(), products or nullcontext():
                actions = model.act(inputs)
            if discrete and not output.is_finite():  # else the actions themselves say it
                return np.full((len(observations), 1), np.nan)
            # Actions of the library's environments as ours take them, (n, action)
            space = self.model.action_space
            if not hasattr(space, "low"):
                chosen: NDArray[np.int64] = actions.astype(np.int64) - int(space.start)
                return np.eye(int(space.n))[chosen]
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            rescaled: NDArray[np.float64] = (actions - (low + high) / 2) / ((high - low) / 2)
            return rescaled.reshape(len(actions), -1)

        try:
            with torch.no_grad(), seeded(self.device, seed):
                return evaluate(self.environments, policy, seed=config.seed, step=step, go_on=model.go_on)
        finally:
            output.remove()
            for module, training in modes.items():
                module.training = training


@contextmanager
def _quantized_parameters(tensors: Sequence[torch.Tensor], quantization: Quantization) -> Iterator[None]:
    """Parameters as a quantized inference begins with them, for the block; then as they were."""
    kept = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        for tensor in tensors:
            if tensor.dtype in (torch.float32, torch.float64):
                tensor.copy_(quantization.number(tensor))
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, was in zip(tensors, kept, strict=True):
                tensor.copy_(was)


@final
class _LastOutput:
    """The last tensor that any layer of a network has returned: the basis of the choice of an action.

    Args:
        network: the network with the layers to observe.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        self._last: torch.Tensor | None = None
        self._hooks = [
            layer.register_forward_hook(self._note) for layer in network.modules() if not list(layer.children())
        ]

    def is_finite(self) -> bool:
        """Whether all its numbers are; an action can be chosen by NaN without being NaN."""
        return self._last is None or bool(torch.isfinite(self._last).all())

    def remove(self) -> None:
        """Listens no more."""
        for hook in self._hooks:
            hook.remove()

    def _note(self, _layer: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            self._last = output.detach()


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators of Python, NumPy and PyTorch, seeded for the block, and restored after it."""
    kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries draw from it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(kept)
            np.random.set_state(kept_numpy)  # noqa: NPY002
