"""An agent in a run: a learner, its experience, and its current observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ..algorithms.learner import Learner
    from ..algorithms.part import Metrics
    from ..experience.sampling import Sample
    from .parts import Recorder


@final
class Agent:
    """A learner with its experience, and with the observations that its next actions answer to.

    Args:
        learner: as it is.
        recorder: keeps its experience.
        device: the device of tensors.

    Attributes:
        learner: the same.
        recorder: the same.
        observations: the observations of each group, in the learner's format.
    """

    def __init__(self, learner: Learner, recorder: Recorder, device: torch.device) -> None:
        self.learner, self.recorder = learner, recorder
        self.observations: list[torch.Tensor] = []
        self._device = device

    def begin(self, observations: Sequence[NDArray[Any]]) -> None:
        """Begins the first episodes, with the observations of each group, (n, observation)."""
        for number, observation in enumerate(one for part in observations for one in part):
            self.recorder.begin(observation, number)
        self.observations = [self.recorder.intake.perceive(part) for part in observations]

    def begin_anew(self, group: int, observations: NDArray[Any]) -> None:
        """Begins other episodes in a group, whatever its environments were at; observations are (n, observation)."""
        self.recorder.intake.forget(group)
        for i, observation in enumerate(observations):
            self.recorder.begin(observation, group * len(observations) + i)
        self.observations[group] = self.recorder.intake.perceive(observations)

    def choose(self, group: int, first: int, under_way: int) -> NDArray[np.floating[Any]]:
        """Actions for a group, as samplers ask for them: at first the recorder's, then the learner's."""
        observations = self.observations[group]
        explored = self.recorder.explore(len(observations), under_way)
        if explored is not None:
            return explored
        return self.recorder.intake.from_format(self.learner.act(observations, deterministic=False, first=first))

    def see(self, sample: Sample) -> Sequence[torch.Tensor] | torch.Tensor:
        """The transitions of a sample, as the recorder adds them; they lead to the agent's current observations."""
        rows = self.recorder.rows(self.observations[sample.group], sample)
        self.observations[sample.group] = self.recorder.intake.perceive(sample.steps.observations)
        return rows

    def due(self) -> Generator[Any, Metrics | None, None]:
        """Yields the batches to learn from now; is sent the result of the update with each."""
        return self.recorder.due()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically, but the episodes."""
        return {
            "agent": self.learner.state_dict(),
            **self.recorder.state_dict(),
            # What was perceived by other moments than those of now.
            **({"observations": [x.cpu() for x in self.observations]} if self.recorder.intake.normalizer else {}),
        }

    def load_state_dict(self, state: dict[str, Any], observations: Sequence[NDArray[Any]]) -> None:
        """Takes over what :meth:`state_dict` returned, with the observations of each group, (n, observation)."""
        self.learner.load_state_dict(state["agent"])
        self.recorder.load_state_dict(state)
        self.observations = [self.recorder.intake.perceive(part) for part in observations]
        if self.recorder.intake.normalizer:
            self.observations = [found.to(self._device) for found in state["observations"]]
