"""An actor: a process with environments and a copy of the policy in a separate format, which pulls new weights."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..acting.engines import Engine, SimulatedEngine
from ..acting.packed import PackedPolicy
from ..algorithms.explorer import explorer_of
from ..config.actor_keys import WithActors
from ..config.own_algorithms import import_as_told
from ..config.train_config import TrainConfig
from ..environments.parallel import Steps, VectorEnvironment
from ..errors import RunError
from ..experience.sampling import LocalSampler, Sample, random_actions
from ..models.policy_layers import Decision
from ..streams import Stream, sequence, torch_generator
from .chunks import ACTIVITIES, Chunk, PolicyChoice, Pull, pulls_before
from .weights import opened

_Weights = tuple[int, NDArray[np.uint8]]  # The version and the packed weights.
_SECONDS_TO_PULL = 120.0  # For the first weights; a machine may be busy with starting processes.
_SECONDS_TO_ANSWER = 30.0  # For later weights; without them an actor continues with its current ones.
_PAUSE = 0.2


class Actor:
    """A Ray actor that steps its environments on request; every call returns a :class:`Chunk`.

    Its results depend only on the run's seed, its rank and life, and the weights that it pulls: the first life of
    actor 0 has the same exploration and episodes as a learner without actors.

    Args:
        order: ``config`` of the run as JSON values, ``opening`` of an environment, ``rank``, ``life`` (how often this
            actor has been started again), and ``steps`` that it has taken in earlier lives.
        quantizer: the source of weights: the handle of a Ray actor.
    """

    def __init__(self, order: dict[str, Any], quantizer: Any) -> None:
        import ray  # noqa: PLC0415  we are inside of it

        torch.set_num_threads(1)
        import_as_told(order)
        config = TrainConfig(**order["config"])
        assert isinstance(config, WithActors)
        assert config.actors
        self._ray, self._quantizer, self._config, self._keys = ray, quantizer, config, config.actors
        rank, life, self._steps = order["rank"], order["life"], order["steps"]
        count = config.environments // self._keys.count
        stream_key = (rank, life) if rank or life else ()  # The first life of actor 0 has the streams of a learner.
        self._sizes = environments = VectorEnvironment(order["opening"], [count], [True])
        numbers = range(rank * count, (rank + 1) * count)
        life_key = (life,) if life else ()
        environments.groups[0].seed([sequence(config.seed, Stream.ENVIRONMENT, i, *life_key) for i in numbers])
        self._sampler = LocalSampler(
            environments.groups, clip_rewards=config.clip_rewards, reward_scale=config.scale_of_rewards
        )
        self._random = np.random.default_rng(sequence(config.seed, Stream.SEED_ACTIONS, *stream_key))
        self._random_steps = -(-config.seed_steps // self._keys.count)
        self._explorer = explorer_of(config, rank, self._steps, stream_key)
        self._noise = torch_generator(config.seed, Stream.ACTOR_CONTROL, torch.device("cpu"), rank, life)
        self._engine: Engine | NoisyPolicy | None = None
        self._weights: _Weights | None = None
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._observations: NDArray[np.float32]

    def begin(self) -> NDArray[Any]:
        """Begins the first episodes; returns their observations, (n, observation)."""
        (observations,) = self._sampler.begin()
        self._observations = self._perceived(observations)
        return observations

    def collect(self, count: int) -> Chunk:
        """Takes this number of steps, and pulls new weights when due.

        Raises:
            RunError: weights were not available for too long.
        """
        samples: list[Sample] = []
        pulls: list[Pull] = []
        choices: list[PolicyChoice | None] = []
        for i in range(count):
            is_due = pulls_before(self._steps, len(self._observations), self._keys.pull_every)
            if (is_due or self._weights is None) and (pull := self._pull(i)):
                pulls.append(pull)
            actions, basis = self._choose()
            choices.append(None if basis is None else PolicyChoice(self._observations, basis))
            if not np.isfinite(actions).all():  # A sample without a step, with which the run crashes.
                zeros, observations = np.zeros(len(actions)), self._observations
                samples.append(Sample(0, actions, Steps(observations, zeros, zeros, zeros != 0, observations), zeros))
                break
            with self._measure("environment"):
                sample = self._sampler.act(actions)
            assert sample is not None  # A single group returns its outcome at once.
            samples.append(sample)
            self._observations = self._perceived(sample.steps.observations)
            self._steps += len(actions)
        # Each pull with the choices up to the next one.
        ends = [*(pull.at for pull in pulls), count][1:]
        complete_pulls = [pull.shown(choices[pull.at : end]) for pull, end in zip(pulls, ends, strict=True)]
        return Chunk.of(samples, complete_pulls, self._seconds, choices if self._keys.importance_weights else [])

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically: plain values and tensors."""
        version, blob = self._weights or (None, None)
        return {
            "sampler": self._sampler.state_dict(),
            "explorer": self._explorer.state_dict(),
            "noise": self._noise.get_state(),
            "random": json.dumps(self._random.bit_generator.state),
            "steps": self._steps,
            "version": version,
            "blob": None if blob is None else torch.from_numpy(blob.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        """Restores the state; returns the observations that it acts on next."""
        (observations,) = self._sampler.load_state_dict(state["sampler"])
        self._observations = self._perceived(observations)
        self._explorer.load_state_dict(state["explorer"])
        self._noise.set_state(state["noise"])
        self._random.bit_generator.state = json.loads(state["random"])
        self._steps = state["steps"]
        if state["version"] is not None:
            self._take((state["version"], state["blob"].numpy()))
        return observations

    def process_id(self) -> int:
        """Returns the id of the actor's process."""
        return os.getpid()

    def _choose(self) -> tuple[NDArray[np.floating[Any]], NDArray[np.float32] | None]:
        """Returns actions, (n, action), and the data for computing divergences; at first random actions, and None."""
        count, action_size = len(self._observations), self._sizes.action_size
        if self._steps < self._random_steps:
            drawn = random_actions(self._random, count, action_size, discrete=self._sizes.discrete)
            return drawn.astype(np.float32), None
        if self._engine is None:
            return np.full((count, action_size), np.nan, dtype=np.float32), None
        with self._measure("step"):
            outputs, best = map(torch.from_numpy, self._engine.outputs_and_actions(self._observations))
            actions = self._explorer.act(best)
        return actions.numpy(), self._explorer.basis(outputs, best).numpy()

    def _pull(self, at: int) -> Pull | None:
        """Loads the newest weights; returns None if they are not new, or not available."""
        previous_version = self._weights[0] if self._weights else None
        start = time.perf_counter()
        pulled = self._newest(_SECONDS_TO_PULL if previous_version is None else 0.0)
        self._seconds["pull"] += time.perf_counter() - start
        if pulled is None:
            return None
        self._take(pulled)
        empty = np.zeros((0, 0), dtype=np.float32)
        return Pull(at, pulled[0], previous_version, pulled[1].nbytes, empty, empty)

    def _newest(self, patience: float) -> _Weights | None:
        """Returns the weights published last if they are new, else None; waits ``patience`` seconds for the first ones.

        Raises:
            RunError: nothing came.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                latest = self._ray.get(self._quantizer.latest.remote(), timeout=_SECONDS_TO_ANSWER)
                if latest and not (self._weights and self._weights[0] == latest[0]):
                    version, (reference,) = latest
                    return version, self._ray.get(reference, timeout=_SECONDS_TO_ANSWER)
            except self._ray.exceptions.RayError:
                pass  # The quantizer has died, and Ray restarts it.
            if self._weights:
                return None
            if time.monotonic() > deadline:
                raise RunError(f"no weights were published within {patience:g} seconds")
            time.sleep(_PAUSE)

    def _take(self, weights: _Weights) -> None:
        """Makes an engine from a message, or None from an empty one: such weights are not finite, and cannot act."""
        with self._measure("deserialize"):
            message = weights[1].tobytes()
        with self._measure("load"):
            if message and self._keys.noise_of:
                self._engine = NoisyPolicy(message, self._keys.noise_of, self._noise)
            else:
                self._engine = opened(message, self._keys)
        self._weights = weights

    def _perceived(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Converts observations to the policy's input, (n, ...): numbers, or bytes of images / 255."""
        numbers = observations.astype(np.float32).reshape(-1, *self._sizes.observation_shape)
        return numbers / np.float32(255) if observations.dtype == np.uint8 else numbers

    @contextmanager
    def _measure(self, activity: str) -> Iterator[None]:
        """Counts the processor time of the block, which excludes other processes of the machine."""
        start = time.thread_time()
        try:
            yield
        finally:
            self._seconds[activity] += time.thread_time() - start


@final
class NoisyPolicy:
    """Acts like an engine, with the outputs y + |q - y| u, where y is computed in fp32 and q in a format.

    The noise has the length of the format's error in each state, and a direction u drawn uniformly at each step. So
    both perturbations are equally large, but rounding errors repeat in the same state, and noise does not. Components
    without an effect are removed from the error and from u: if the largest output decides, the mean of the outputs, and
    in a categorical head the mean of each action's logits.

    Args:
        message: a packed policy in fp32.
        format: the format that causes the error, in weights and activations; see ``SimulatedEngine``.
        generator: draws the directions.
    """

    def __init__(self, message: bytes, format: str, generator: torch.Generator) -> None:
        packed = PackedPolicy.from_bytes(message)
        self._exact = SimulatedEngine(message)
        self._rounded = SimulatedEngine(PackedPolicy.of(packed.policy, format).to_bytes())
        # The number of parts of the outputs in which adding a constant changes no action.
        self._parts = {Decision.LARGEST: 1, Decision.LARGEST_MEAN: packed.layout.action_size}.get(
            packed.layout.decision
        )
        self._generator = generator

    def outputs_and_actions(self, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the outputs with noise, (n, outputs), and the actions, (n, action); NaN for outputs with NaN."""
        exact, rounded = (
            torch.from_numpy(engine.outputs_and_actions(observations)[0]).double()
            for engine in (self._exact, self._rounded)
        )
        direction = torch.randn(exact.shape, generator=self._generator, dtype=torch.float64)
        error = rounded - exact
        if self._parts:  # Removes the components without an effect.
            centred = [x.view(len(x), self._parts, -1) for x in (error, direction)]
            error, direction = ((x - x.mean(2, keepdim=True)).flatten(1) for x in centred)
        length, direction_length = (x.norm(dim=1, keepdim=True) for x in (error, direction))
        noisy = (exact + direction * (length / direction_length).where(direction_length != 0, 0.0)).float()
        return noisy.numpy(), self._exact.decided(noisy).numpy()
