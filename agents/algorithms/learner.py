"""What an algorithm is to a run: an agent that acts, and that learns in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from ...formats import Format, round
from ...simulate.policy.places import in_role
from ...simulate.policy.rules import Role
from ..coercion import coerce_
from ..config.baselines import BASELINES
from ..config.fixes import STOCHASTIC_TARGETS, is_stochastic
from ..config.learning_keys import OffPolicyKeys, OptimizerKeys
from ..config.rules import NATIVE_FORMATS
from ..errors import RunError
from ..experience.replay import batch_of
from ..models.stored_layers import StoredLayers
from ..optimizers.decisions import add_product
from ..optimizers.kahan_momentum import KahanEMA, MovingAverage, PlainEMA, StoredEMA, TraceableAverage
from ..optimizers.master_weights import MasterEMA
from ..optimizers.network_optimizer import NetworkOptimizer
from ..optimizers.step_norms import StepNorms
from ..quantization.products import QuantizedProducts
from ..stored import Kept
from ..streams import Stream, torch_generator
from .arithmetic import change_to, simulation_of
from .stochastic_targets import stochastic_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..models.networks import FlatNetwork
    from ..models.policy_layers import PolicyLayers
    from ..quantization.quantization import Quantization
    from .part import Elsewhere, Metrics, Part

# Random bits are numbered within an update: 0 for its noise, 1 to 6 for its parts, 7 for actions.
_PLACES = 8
_NOISE, _ACT = 0, 7
_EVALUATION = 1 << 31  # half of the steps that a simulation can count
_LONGEST_EVALUATION = 1_000_003  # actions; odd, so that few places come again


class Learner(ABC):
    """An agent: networks, their optimizers, slow copies of networks, and what an update does with them.

    What it computes after its construction, it computes in ``config.format`` as ``config.policy`` says: ``act`` and
    ``update`` run inside ``simulation`` (None: fp32 and fp64 run plainly). The parts of an update do not enter the
    simulation themselves. NaN never raises here: it shows in the actions. A native agent (``config.native``) runs the
    same operations, outside of any simulation, on tensors of ``dtype``.

    Losses are not formed: the derivative of the loss by a network's outputs is handed to autograd directly, multiplied
    by the loss scale. A loss could overflow; it is needed for nothing.

    A subclass sets ``networks``, ``averages``, ``optimizers``, ``numbers`` and ``parts`` in its constructor, and then
    calls :meth:`bind`. The name of a network is that of its optimizer, of a part, and of its place in checkpoints.

    Args:
        observation_size: numbers in an observation; 0: it learns from images.
        action_size: numbers in an action.
        config: the hyper-parameters, the format, and the fixes or the baseline.
        device: where all tensors live.

    Attributes:
        largest: the largest number of the format.
        dtype: of weights, batches and actions.
        networks: by name.
        acting_network: the name of the network that acts, and of the part that moves it.
        averages: slow copies of networks, by name.
        optimizers: by name; those of ``networks``, and of other parameters.
        layers_stored: in which formats networks keep what passes between their layers; None: in the run's.
        numbers: hyper-parameters that are data to compiled programs, where they are tensors.
        parts: what an update consists of, in order.
        updates: how many there were.
        compiled: what has taken over the updates; None if nothing has.
        acting: what has taken over the choice of actions in training, for observations and noise; None if nothing has.
        products: in which operands are rounded for the actions of an evaluation; None if none are.
        reward_scale: by what rewards, values and targets are multiplied; derivatives by values are not.
        stochastic_targets: whether targets are computed exactly and rounded once, stochastically.
    """

    acting_network: ClassVar[str] = "actor"

    def __init__(self, observation_size: int, action_size: int, config: OptimizerKeys, device: torch.device) -> None:
        fmt = Format.parse(config.format)
        assert fmt.max is not None
        self.format, self.largest = fmt, fmt.max
        self.observation_size, self.action_size = observation_size, action_size
        self.config = config
        self.device = device
        self.simulation = simulation_of(config)
        self.layers_stored = StoredLayers.of(config.storage)
        self.stochastic_targets = STOCHASTIC_TARGETS in config.fixes
        self.reward_scale = config.scale_of_rewards
        self._quantized = False
        self.dtype: torch.dtype = getattr(torch, NATIVE_FORMATS[str(fmt)]) if config.native else fmt.carrier
        # Noise is drawn in the carrier and then rounded, so that a native and a simulated agent see the same.
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
        self.parts: tuple[Part, ...] = ()
        self.compiled: Elsewhere | None = None
        self.acting: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        self.products: QuantizedProducts | None = None
        self.updates = self.actions = 0

    def bind(self) -> None:  # noqa: B027  most have something to bind, not all
        """Makes what the subclass derives from networks, averages and numbers, such as views of their tensors."""

    @abstractmethod
    def best_actions(self, observations: torch.Tensor) -> torch.Tensor:
        """The actions of an evaluation, (n, action), for (n, observation); ``TaskEnvironment`` says what they are."""

    def policy_outputs(self, observations: torch.Tensor) -> torch.Tensor:
        """What actions are chosen from, (n, output), for (n, observation): of most the actions of an evaluation."""
        return self.best_actions(observations)

    @abstractmethod
    def sample_actions(self, observations: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The actions of training, (n, action); ``noise`` is what :meth:`action_noise` has drawn for them."""

    def action_noise(self, count: int, first: int = 0) -> torch.Tensor:  # noqa: ARG002
        """The noise of ``count`` actions in training, drawn from ``generators["act_noise"]``: standard normal.

        ``first`` is the number of the first environment that they are for; the others follow.
        """
        return self._normal(count, "act_noise")

    def policy_layers(self) -> PolicyLayers:
        """What acts in an evaluation, plainly: copies of its layers, float32 on the CPU, and how they decide.

        Raises:
            RunError: it is more than linear layers and convolutions.
        """
        raise RunError(
            f"the policy of {self.config.algorithm} is more than linear layers and convolutions, and cannot act outside"
            " of its run; those of a2c, d4pg, dqn, ppo, sac and td3 can"
        )

    @abstractmethod
    def noise_sizes(self, batch_size: int) -> tuple[int, ...]:
        """How many vectors of normal numbers, each as long as an action, the noises of an update have."""

    def prepare(self, batch: Any) -> Any:
        """A batch as the parts want it; computed outside of the simulation, like all that happens to data before."""
        return batch

    @torch.no_grad()
    def act(self, observations: torch.Tensor, *, deterministic: bool, number: int = 0, first: int = 0) -> torch.Tensor:
        """Chooses actions: samples in training, the best ones in an evaluation.

        Args:
            observations: (n, observation), numbers of the format.
            deterministic: the best actions instead of samples.
            number: which of the actions of an evaluation these are. The random bits of stochastic rounding follow from
                it and from the updates so far, so that an evaluation neither depends on others nor disturbs training.
                Samples are counted by the agent itself.
            first: of samples, the number of the first environment that they are for; see :meth:`action_noise`.

        Returns:
            (n, action); NaN where the network has become NaN (0 if the baseline is coercion).
        """
        if deterministic:
            with self._looking_on(number), self.products or nullcontext():
                return self._coerced(self.best_actions(observations))
        self.actions += 1
        with self._arithmetic(self.actions, _ACT):
            noise = self.action_noise(len(observations), first)
            if not self.acting:
                return self._coerced(self.sample_actions(observations, noise))
        return self.acting(observations, noise)

    def be_quantized(self, *, quantized: bool) -> None:
        """Computes as ``config.qat`` says from here on, or as before that began."""
        if self.simulation is not None and quantized != self._quantized:
            change_to(self.simulation, self.config, quantized=quantized)
        self._quantized = quantized

    @torch.no_grad()
    def policy_at(self, observations: torch.Tensor) -> torch.Tensor:
        """:meth:`policy_outputs`, (n, output), looked at from outside of training, which it does not disturb."""
        with self._looking_on(0):
            return self._coerced(self.policy_outputs(observations))

    def update(self, batch: Any) -> Metrics:
        """One update: all parts whose turn it is.

        Args:
            batch: transitions, as the recorder gives them.

        Returns:
            Tensors whose means are worth logging; nothing has been copied from the device for them.
        """
        if self.compiled and self.compiled.reason:  # the compiler has failed, and what is made for it is slow without
            self._write_back()
            self.compiled = None
        prepared, noises = self.begin_update(batch)
        metrics: Metrics = {}
        for part in self.parts:
            if self.is_due(part):
                inputs = part.inputs(prepared, noises)
                self.begin_part(part)
                with nullcontext() if self.compiled else self.simulation or nullcontext():
                    compiled = self.compiled
                    metrics |= compiled.compute(part, inputs) if compiled else part.compute(self, *inputs)
        for name, optimizer in self.optimizers.items():
            if optimizer.norms:
                metrics |= {f"{name}_{what}": norm for what, norm in optimizer.norms.latest.items()}
        return metrics

    def watch_norms(self) -> None:
        """Updates return norms too, ``critic_weights_norm`` and so on; see ``StepNorms``. Not of compiled ones."""
        for name in self.networks.keys() & self.optimizers.keys():
            self.optimizers[name].norms = StepNorms(self.networks[name].layers[0].numel())

    def begin_part(self, part: Part) -> None:
        """Random bits are those of a part of this update from here on."""
        if self.simulation is not None:
            self.simulation.step = _PLACES * self.updates + part.draws

    def begin_update(self, batch: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """What an update needs beside the agent: the prepared batch and all noises."""
        self.updates += 1
        prepared = self.prepare(batch)
        sizes = self.noise_sizes(len(batch.rows))
        with self._arithmetic(self.updates, _NOISE):
            noises = torch.split(self._normal(sum(sizes), "update_noise"), list(sizes)) if sizes else ()
        return prepared, tuple(noises)

    def is_due(self, part: Part) -> bool:
        """Whether it is the part's turn in this update."""
        return self.updates % part.every == 0

    @property
    def row_size(self) -> int:
        """Numbers in a row of a batch."""
        return 2 * self.observation_size + self.action_size + 2

    def unpacked(self, rows: torch.Tensor) -> Any:
        """The batch that rows are, for learners from states."""
        return batch_of(rows, self.observation_size, self.action_size)

    def bound_to(self, tensors: dict[str, Any]) -> Self:
        """This learner with its tensors elsewhere, for programs; see ``TracedLearner`` for what ``tensors`` holds."""
        other = copy(self)
        other.compiled = None
        # Where this runs eagerly, the parameters are the agent's own, and must not be left with other gradients.
        own = {name: {**tensors[name], "parameters": tensors[name]["parameters"].detach()} for name in self.optimizers}
        other.optimizers = {name: one.bound_to(own[name]) for name, one in self.optimizers.items()}
        other.networks = {name: one.bound_to(own[name]["parameters"]) for name, one in self.networks.items()}
        other.averages = {name: one.bound_to(tensors[name]) for name, one in self.traceable_averages.items()}
        other.numbers = tensors["numbers"]
        other.bind()
        return other

    @property
    def traceable_averages(self) -> dict[str, TraceableAverage]:
        """``averages``, of a learner whose baseline can be compiled."""
        found = {name: one for name, one in self.averages.items() if isinstance(one, TraceableAverage)}
        assert len(found) == len(self.averages), "programs know no master weights"
        return found

    @property
    def numbers_to_act(self) -> dict[str, torch.Tensor]:
        """The entries of ``numbers`` that :meth:`sample_actions` needs in programs, as tensors."""
        return {}

    def acting_by(self, parameters: torch.Tensor, numbers: dict[str, torch.Tensor]) -> Self:
        """This learner with the parameters of what acts elsewhere, for a program that chooses actions."""
        other = copy(self)
        other.numbers = {**self.numbers, **numbers}
        other.networks = {**self.networks, self.acting_network: self.networks[self.acting_network].bound_to(parameters)}
        return other

    def quantized(self, quantization: Quantization, *, watch: bool = False) -> Self:
        """This learner as it acts quantized, with the weights of this moment: a copy for one evaluation.

        Args:
            quantization: how.
            watch: whether ``products`` of the copy notes what ranges activations have.
        """
        other = copy(self)
        if quantization.policy is None:
            other.simulation = simulation_of(self.config.model_copy(update={"observe": False}))
            if other.simulation is not None and self._quantized:
                change_to(other.simulation, self.config, quantized=True)
            parameters = [network.flat for network in self.networks.values()]
            other.products = QuantizedProducts(quantization, parameters, watch=watch)
            return other
        other.simulation = quantization.simulation(self.config.seed)
        other.layers_stored = None  # all of the inference is as the quantization says
        other.networks = {name: one.bound_to(quantization.number(one.flat)) for name, one in self.networks.items()}
        other.numbers = {
            name: quantization.number(one) if isinstance(one, torch.Tensor) else one
            for name, one in self.numbers.items()
        }
        other.bind()
        return other

    def next_draws(self) -> None:
        """Random bits are those of the next place from here on: they do not depend on how many were drawn before."""
        if self.simulation is not None:
            self.simulation.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically: weights, optimizers, averages, generators."""
        return {
            **self.weights(),
            **{f"{name}_average": average.state_dict() for name, average in self.averages.items()},
            **{f"{name}_optimizer": optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            **{name: generator.get_state() for name, generator in self.generators.items()},
            "updates": self.updates,
            "actions": self.actions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        assert self.compiled is None, "updates are compiled for an agent that is complete"
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

    def summarize(self, metrics: Metrics) -> dict[str, float]:
        """The numbers worth logging after an update, computed in full precision; this waits for the device.

        Args:
            metrics: what :meth:`update` returned.

        Returns:
            The mean of each metric, of ``td_error`` the mean square as ``critic_loss``, and the loss scales. Values and
            their errors are in the unit of rewards as they are, without ``reward_scale``.
        """
        self._write_back()
        units = {"q": self.reward_scale}
        means = {
            name: float(value.double().mean()) / units.get(name, 1.0)
            for name, value in metrics.items()
            if name != "td_error"
        }
        errors = metrics.get("td_error")
        loss = {} if errors is None else {"critic_loss": float((errors.double() / self.reward_scale).square().mean())}
        return means | loss | {f"{name}_loss_scale": one.scale for name, one in self.optimizers.items()}

    @property
    def loss_scale(self) -> float:
        """The loss scale of the leading optimizer, as it was when last written back."""
        return self.optimizers[self.config.leading].scale

    def layers(self) -> dict[str, list[torch.Tensor]]:
        """The layers of all networks, by name."""
        self._write_back()
        return {name: network.layers for name, network in self.networks.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """The flat parameters of networks and averages, by name, and what else is learned."""
        self._write_back()
        return {
            **{name: network.flat for name, network in self.networks.items()},
            **{name: average.average for name, average in self.averages.items()},
        }

    @property
    def scale_of_outputs(self) -> float:
        """The factor of the outputs of critics, but not of their gradients."""
        return self.reward_scale

    @property
    def values_are_exact(self) -> bool:
        """Whether what targets are made of is left unrounded, until the target is."""
        return self.stochastic_targets

    @in_role(Role.TARGETS)
    def targets_of(self, rewards: torch.Tensor, discounts: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """What values are moved towards, (n, 1): rewards + discounts * discount * (the value of what follows)."""
        if self.stochastic_targets:
            return stochastic_target(rewards, discounts, following, self.numbers["discount"])
        return add_product(rewards, discounts, following, self.numbers["discount"])

    @in_role(Role.AVERAGES)
    def update_averages(self, of: dict[str, str]) -> None:
        """Moves slow copies a step towards the networks they are copies of: ``{average: network}``."""
        for average, network in of.items():
            self.averages[average].update_(self.optimizers[network].parameters)
            self._coerced(self.averages[average].average)

    @in_role(Role.AVERAGES)
    def make_average(self, flat: torch.Tensor) -> MovingAverage:
        """The slow copy of parameters as the config asks for it; changes ``flat``, which is where it starts."""
        config = self.config
        assert isinstance(config, OffPolicyKeys), "others keep no averages"
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
        """The optimizer of parameters as the config asks for it.

        ``kahan``: compensated, if that fix is on. ``stored``: in formats of their own, if ``storage`` says so.
        """
        storage = self.config.storage if stored else None
        return NetworkOptimizer(flat, self.config, self.format, kahan=kahan, storage=storage)

    def constructing(self) -> AbstractContextManager[Any]:
        """The simulation, for what a constructor computes in the format."""
        return self._arithmetic(0, _NOISE)

    def before_update(self) -> AbstractContextManager[Any]:
        """The simulation, for what is computed of experience before the next update, which then takes no noise."""
        return self._arithmetic(self.updates + 1, _NOISE)

    def rounded_(self, parameters: torch.Tensor) -> torch.Tensor:
        """Initial parameters, in place, as numbers of the format."""
        return parameters if self.config.native else parameters.copy_(round(parameters, self.format))

    def _coerced(self, x: torch.Tensor) -> torch.Tensor:
        if self._coerced_to is not None:
            coerce_([x], self._coerced_to)
        return x

    def _normal(self, count: int, generator: str) -> torch.Tensor:
        shape = (count, self.action_size)
        return torch.randn(shape, generator=self.generators[generator], **self._noise_options).to(self.dtype)

    def _arithmetic(self, count: int, place: int) -> AbstractContextManager[Any]:
        """The simulation, drawing the random bits of stochastic rounding for this place of an update or action."""
        if self.simulation is None:
            return nullcontext()
        self.simulation.step = _PLACES * count + place
        return self.simulation

    def _looking_on(self, number: int) -> AbstractContextManager[Any]:
        """The simulation, drawing random bits for an action that is not part of training."""
        if self.simulation is None:
            return nullcontext()
        # Beyond the places of training; a place may come again after 2^31 of them, in another evaluation.
        self.simulation.step = _EVALUATION + (self.updates * _LONGEST_EVALUATION + number) % _EVALUATION
        return self.simulation

    def _write_back(self) -> None:
        if self.compiled:
            self.compiled.write_back()
