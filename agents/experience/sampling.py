"""Samplers, which supply a run with experience, and the sampler of local environments, in alternating groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..environments.parallel import EnvironmentGroup, Steps
    from .normalization import RewardNormalizer


class Sample(NamedTuple):
    """A step of a group of environments, a row per environment."""

    group: int
    """The number of the group."""
    actions: NDArray[np.floating[Any]]
    """(n, action), before any clipping."""
    steps: Steps
    """The results of the actions."""
    returns: NDArray[np.float64]
    """(n,): rewards of the episodes so far."""
    first: int = 0
    """The number of the group's first environment among all."""
    ratios: NDArray[np.float64] | None = None
    """(n,): probabilities of the actions under the learner's policy over the actor's, at most 1; None: all are 1."""


class NotFinite(Exception):  # noqa: N818  not an error of the program: the run counts as crashed
    """Raised for an action in training that is not finite."""


class Sampler(Protocol):
    """The source of the samples that a run learns from: its own environments, or remote actors.

    Attributes:
        is_remote: whether other processes act.
        activity: the activity that the time of :meth:`next` counts towards.
    """

    is_remote: bool
    activity: str

    def begin(self) -> list[NDArray[Any]]:
        """Begins the first episodes; returns the observations of each group, (n, observation)."""

    def next(
        self, choose: Callable[[int, int, int], NDArray[np.floating[Any]]], waits: Callable[[int], bool]
    ) -> Sample | None:
        """Returns the next sample, or None if it is not ready.

        Args:
            choose: returns actions, (n, action), for a group, given its index, the index of its first environment, and
                the number of pending actions (without a returned outcome). Called only by local samplers.
            waits: returns whether to take no more actions, given the number of pending ones.

        Raises:
            NotFinite: an action is not finite.
        """

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns the groups that have been restarted since the last call, and their observations."""

    def pulls(self) -> list[dict[str, Any]]:
        """Returns the records to log of the pulls of weights since the last call."""

    def timing(self) -> dict[str, Any]:
        """Returns the sampler's entries of ``timing.json``."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the sampler's progress."""

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Restores the progress; returns for each group the observations that its next step starts from."""


