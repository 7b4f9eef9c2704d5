"""The Q-learning algorithms of Tianshou as they are, on the networks that its own examples give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import Batch, Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.logger.logger_base import BaseLogger
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import ImplicitQuantileNetwork, NoisyLinear

from .settings import AdapterConfig, parameters, with_parts
from .world import World

_TRAINER = ("batch_size", "update_step_num_gradient_steps_per_sample", "collection_step_num_env_steps")


class _LatestLogs(BaseLogger):  # type: ignore[misc]  # of no known type
    """Keeps the values that the library logs of its updates."""

    def __init__(self) -> None:
        super().__init__(update_interval=1)
        self.values: dict[str, float] = {}

    def write(self, step_type: str, step: int, data: dict[str, Any]) -> None:  # noqa: ARG002
        if step_type.startswith("update"):
            self.values = {
                name.replace("/", "_"): float(value)
                for name, value in data.items()
                if isinstance(value, int | float | np.number) and "time" not in name  # Equal runs log equal values.
            }

    def prepare_dict_for_logging(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return log_data

    def finalize(self) -> None:
        """Does nothing: nothing is held."""

    def save_data(self, *_: Any, **__: Any) -> None:
        """Does nothing: no checkpoints are written."""

    def restore_data(self) -> tuple[int, int, int]:
        return 0, 0, 0

    @staticmethod
    def restore_logged_data(log_path: str) -> dict[str, Any]:  # noqa: ARG004
        return {}


@final
class Tianshou:
    """A Q-learning algorithm of the library.

    Args:
        config: the config of the run.
        worlds: open the environments to learn in.
    """

    def __init__(self, config: AdapterConfig, worlds: Sequence[Callable[[], World]]) -> None:
        self._worlds = DummyVectorEnv(list(worlds))
        self._worlds.seed(config.seed)
        self.action_space, self.observation_space = self._worlds.action_space[0], self._worlds.observation_space[0]
        self._options = options = with_parts(config.options)
        algorithm, policy = config.places[config.name]
        # Options have one flat namespace: each constructor gets those that it has parameters for.
        arguments = {place: {name: options[name] for name in parameters(place) or () if name in options}
                     for place in (algorithm, policy)}  # fmt: skip
        spaces = {"action_space": self.action_space, "observation_space": self.observation_space}
        network = self._network(config, arguments[policy]).to(config.device)
        # QRDQNPolicy inherits DQN's constructor, so ``config.places`` names the class with the parameters.
        policy_class = QRDQNPolicy if config.name == "QRDQN" else _class(policy)
        self._policy = policy_class(model=network, **spaces, **arguments[policy])
        optimizer = TorchOptimizerFactory(
            options.get("optimizer_class", torch.optim.Adam), **{"lr": 1e-3, **options.get("optimizer_kwargs", {})}
        )
        self._algorithm = _class(algorithm)(policy=self._policy, optim=optimizer, **arguments[algorithm])
        self.network: torch.nn.Module = self._algorithm.to(config.device)
        size = options.get("buffer_size", 20_000)
        if config.name == "Rainbow":
            alpha, beta = options.get("alpha", 0.6), options.get("beta", 0.4)
            buffer: Any = PrioritizedVectorReplayBuffer(size, len(worlds), alpha=alpha, beta=beta)
        else:
            buffer = VectorReplayBuffer(size, len(worlds))
        self._collector = Collector(self._policy, self._worlds, buffer, exploration_noise=True)
        self._log = _LatestLogs()
        self._before_learning = config.steps_before_learning

    def learn(self, steps: int) -> None:  # noqa: D102
        start = min(self._before_learning, steps)
        self._collector.reset()
        if start:
            self._collector.collect(n_step=start, random=True)  # Before any update.
        trainer = {name: self._options[name] for name in _TRAINER if name in self._options}
        params = OffPolicyTrainerParams(
            training_collector=self._collector, max_epochs=1, epoch_num_steps=max(1, steps - start), logger=self._log,
            verbose=False, show_progress=False,
            **{"collection_step_num_env_steps": 10, "update_step_num_gradient_steps_per_sample": 0.1, **trainer},
        )  # fmt: skip
        self._algorithm.run_training(params)

    def begin(self, count: int) -> None:  # noqa: ARG002, D102
        self._algorithm.eval()

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:  # noqa: D102
        batch = self._policy(Batch(obs=observations, info=Batch()))
        return np.asarray(self._policy.map_action(batch.act))

    def go_on(self, rows: NDArray[Any]) -> None:
        """Does nothing, since the algorithm does not remember episodes."""

    def weights(self) -> Mapping[str, torch.Tensor]:  # noqa: D102
        state = self._algorithm.state_dict()
        return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}

    @property
    def updates(self) -> None:
        """The number of updates, which the library does not report: None."""
        return

    def logged(self) -> dict[str, float]:  # noqa: D102
        return dict(self._log.values)

    def _network(self, config: AdapterConfig, policy: dict[str, Any]) -> Any:
        """Makes the network for the algorithm; the policy or the algorithm determines its number of outputs."""
        shape, actions = self.observation_space.shape, int(self.action_space.n)
        options = {"state_shape": shape, "hidden_sizes": self._options.get("hidden_sizes", [128, 128])}
        if config.name == "IQN":
            *before, last = options["hidden_sizes"]  # The last layer's width is the size of the features.
            inner = Net(state_shape=shape, action_shape=last, hidden_sizes=before)
            return ImplicitQuantileNetwork(preprocess_net=inner, action_shape=actions)
        if config.name == "DQN":
            return Net(**options, action_shape=actions)
        if config.name == "QRDQN":
            return Net(**options, action_shape=actions, num_atoms=self._options.get("num_quantiles", 200))
        options |= {"action_shape": actions, "num_atoms": policy.get("num_atoms", 51), "softmax": True}
        if config.name == "Rainbow":
            std = self._options.get("noisy_std", 0.5)

            def noisy(inputs: int, outputs: int) -> NoisyLinear:
                return NoisyLinear(inputs, outputs, std)

            heads = {"linear_layer": noisy}
            return Net(**options, dueling_param=(heads, heads))  # Of the advantages and of the values.
        return Net(**options)


def _class(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def make(config: AdapterConfig, worlds: Sequence[Callable[[], World]]) -> Tianshou:
    """Makes the model of a config."""
    return Tianshou(config, worlds)
