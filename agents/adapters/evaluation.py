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
    """All modules that act and learn."""
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
        """Clears the memory of episodes: ``count`` new episodes begin, outside of training."""

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Returns the deterministic actions for observations, (n, ...), in the environment's form."""

    def go_on(self, rows: NDArray[Any]) -> None:
        """Keeps the memory of the episodes that continue; ``rows`` is a mask of the episodes acted in last."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns all learned tensors, by name."""

    def logged(self) -> dict[str, float]:
        """Returns the latest values that the library logged of its updates."""


def make_model(config: AdapterConfig, world: Callable[[int], World]) -> Model:
    """Makes the model of a config, with its initial weights.

    Args:
        config: the config of the run.
        world: opens the environment of a number, from 0 to ``config.environments - 1``.
    """
    with from_extras():
        module = import_module(f".{config.library()}", __package__)
    model: Model = module.make(config, [lambda i=i: world(i) for i in range(config.environments)])
    return model


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
        self._simulation = simulation_of(config.model_copy(update={"observe": False}))  # Counts only training.

    def be_quantized(self) -> None:
        """Evaluates the model in the numbers of ``config.qat`` from now on."""
        assert self._simulation is not None
        change_to(self._simulation, self.config, quantized=True)

    def episodes(
        self, step: int, quantization: Quantization | None = None, *, watch: bool = False
    ) -> tuple[Evaluation, Ranges]:
        """Runs the episodes of an evaluation; the step and the seed determine them.

        Args:
            step: environment steps that the run has taken.
            quantization: the quantization of the policy; None: the policy is unchanged.
            watch: whether the ranges of activations are recorded.

        Returns:
            The evaluation, and the ranges of activations.
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
            simulation.step = STEPS_OF_TRAINING + step % STEPS_OF_TRAINING  # Other random bits than in training.
        seed = int(sequence(config.seed, Stream.EVALUATION, step).generate_state(1)[0])  # 32 bits, for NumPy.
        modes = {module: module.training for module in model.network.modules()}  # Acting sets the mode of modules.
        output, discrete = _LastOutput(model.network), not hasattr(model.action_space, "low")
        model.begin(config.eval_episodes)

        def policy(observations: NDArray[Any]) -> NDArray[np.floating[Any]]:
            # From the observations of our environments to the library's dtype and shape.
            space = self.model.observation_space
            inputs = observations.astype(space.dtype).reshape(len(observations), *space.shape)
            if quantization is not None and inputs.dtype in (np.float32, np.float64):
                inputs = quantization.number(torch.from_numpy(inputs)).numpy()
            with simulation or nullcontext(), products or nullcontext():
                actions = model.act(inputs)
            if discrete and not output.is_finite():  # The number of an action is finite even if its value is NaN.
                return np.full((len(observations), 1), np.nan)
            # From the library's actions to those of our environments, (n, action): one-hot, or within [-1, 1].
            space = self.model.action_space
            if not hasattr(space, "low"):
                chosen: NDArray[np.int64] = actions.astype(np.int64) - int(space.start)  # A space may start above 0.
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
    """Quantizes parameters in place for the block, and restores them after it."""
    originals = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        for tensor in tensors:
            if tensor.dtype in (torch.float32, torch.float64):  # Not counters, such as those of batch normalization.
                tensor.copy_(quantization.number(tensor))
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, original in zip(tensors, originals, strict=True):
                tensor.copy_(original)


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
        """Whether all values of the last output are finite, or there was no output."""
        return self._last is None or bool(torch.isfinite(self._last).all())

    def remove(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _note(self, _layer: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            self._last = output.detach()


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds the global generators of Python, NumPy and PyTorch for the block, and restores them after it."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries draw from it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