@final
class LocalSampler:
    """Submits actions to one group after the other, and returns the outcome of the next group's earlier actions.

    While the caller learns from the sample of one group, the others step (in worker processes, if there are any). With
    one group, it returns the outcome of its action at once.

    Its state is, for each environment, the random state at the beginning of the episode and the actions since then,
    which are repeated when it is restored. So it can be saved at any time, and the state of the environments
    themselves need not be saved.

    Args:
        groups: the groups of environments, seeded.
        clip_rewards: whether to clip the rewards of samples to [-1, 1]; returns are sums of the original rewards.
        reward_scale: the factor applied to the rewards of samples afterwards.
        normalize: maps the rewards of a step of a group, given its index and which episodes ended, to a sample's
            rewards (see :class:`~.normalization.RewardNormalizer`); before ``reward_scale``. None: unchanged.
        starts: for each environment, in the order of the groups, the actions that its first episode begins with,
            (number, action). They are not experience, but count in the episode's return and are repeated with it.

    Attributes:
        turn: the index of the group that acts next; it has no pending actions.
    """

    is_remote, activity = False, "environment"

    def __init__(
        self,
        groups: Sequence[EnvironmentGroup],
        *,
        clip_rewards: bool = False,
        reward_scale: float = 1.0,
        normalize: RewardNormalizer | None = None,
        starts: Sequence[NDArray[np.floating[Any]]] | None = None,
    ) -> None:
        self._groups, self._starts = groups, starts
        self._clip_rewards, self._reward_scale, self._normalize = clip_rewards, reward_scale, normalize
        self.turn = 0
        self._pending = [False for _ in groups]
        # By group and environment: the actions of the current episode.
        self._actions: list[list[list[NDArray[Any]]]] = [[[] for _ in range(len(group))] for group in groups]
        self._returns = [np.zeros(len(group)) for group in groups]

    @property
    def under_way(self) -> int:
        """The number of pending actions, without a returned outcome."""
        return sum(len(group) for group, pending in zip(self._groups, self._pending, strict=True) if pending)

    @property
    def first(self) -> int:
        """The number, among all environments, of the first one in the group that acts next."""
        return self._first(self.turn)

    def begin(self) -> list[NDArray[Any]]:  # noqa: D102
        starts = self._starts
        if starts is None:
            return [group.reset() for group in self._groups]
        # ``starts`` are in the order of all environments: each group has a slice.
        counts = [len(group) for group in self._groups]
        ends = np.cumsum(counts).tolist()
        return [self._repeat(i, starts[end - n : end]) for i, (n, end) in enumerate(zip(counts, ends, strict=True))]

    def next(  # noqa: D102
        self, choose: Callable[[int, int, int], NDArray[np.floating[Any]]], waits: Callable[[int], bool]
    ) -> Sample | None:
        if waits(self.under_way):  # Such as at the end of a rollout.
            return self.wait()
        actions = choose(self.turn, self.first, self.under_way)
        if not np.isfinite(actions).all():
            raise NotFinite
        return self.act(actions)

    def begun(self) -> list[tuple[int, NDArray[Any]]]:
        """Returns no groups: none is ever restarted."""
        return []

    def pulls(self) -> list[dict[str, Any]]:
        """Returns no pulls: weights are not needed."""
        return []

    def timing(self) -> dict[str, Any]:
        """Returns nothing."""
        return {}

    def act(self, actions: NDArray[np.floating[Any]]) -> Sample | None:
        """Submits actions to the group ``turn``, and advances ``turn`` to the next group.

        Args:
            actions: (n, action), finite; the environment clips them to [-1, 1], the sample contains them unclipped.

        Returns:
            The sample of the group that is next; None if it has no pending actions.
        """
        self._submit(self.turn, actions)
        self.turn = (self.turn + 1) % len(self._groups)
        return self._collect(self.turn) if self._pending[self.turn] else None

    def wait(self) -> Sample:
        """Returns the sample of a group with pending actions, which must exist, without submitting new ones."""
        return self._collect(self._pending.index(True))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that is needed to continue identically: plain values and tensors."""
        return {
            "turn": self.turn,
            "pending": list(self._pending),
            # With a pending step, the episode of the last step counts, even if the worker has begun the next one.
            "random_states": [
                group.random_states(stepped=pending) for group, pending in zip(self._groups, self._pending, strict=True)
            ],
            "actions": [[torch.from_numpy(np.array(history)) for history in group] for group in self._actions],
            **({"normalized_rewards": self._normalize.state_dict()} if self._normalize else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Restores the state by repeating the unfinished episodes.

        Returns:
            For each group the observations that its pending step, or else its next one, starts from, (n, observation).
        """
        self.turn = state["turn"]
        if self._normalize:
            self._normalize.load_state_dict(state["normalized_rewards"])
        observations = []
        for number, group in enumerate(self._groups):
            group.set_random_states(state["random_states"][number])
            histories = [history.numpy() for history in state["actions"][number]]
            # The last action of a pending step is not repeated, but submitted: its outcome is the next sample.
            pending = [history[-1] for history in histories] if state["pending"][number] else []
            observations.append(self._repeat(number, [history[:-1] for history in histories] if pending else histories))
            if pending:
                self._submit(number, np.stack(pending))
        return observations

    def _repeat(self, number: int, histories: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Begins episodes in a group and takes the actions of each environment; returns the observations after them."""
        group = self._groups[number]
        observations = group.reset()
        current: list[list[NDArray[Any]]] = [[] for _ in histories]
        for i in range(max(map(len, histories))):
            active = np.array([i < len(history) for history in histories])
            filler = next(history[i] for history in histories if i < len(history))  # For environments that do not step.
            group.submit(np.stack([history[i] if i < len(history) else filler for history in histories]), active)
            steps = group.collect()
            observations[active] = steps.observations[active]
            self._returns[number][active] += steps.rewards[active]
            for k in np.flatnonzero(active).tolist():
                current[k].append(histories[k][i])
                if steps.last[k]:  # Only by the initial actions of ``starts``: saved episodes are unfinished.
                    current[k].clear()
                    self._returns[number][k] = 0.0
        self._actions[number] = current
        return observations

    def _submit(self, number: int, actions: NDArray[np.floating[Any]]) -> None:
        for history, action in zip(self._actions[number], actions, strict=True):
            history.append(action)
        self._groups[number].submit(actions)
        self._pending[number] = True

    def _first(self, number: int) -> int:
        return sum(map(len, self._groups[:number]))

    def _collect(self, number: int) -> Sample:
        steps = self._groups[number].collect()
        self._pending[number] = False
        self._returns[number] += steps.rewards  # Before clipping and scaling.
        histories = self._actions[number]
        actions = np.stack([history[-1] for history in histories])
        if self._clip_rewards:
            steps = steps._replace(rewards=np.clip(steps.rewards, -1, 1))  # Returns stay unclipped.
        if self._normalize:
            steps = steps._replace(rewards=self._normalize(number, steps.rewards, steps.last))
        if self._reward_scale != 1:
            steps = steps._replace(rewards=steps.rewards * self._reward_scale)
        sample = Sample(number, actions, steps, self._returns[number].copy(), self._first(number))
        for i in np.flatnonzero(steps.last):
            histories[i].clear()
        self._returns[number][steps.last] = 0.0  # The next episodes have begun.
        return sample


def random_actions(random: np.random.Generator, count: int, size: int, *, discrete: bool) -> NDArray[np.float64]:
    """Returns uniform random actions, (count, size): numbers in [-1, 1), or one-hot rows."""
    return np.eye(size)[random.integers(size, size=count)] if discrete else random.uniform(-1, 1, (count, size))
