"""A sampler with its own learner: another agent acts and learns, and the run learns from that agent's experience."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..experience.sampling import LocalSampler, NotFinite, Sample
from .agent import Agent


@final
class SamplerLearner:
    """Gives a run the experience of another agent, which acts and learns exactly as in a separate run.

    The agent has its own format, batches and replay buffer. It learns from each transition before the run does. So its
    episodes are the same as in a separate run, bit for bit, whatever the run makes of them.

    Source:
        Stooke & Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 5.5 ("Secondary-Learner
        Experiment": this is the sampler-learner, the run is the secondary learner), Figures 5 to 7.

    Args:
        sampler: the sampler of the environments that the agent acts in, with rewards in its scale.
        agent: the agent that acts.
        factor: the factor applied to rewards for the run: its scale over the agent's, a power of two.
    """

    is_remote, activity = False, "sampler-learner"

    def __init__(self, sampler: LocalSampler, agent: Agent, factor: float) -> None:
        self._sampler, self._agent, self._factor = sampler, agent, factor

    def begin(self) -> list[NDArray[Any]]:
        """Begins the first episodes; returns the observations of each group."""
        observations = self._sampler.begin()
        self._agent.begin(observations)
        return observations

    def next(
        self,
        choose: Callable[[int, int, int], NDArray[np.floating[Any]]],  # noqa: ARG002  the agent does
        waits: Callable[[int], bool],  # noqa: ARG002
    ) -> Sample | None:
        """Returns the next sample, after the agent has learned from it; see ``Sampler``."""
        agent = self._agent
        try:
            sample = self._sampler.next(agent.choose, agent.recorder.waits)
        except NotFinite:
            raise NotFinite("the policy of the sampler-learner took a non-finite action in training") from None
        if sample is None:
            return None
        for i, row in enumerate(agent.see(sample)):
            agent.recorder.add(row, sample, i)
            self._learn()
        if self._factor == 1:
            return sample
        return sample._replace(steps=sample.steps._replace(rewards=sample.steps.rewards * self._factor))

    def _learn(self) -> None:
        due, learned = self._agent.due(), None
        while True:
            try:
                batch = due.send(learned)
            except StopIteration:
                return
            learned = self._agent.learner.update(batch)

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns no groups: none is ever restarted."""
        return self._sampler.begun()

    def pulls(self) -> list[dict[str, Any]]:
        """Returns no pulls: weights are not needed."""
        return self._sampler.pulls()

    def timing(self) -> dict[str, Any]:
        """Returns nothing."""
        return self._sampler.timing()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically, the agent with it."""
        return {"environment": self._sampler.state_dict(), **self._agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Takes it over; returns the observations of each group that its next step starts from."""
        observations = self._sampler.load_state_dict(state["environment"])
        self._agent.load_state_dict(state, observations)
        return observations
