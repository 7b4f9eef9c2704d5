"""The state of a learner: arithmetic, networks, averages and optimizers; saved, restored and moved between devices."""

from __future__ import annotations

from abc import ABC, ABCMeta
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, Self

import torch

from ...formats import Format, round
from ...simulate import Role, in_role
from ..config.fixes import BASELINES, is_stochastic
from ..config.learning_keys import OffPolicyKeys, OptimizerKeys
from ..config.rules import NATIVE_FORMATS
from ..models.networks import FlatNetwork
from ..models.stored_layers import StoredLayers
from ..optimizers.kahan_momentum import KahanEMA, MovingAverage, PlainEMA, StoredEMA, TraceableAverage
from ..optimizers.master_weights import MasterEMA
from ..optimizers.network_optimizer import NetworkOptimizer
from ..stored import Kept, coerce_
from ..streams import Stream, torch_generator
from .arithmetic import change_to, simulation_of
from .part import UpdateBackend

PLACES = 8
"""The number of streams of random bits in an update: 0 for its noise, 1 to 6 for ``draws`` of agents, 7 for actions."""
NOISE, ACT = 0, PLACES - 1


class _Bound(ABCMeta):
    """A metaclass that binds objects once their constructors have returned."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Returns a complete object, with everything derived from its tensors."""
        instance = super().__call__(*args, **options)
        instance.bind()
        return instance


