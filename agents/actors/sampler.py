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

_CHUNK = 16  # steps that an actor is asked for at a time
_AHEAD = 2  # chunks that an actor may be ahead of the learner
_PATIENCE = 300.0  # seconds without an answer of any actor; longer than each of them waits for anything
_PAUSE = 0.2


@final
class RemoteSampler:
    """Gives a run the samples of its actors as they come, a group for each actor, and publishes the learner's weights.

    The run asks for the next sample when it has learned from the last one. Actors are at most two chunks of 16 steps
    ahead of it, and wait then; where they are slower, the run waits. So the training intensity of a run is exact.

    Weights are handed to the quantizer, without waiting for it, so often that there are new ones for every pull.

    In lockstep, one actor after the other takes one step when all before it have been learned from. Before a step that
    begins with a pull, the run waits until the weights of that moment are published.

    Args:
        stage: with its quantizer; actors are started here.
        config: the config of the run.
        learner: the learner with the weights to publish.
        perceive: observations as the learner takes them.
    """

    is_remote, activity = True, "actors"

    def __init__(
        self, stage: Stage, config: WithActors, learner: Learner, perceive: Callable[[NDArray[Any]], torch.Tensor]
    ) -> None:
        assert config.actors
        self._stage, self._config, self._keys = stage, config, config.actors
        self._learner, self._perceive = learner, perceive
        count = config.actors.count
        self._each = config.environments // count
        self._explorers = [explorer_of(config, rank) for rank in range(count)]
        self._chunk: tuple[int, Chunk, int] | None = None  # whose, and the next of its steps
        self._ratios: NDArray[np.float64] | None = None  # of its steps, (steps, n)
        self._turn = 0
        self._since = 0  # transitions since weights were published
        self._heard = time.monotonic()
        self._steps = [0] * count
        self._earlier = [dict.fromkeys(ACTIVITIES, 0.0) for _ in range(count)]  # seconds of ended lives
        self._now = [dict.fromkeys(ACTIVITIES, 0.0) for _ in range(count)]
        self._pulled = [{"pulls": 0, "bytes": 0} for _ in range(count)]
        self._clock: list[list[float]] = []
        self._begun: list[tuple[int, NDArray[Any]]] = []
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
        """The sample that :meth:`wait` gives, if its actions are finite."""
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
            self._chunk = self._in_lockstep() if self._keys.lockstep else self._next_chunk()
            self._ratios = self._likelihoods(*self._chunk[:2]) if self._chunk else None
        elif self._since >= self._between:
            self._publish_news()
        return self._from_chunk() if self._chunk else None

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns the groups that have been restarted since the last call, and their observations."""
        found, self._begun = self._begun, []
        return found

    def pulls(self) -> list[dict[str, Any]]:
        """Returns the records to log of the pulls since the last call."""
        found, self._pulls = self._pulls, []
        return found

    def timing(self) -> dict[str, Any]:
        """Returns the part of ``timing.json`` about actors: seconds of each by activity; their mean at evaluations."""
        actors = [
            {"steps": steps, **pulled, "died": lives, "spent": {name: round(s, 4) for name, s in spent.items()}}
            for steps, pulled, lives, spent in zip(
                self._steps, self._pulled, self._stage.lives, self._spent(), strict=True
            )
        ]
        return {"actors": actors, "actor_clock": self._clock}

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress of the actors; in lockstep also everything that they need to continue identically."""
        own = (
            [self._stage.call(rank, "state_dict") for rank in range(self._keys.count)] if self._keys.lockstep else None
        )
        return {
            "steps": list(self._steps),
            "lives": list(self._stage.lives),
            "spent": self._spent(),
            "pulled": [dict(pulled) for pulled in self._pulled],
            "clock": [list(point) for point in self._clock],
            "turn": self._turn,
            "actors": own,
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Takes it over; actors begin other episodes, unless they are in lockstep.

        Returns:
            The observations of each group that its next step starts from, (n, observation).
        """
        self._steps, self._turn = list(state["steps"]), state["turn"]
        self._earlier, self._pulled = [dict(own) for own in state["spent"]], [dict(own) for own in state["pulled"]]
        self._clock = [list(point) for point in state["clock"]]
        lockstep = self._keys.lockstep
        self._stage.lives = [lives + (not lockstep) for lives in state["lives"]]
        if not lockstep:
            self._publish(wait=True)
        observations = self._start()
        if lockstep:
            return [self._stage.call(rank, "load_state_dict", own) for rank, own in enumerate(state["actors"])]
        self._begun = list(enumerate(observations))
        return observations

    # Chunks

    def _start(self) -> list[NDArray[Any]]:
        """Starts all actors; returns the observations of each."""
        for rank, steps in enumerate(self._steps):
            self._stage.start(rank, steps)
        found: dict[int, NDArray[Any]] = {}
        while len(found) < self._keys.count:
            found |= dict([self._answer()])
        if not self._keys.lockstep:
            for rank in found:
                self._ask(rank)
        return [found[rank] for rank in sorted(found)]

    def _ask(self, rank: int) -> None:
        for _ in range(_AHEAD):
            self._stage.ask(rank, _CHUNK)

    def _in_lockstep(self) -> tuple[int, Chunk, int]:
        rank = self._turn
        self._turn = (rank + 1) % self._keys.count
        if pulls_before(self._steps[rank], self._each, self._keys.pull_every):
            self._publish(wait=True)
        self._stage.ask(rank, 1)
        _, chunk = self._answer()
        return rank, chunk, 0

    def _next_chunk(self) -> tuple[int, Chunk, int] | None:
        self._publish_news()
        try:
            found = self._stage.receive()
        except ActorDied as died:
            self._replace(*died.args)
            return None
        if found is None:
            if time.monotonic() - self._heard > _PATIENCE:
                raise RunError(f"no actor has answered for {_PATIENCE:g} seconds; {GO_ON}")
            return None
        self._heard = time.monotonic()
        rank, answer = found
        if isinstance(answer, Chunk):
            return rank, answer, 0
        self._begun.append((rank, answer))
        self._ask(rank)
        return None

    def _replace(self, rank: int) -> None:
        """Starts another actor in place of a dead one."""
        self._earlier[rank] = self._spent()[rank]
        self._now[rank] = dict.fromkeys(ACTIVITIES, 0.0)
        self._stage.start(rank, self._steps[rank])
        self._since = self._between  # it needs weights, and the quantizer may have died with it

    def _answer(self) -> tuple[int, Any]:
        """The answer of any actor, waited for.

        Raises:
            RunError: it has failed or died, or none comes.
        """
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                found = self._stage.receive()
            except ActorDied as died:
                raise RunError(f"actor {died.args[0] + 1} of {self._keys.count} has died; {GO_ON}") from died
            if found:
                return found
        raise RunError(f"no actor has answered for {_PATIENCE:g} seconds; {GO_ON}")

    def _from_chunk(self) -> Sample:
        """The next sample of the chunk that is at hand."""
        assert self._chunk
        rank, chunk, i = self._chunk
        for pull in chunk.pulls:
            if pull.at == i:
                # The distance of the actor's policy from the learner's
                updates = self._learner.updates
                record: dict[str, Any] = {"actor": rank, "version": pull.version, "staleness": updates - pull.version}
                if pull.before is not None:
                    record["staleness_before"] = updates - pull.before
                if len(pull.states):
                    learners = self._learner_policy(pull.states)
                    record["kl"] = self._explorers[rank].divergence(learners, torch.tensor(pull.basis))
                self._pulls.append(record)
                self._pulled[rank]["pulls"] += 1
                self._pulled[rank]["bytes"] += pull.size
        sample = chunk.sample(i, rank)
        if self._ratios is not None:
            sample = sample._replace(ratios=self._ratios[i])
        self._steps[rank] += self._each
        self._since += self._each
        self._now[rank] = chunk.seconds
        # At evaluations, the seconds that an actor has spent: the mean of all
        config = self._config
        step = sum(self._steps) * config.action_repeat
        before = step - self._each * config.action_repeat
        if step // config.eval_every != before // config.eval_every or step >= config.steps > before:
            total = sum(sum(spent.values()) for spent in self._spent())
            self._clock.append([min(step, config.steps), round(total / self._keys.count, 4)])
        self._chunk = (rank, chunk, i + 1)
        if i + 1 == len(chunk.actions):
            self._chunk = None
            if not self._keys.lockstep:
                self._stage.ask(rank, _CHUNK)
        return sample

    # Weights

    @property
    def _between(self) -> int:
        """Transitions between publications, if the quantizer is that fast: every pull of every actor finds new ones."""
        return -(-self._keys.pull_every // self._keys.count)

    def _publish_news(self) -> None:
        """Publishes the weights if it is time to, or if those before were lost."""
        if self._stage.packs:
            return
        if self._since >= self._between or not self._stage.published():
            self._publish(wait=False)

    def _publish(self, *, wait: bool) -> None:
        policy = FullPolicy.of(self._learner.policy_layers())
        self._since = 0
        end = time.monotonic() + _PATIENCE
        while True:
            self._stage.publish(self._learner.updates, policy)
            if not wait or self._stage.published(_PATIENCE):
                return
            if time.monotonic() > end:
                raise RunError(f"the quantizer has not packed the weights within {_PATIENCE:g} seconds; {GO_ON}")
            time.sleep(_PAUSE)

    # What is recorded

    def _learner_policy(self, states: NDArray[np.float32]) -> torch.Tensor:
        """The policy of the learner, as it is now, in some states."""
        return self._learner.policy_at(self._perceive(states)).to("cpu", torch.float32)

    def _likelihoods(self, rank: int, chunk: Chunk) -> NDArray[np.float64] | None:
        """Returns ``Sample.ratios`` of each step of a chunk; None without importance weights."""
        if not self._keys.importance_weights:
            return None
        found = np.ones((len(chunk.choices), self._each))
        chosen = [(i, choice) for i, choice in enumerate(chunk.choices) if choice is not None]
        if not chosen:
            return found
        policies = self._learner_policy(np.concatenate([choice.states for _, choice in chosen]))
        for k, (i, choice) in enumerate(chosen):
            policy = policies[k * self._each : (k + 1) * self._each]
            steps = self._steps[rank] + i * self._each
            actions, own = torch.tensor(chunk.actions[i]), torch.tensor(choice.basis)  # Ray's arrays are read-only
            found[i] = self._explorers[rank].ratios(actions, policy, own, steps).numpy()
        return found

    def _spent(self) -> list[dict[str, float]]:
        """Seconds of each actor by activity."""
        return [
            {name: earlier[name] + now[name] for name in ACTIVITIES}
            for earlier, now in zip(self._earlier, self._now, strict=True)
        ]
