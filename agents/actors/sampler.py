"""Experience from actors: the samples of a run with remote actors, and the learner's weights sent to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithms.explorer import explorer_of
from ..algorithms.learner import Learner
from ..config.actor_keys import WithActors
from ..errors import RunError
from ..experience.sampling import NotFinite, Sample
from .chunks import ACTIVITIES, Chunk, pulls_before
from .stage import GO_ON, ActorDied, Stage
from .weights import FullPolicy

_CHUNK = 16  # Steps of one request to an actor.
_AHEAD = 2  # Chunks that an actor may be ahead of the learner.
_PATIENCE = 300.0  # seconds without an answer of any actor; longer than each of them waits for anything
_PAUSE = 0.2


@final
class RemoteSampler:
    """Supplies a run with the samples of its actors, a group for each actor, and publishes the learner's weights.

    The run requests the next sample when it has learned from the last one. Actors are at most two chunks of 16 steps
    ahead of the run, and then wait; the run waits for slower actors. So the training intensity of a run is exact.

    Weights are sent to the quantizer, without waiting for it, often enough that there are new ones for every pull.

    In lockstep, actors take single steps in turn, each after the run has learned from all earlier steps. Before a step
    that begins with a pull, the run waits until its current weights are published.

    Args:
        stage: the Ray processes of the run; this class starts its actors.
        config: the config of the run.
        learner: the learner with the weights to publish.
        perceive: converts observations to the learner's input.
    """

    is_remote, activity = True, "actors"

    def __init__(
        self, stage: Stage, config: WithActors, learner: Learner, perceive: Callable[[NDArray[Any]], torch.Tensor]
    ) -> None:
        assert config.actors
        self._stage, self._config, self._keys = stage, config, config.actors
        self._learner, self._perceive = learner, perceive
        count = config.actors.count
        self._per_actor = config.environments // count
        self._explorers = [explorer_of(config, rank) for rank in range(count)]
        self._chunk: tuple[int, Chunk, int] | None = None  # with the rank of its actor, and the next step to return
        self._ratios: NDArray[np.float64] | None = None  # the importance ratios of the chunk's steps, (steps, n)
        self._turn = 0
        self._unpublished = 0  # transitions since weights were published
        self._last_answer = time.monotonic()
        self._steps = [0] * count
        self._earlier_seconds = [dict.fromkeys(ACTIVITIES, 0.0) for _ in range(count)]  # seconds of ended lives
        self._current_seconds = [dict.fromkeys(ACTIVITIES, 0.0) for _ in range(count)]
        self._pull_totals = [{"pulls": 0, "bytes": 0} for _ in range(count)]
        self._clock: list[list[float]] = []
        self._restarted: list[tuple[int, NDArray[Any]]] = []
        self._pulls: list[dict[str, Any]] = []

    def begin(self) -> list[NDArray[Any]]:
        """Publishes the first weights, and begins the first episodes; returns the observations of each group."""
        self._publish(wait=True)
        return self._start()

    def next(
        self,
        choose: Callable[[int, int, int], NDArray[np.floating[Any]]],  # noqa: ARG002  actors do
        waits: Callable[[int], bool],  # noqa: ARG002
    ) -> Sample | None:
        """Returns the result of :meth:`wait`, if its actions are finite."""
        sample = self.wait()
        if sample and not np.isfinite(sample.actions).all():
            raise NotFinite
        return sample

    def wait(self) -> Sample | None:
        """Returns the next sample, or None if it is not ready yet, so that the run can check whether to stop.

        Raises:
            RunError: an actor or the quantizer has failed, or does not answer.
        """
        if self._chunk is None:
            self._chunk = self._lockstep_chunk() if self._keys.lockstep else self._next_chunk()
            self._ratios = self._likelihoods(*self._chunk[:2]) if self._chunk else None
        elif self._unpublished >= self._publish_every:
            self._publish_if_due()
        return self._from_chunk() if self._chunk else None

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns the groups that have been restarted since the last call, and their observations."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def pulls(self) -> list[dict[str, Any]]:
        """Returns the records to log of the pulls since the last call."""
        records, self._pulls = self._pulls, []
        return records

    def timing(self) -> dict[str, Any]:
        """Returns the part of ``timing.json`` about actors: seconds of each by activity; their mean at evaluations."""
        actors = [
            {"steps": steps, **pulled, "died": lives, "spent": {name: round(s, 4) for name, s in spent.items()}}
            for steps, pulled, lives, spent in zip(
                self._steps, self._pull_totals, self._stage.lives, self._total_seconds(), strict=True
            )
        ]
        return {"actors": actors, "actor_clock": self._clock}

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the actors; in lockstep also their states, to continue identically."""
        actors = (
            [self._stage.call(rank, "state_dict") for rank in range(self._keys.count)] if self._keys.lockstep else None
        )
        return {
            "steps": list(self._steps),
            "lives": list(self._stage.lives),
            "spent": self._total_seconds(),
            "pulled": [dict(pulled) for pulled in self._pull_totals],
            "clock": [list(point) for point in self._clock],
            "turn": self._turn,
            "actors": actors,
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Restores the progress; actors begin other episodes, except in lockstep.

        Returns:
            The observations of each group that its next step starts from, (n, observation).
        """
        self._steps, self._turn = list(state["steps"]), state["turn"]
        self._earlier_seconds = [dict(seconds) for seconds in state["spent"]]
        self._pull_totals = [dict(totals) for totals in state["pulled"]]
        self._clock = [list(point) for point in state["clock"]]
        lockstep = self._keys.lockstep
        self._stage.lives = [lives + (not lockstep) for lives in state["lives"]]
        if not lockstep:
            self._publish(wait=True)
        observations = self._start()
        if lockstep:
            return [self._stage.call(rank, "load_state_dict", actor) for rank, actor in enumerate(state["actors"])]
        self._restarted = list(enumerate(observations))
        return observations

    # Chunks

    def _start(self) -> list[NDArray[Any]]:
        """Starts all actors; returns the observations of each."""
        for rank, steps in enumerate(self._steps):
            self._stage.start(rank, steps)
        observations: dict[int, NDArray[Any]] = {}
        while len(observations) < self._keys.count:
            observations |= dict([self._wait_for_answer()])
        if not self._keys.lockstep:
            for rank in observations:
                self._ask(rank)
        return [observations[rank] for rank in sorted(observations)]

    def _ask(self, rank: int) -> None:
        for _ in range(_AHEAD):
            self._stage.ask(rank, _CHUNK)

    def _lockstep_chunk(self) -> tuple[int, Chunk, int]:
        rank = self._turn
        self._turn = (rank + 1) % self._keys.count
        if pulls_before(self._steps[rank], self._per_actor, self._keys.pull_every):
            self._publish(wait=True)
        self._stage.ask(rank, 1)
        _, chunk = self._wait_for_answer()
        return rank, chunk, 0

    def _next_chunk(self) -> tuple[int, Chunk, int] | None:
        self._publish_if_due()
        try:
            received = self._stage.receive()
        except ActorDied as died:
            self._replace(*died.args)
            return None
        if received is None:
            if time.monotonic() - self._last_answer > _PATIENCE:
                raise RunError(f"no actor has answered for {_PATIENCE:g} seconds; {GO_ON}")
            return None
        self._last_answer = time.monotonic()
        rank, answer = received
        if isinstance(answer, Chunk):
            return rank, answer, 0
        self._restarted.append((rank, answer))
        self._ask(rank)
        return None

    def _replace(self, rank: int) -> None:
        """Replaces a dead actor."""
        self._earlier_seconds[rank] = self._total_seconds()[rank]
        self._current_seconds[rank] = dict.fromkeys(ACTIVITIES, 0.0)
        self._stage.start(rank, self._steps[rank])
        self._unpublished = self._publish_every  # publishes at once, since the quantizer may also have died

    def _wait_for_answer(self) -> tuple[int, Any]:
        """Waits for an answer of any actor, and returns the actor's rank and the answer.

        Raises:
            RunError: an actor has failed or died, or none answers in time.
        """
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                received = self._stage.receive()
            except ActorDied as died:
                raise RunError(f"actor {died.args[0] + 1} of {self._keys.count} has died; {GO_ON}") from died
            if received:
                return received
        raise RunError(f"no actor has answered for {_PATIENCE:g} seconds; {GO_ON}")

    def _from_chunk(self) -> Sample:
        """Returns the next sample of the current chunk."""
        assert self._chunk
        rank, chunk, i = self._chunk
        for pull in chunk.pulls:
            if pull.at == i:
                # Logs the distance of the actor's policy from the learner's
                updates = self._learner.updates
                record: dict[str, Any] = {"actor": rank, "version": pull.version, "staleness": updates - pull.version}
                if pull.before is not None:
                    record["staleness_before"] = updates - pull.before
                if len(pull.states):
                    learner_policy = self._learner_policy(pull.states)
                    record["kl"] = self._explorers[rank].divergence(learner_policy, torch.tensor(pull.basis))
                self._pulls.append(record)
                self._pull_totals[rank]["pulls"] += 1
                self._pull_totals[rank]["bytes"] += pull.size
        sample = chunk.sample(i, rank)
        if self._ratios is not None:
            sample = sample._replace(ratios=self._ratios[i])
        self._steps[rank] += self._per_actor
        self._unpublished += self._per_actor
        self._current_seconds[rank] = chunk.seconds
        # At evaluations notes the seconds that actors have spent on average
        config = self._config
        step = sum(self._steps) * config.action_repeat
        previous = step - self._per_actor * config.action_repeat
        if step // config.eval_every != previous // config.eval_every or step >= config.steps > previous:
            total = sum(sum(spent.values()) for spent in self._total_seconds())
            self._clock.append([min(step, config.steps), round(total / self._keys.count, 4)])
        self._chunk = (rank, chunk, i + 1)
        if i + 1 == len(chunk.actions):
            self._chunk = None
            if not self._keys.lockstep:
                self._stage.ask(rank, _CHUNK)
        return sample

    # Weights

    @property
    def _publish_every(self) -> int:
        """Transitions between publications, for a fast quantizer: every pull of every actor receives new weights."""
        return -(-self._keys.pull_every // self._keys.count)

    def _publish_if_due(self) -> None:
        """Publishes the weights if it is time, or if the last ones were lost with the quantizer."""
        if self._stage.packs:
            return
        if self._unpublished >= self._publish_every or not self._stage.published():
            self._publish(wait=False)

    def _publish(self, *, wait: bool) -> None:
        policy = FullPolicy.of(self._learner.policy_layers())
        self._unpublished = 0
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._stage.publish(self._learner.updates, policy)
            if not wait or self._stage.published(_PATIENCE):
                return
            if time.monotonic() > deadline:
                raise RunError(f"the quantizer has not packed the weights within {_PATIENCE:g} seconds; {GO_ON}")
            time.sleep(_PAUSE)

    # Records

    def _learner_policy(self, states: NDArray[np.float32]) -> torch.Tensor:
        """Returns the learner's current policy in some states."""
        return self._learner.policy_at(self._perceive(states)).to("cpu", torch.float32)

    def _likelihoods(self, rank: int, chunk: Chunk) -> NDArray[np.float64] | None:
        """Returns ``Sample.ratios`` of each step of a chunk; None without importance weights."""
        if not self._keys.importance_weights:
            return None
        ratios = np.ones((len(chunk.choices), self._per_actor))
        choices = [(i, choice) for i, choice in enumerate(chunk.choices) if choice is not None]
        if not choices:  # All actions were random.
            return ratios
        policies = self._learner_policy(np.concatenate([choice.states for _, choice in choices]))  # At once.
        for k, (i, choice) in enumerate(choices):
            policy = policies[k * self._per_actor : (k + 1) * self._per_actor]
            steps = self._steps[rank] + i * self._per_actor
            actions, basis = torch.tensor(chunk.actions[i]), torch.tensor(choice.basis)  # Ray's arrays are read-only
            ratios[i] = self._explorers[rank].ratios(actions, policy, basis, steps).numpy()
        return ratios

    def _total_seconds(self) -> list[dict[str, float]]:
        """Returns the seconds of each actor by activity, over all its lives."""
        return [
            {name: earlier[name] + current[name] for name in ACTIVITIES}
            for earlier, current in zip(self._earlier_seconds, self._current_seconds, strict=True)
        ]