class LearnerState(ABC, metaclass=_Bound):
    """The networks of a learner, their optimizers, slow copies of networks, and the arithmetic of all computations.

    A subclass sets ``networks``, ``averages``, ``optimizers`` and ``numbers`` in its constructor. A network, its
    optimizer and its entry in checkpoints have the same name. :meth:`bind` is called whenever the tensors of these
    are replaced: after the constructor, and by :meth:`bound_to`.

    Args:
        observation_size: the number of elements in an observation; 0: it learns from images.
        action_size: the number of elements in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: the device of all tensors.

    Attributes:
        largest: the largest number of the format.
        dtype: the dtype of weights, batches and actions.
        networks: the networks, by name.
        averages: slow copies of networks, by name.
        optimizers: the optimizers of ``networks`` and of other parameters, by name.
        layers_stored: the formats that networks store values between layers in; None: the run's.
        numbers: hyper-parameters that compiled programs take as data, there as tensors.
        updates: the number of updates so far.
        compiled: the program that computes the updates; None: the updates are eager.
        reward_scale: the factor of rewards, values and targets, but not of derivatives by values.
    """

    def __init__(self, observation_size: int, action_size: int, config: OptimizerKeys, device: torch.device) -> None:
        fmt = Format.parse(config.format)
        assert fmt.max is not None
        self.format, self.largest = fmt, fmt.max
        self.observation_size, self.action_size = observation_size, action_size
        self.config = config
        self.device = device
        self.simulation = simulation_of(config)
        self.layers_stored = StoredLayers.of(config.storage)
        self.reward_scale = config.scale_of_rewards
        self._quantized = False  # Whether the arithmetic of ``qat`` is on.
        self.dtype: torch.dtype = getattr(torch, NATIVE_FORMATS[str(fmt)]) if config.native else fmt.carrier
        # Noise is drawn in the carrier and then rounded, so that native and simulated agents get the same noise.
        self._noise_options: dict[str, Any] = {"dtype": fmt.carrier, "device": device}
        self.generators = {
            "act_noise": torch_generator(config.seed, Stream.ACTION_NOISE, device),
            "update_noise": torch_generator(config.seed, Stream.UPDATE_NOISE, device),
        }
        self._coerced_to = self.largest if BASELINES[config.baseline].coercion else None
        self.networks: dict[str, FlatNetwork] = {}
        self.averages: dict[str, MovingAverage] = {}
        self.optimizers: dict[str, NetworkOptimizer] = {}
        self.numbers: dict[str, float | torch.Tensor] = {"discount": config.discount}
        self.compiled: UpdateBackend | None = None
        self.updates = self.actions = 0  # They number the random bits of stochastic rounding.

    def bind(self) -> None:
        """Derives a subclass's values from networks, averages and numbers, such as views of their tensors."""

    @in_role(Role.AVERAGES)
    def make_average(self, flat: torch.Tensor) -> MovingAverage:
        """Makes a slow copy of parameters as the config describes it; its tensor is ``flat``, which is changed."""
        config = self.config
        assert isinstance(config, OffPolicyKeys), "others keep no averages"
        # In the order of precedence: a baseline replaces the fixes, and ``storage`` replaces Kahan-momentum.
        if BASELINES[config.baseline].master_weights:
            return MasterEMA(flat, config.tau, self.format)
        if config.storage is not None and config.storage.targets is not None:
            compensation = config.storage.target_compensations
            return StoredEMA(flat, config.tau, Kept.of(config.storage.targets), compensation and Kept.of(compensation))
        if "kahan_momentum" in config.fixes:
            stochastic = is_stochastic(config.fixes, "averages")
            return KahanEMA(
                flat, config.tau, scale=config.kahan_momentum_scale, largest=self.largest, stochastic=stochastic
            )
        return PlainEMA(flat, config.tau)

    def make_optimizer(self, flat: torch.Tensor, *, kahan: bool, stored: bool = True) -> NetworkOptimizer:
        """Makes the optimizer of parameters as the config describes it.

        ``kahan``: whether it is compensated if that fix is on. ``stored``: whether ``storage`` applies to it.
        """
        storage = self.config.storage if stored else None
        return NetworkOptimizer(flat, self.config, self.format, kahan=kahan, storage=storage)

    def rounded_(self, parameters: torch.Tensor) -> torch.Tensor:
        """Rounds initial parameters to the format in place, and returns them."""
        return parameters if self.config.native else parameters.copy_(round(parameters, self.format))

    def constructing(self) -> AbstractContextManager[Any]:
        """Returns the simulation for a constructor's computations in the format."""
        return self._arithmetic(0, NOISE)

    def be_quantized(self, *, quantized: bool) -> None:
        """Turns the arithmetic of ``config.qat`` on or off."""
        if self.simulation is not None and quantized != self._quantized:
            change_to(self.simulation, self.config, quantized=quantized)
        self._quantized = quantized

    def bound_to(self, tensors: dict[str, Any]) -> Self:
        """Returns this learner with its state in ``tensors``, for programs; see ``TracedLearner`` for their names."""
        bound = copy(self)
        bound.compiled = None  # A program is traced from the eager functions.
        # Detached: in eager runs they are the agent's parameters, which must keep their ``grad``.
        flats = {name: tensors[name]["parameters"].detach() for name in self.optimizers}
        bound.optimizers = {
            name: part.bound_to({**tensors[name], "parameters": flats[name]}) for name, part in self.optimizers.items()
        }
        bound.networks = {name: part.bound_to(flats[name]) for name, part in self.networks.items()}
        bound.averages = {name: part.bound_to(tensors[name]) for name, part in self.traceable_averages.items()}
        bound.numbers = tensors["numbers"]
        bound.bind()
        return bound

    @property
    def traceable_averages(self) -> dict[str, TraceableAverage]:
        """``averages``, of a learner with a baseline that can be compiled."""
        averages = {name: average for name, average in self.averages.items() if isinstance(average, TraceableAverage)}
        assert len(averages) == len(self.averages), "programs know no master weights"
        return averages

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically: weights, optimizers, averages, generators."""
        return {
            **self.weights(),
            **{f"{name}_average": average.state_dict() for name, average in self.averages.items()},
            **{f"{name}_optimizer": optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            **{name: generator.get_state() for name, generator in self.generators.items()},
            "updates": self.updates,
            "actions": self.actions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state_dict` returned."""
        assert self.compiled is None, "updates are compiled for an agent that is complete"
        # In place, since optimizers, averages and layers are views of these tensors or refer to them.
        for name, tensor in self.weights().items():
            tensor.copy_(state[name])
        for name, average in self.averages.items():
            average.load_state_dict(state[f"{name}_average"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[f"{name}_optimizer"])
        for name, generator in self.generators.items():
            generator.set_state(state[name])
        self.updates = state["updates"]
        self.actions = state["actions"]

    @property
    def loss_scale(self) -> float:
        """The loss scale of the leading optimizer, at the last time when programs wrote back."""
        return self.optimizers[self.config.leading].scale

    def layers(self) -> dict[str, list[torch.Tensor]]:
        """Returns the layers of all networks, by name."""
        self._write_back()
        return {name: network.layers for name, network in self.networks.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the flat parameters of networks and averages, by name, and all other learned values."""
        self._write_back()
        return {
            **{name: network.flat for name, network in self.networks.items()},
            **{name: average.average for name, average in self.averages.items()},
        }

    def _coerced(self, x: torch.Tensor) -> torch.Tensor:
        if self._coerced_to is not None:
            coerce_([x], self._coerced_to)
        return x

    def _normal(self, count: int, generator: str) -> torch.Tensor:
        shape = (count, self.action_size)  # One vector for each environment or transition.
        return torch.randn(shape, generator=self.generators[generator], **self._noise_options).to(self.dtype)

    def _arithmetic(self, count: int, place: int) -> AbstractContextManager[Any]:
        """Returns the simulation with the random bits of stochastic rounding for a place of an update or action."""
        if self.simulation is None:
            return nullcontext()
        self.simulation.step = PLACES * count + place  # The random bits depend only on this number and the seed.
        return self.simulation

    def _write_back(self) -> None:
        if self.compiled:
            self.compiled.write_back()
