"""Samplers, which supply runs with experience; and the sampler of local environments, in groups that take turns."""

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
    """A step of a group, a row per environment."""

    group: int
    """The number of the group."""
    actions: NDArray[np.floating[Any]]
    """(n, action), as they were given."""
    steps: Steps
    """The results of the actions."""
    returns: NDArray[np.float64]
    """(n,): rewards of the episodes so far."""
    first: int = 0
    """The number of its first environment among all."""
    ratios: NDArray[np.float64] | None = None
    """(n,): how likely the learner's policy takes these actions, over how likely who acted did; at most 1. None: 1."""


class NotFinite(Exception):  # noqa: N818  no error: it is how a run crashes
    """An action of training that is not finite."""


class Sampler(Protocol):
    """The source of the samples that a run learns from: its own environments, or actors elsewhere.

    Attributes:
        is_remote: whether others act.
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
            choose: actions, (n, action), for a group, given its index, the index of its first environment, and
                how many actions are under way (not yet returned). Called only by local samplers.
            waits: whether to take no more actions while this number of them are under way.

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
        """Takes it over; returns the observations of each group that its next step starts from."""


@final
class LocalSampler:
    """Gives actions to one group after the other, and returns the outcome of the next group's actions.

    While the caller learns from the sample of one group, the others step (in worker processes, if there are any). With
    one group, it returns the outcome of its action at once.

    Its state is, for each environment, the random state at the beginning of the episode and the actions since: they
    are taken again when it is restored. So it can be saved at any moment, however long episodes are, and whatever
    else an environment consists of.

    Args:
        groups: seeded.
        clip_rewards: clip the rewards of samples to [-1, 1]; returns are sums of the original rewards.
        reward_scale: the factor applied to the rewards of samples afterwards.
        normalize: maps the rewards of a step of a group, given its index and which episodes ended, to a sample's
            rewards (see :class:`~.normalization.RewardNormalizer`); before ``reward_scale``. None: unchanged.
        starts: for each environment, in the order of the groups, actions that the first episode begins with, (number,
            action). They are not experience, but part of the episode, its return, and its repetition.

    Attributes:
        turn: the group to give actions to next; none of its steps is under way.
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
        self._actions: list[list[list[NDArray[Any]]]] = [[[] for _ in range(len(group))] for group in groups]
        self._returns = [np.zeros(len(group)) for group in groups]

    @property
    def under_way(self) -> int:
        """Returns the number of actions with an outcome that has not been returned yet."""
        return sum(len(group) for group, pending in zip(self._groups, self._pending, strict=True) if pending)

    @property
    def first(self) -> int:
        """The number, among all, of the first environment of the group that is to get actions next."""
        return self._first(self.turn)

    def begin(self) -> list[NDArray[Any]]:  # noqa: D102
        starts = self._starts
        if starts is None:
            return [group.reset() for group in self._groups]
        counts = [len(group) for group in self._groups]
        ends = np.cumsum(counts).tolist()
        return [self._repeat(i, starts[end - n : end]) for i, (n, end) in enumerate(zip(counts, ends, strict=True))]

    def next(  # noqa: D102
        self, choose: Callable[[int, int, int], NDArray[np.floating[Any]]], waits: Callable[[int], bool]
    ) -> Sample | None:
        if waits(self.under_way):
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
        """Gives actions to the next group in turn, and passes the turn on.

        Args:
            actions: (n, action), finite; numbers beyond [-1, 1] count as its ends, and are kept as they are.

        Returns:
            The sample of the group that has the turn now; None if it has not been given actions before.
        """
        self._submit(self.turn, actions)
        self.turn = (self.turn + 1) % len(self._groups)
        return self._collect(self.turn) if self._pending[self.turn] else None

    def wait(self) -> Sample:
        """Returns the sample of a group with a step under way, without giving actions to any; there must be one."""
        return self._collect(self._pending.index(True))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue identically: plain values and tensors."""
        return {
            "turn": self.turn,
            "pending": list(self._pending),
            "random_states": [
                group.random_states(stepped=pending) for group, pending in zip(self._groups, self._pending, strict=True)
            ],
            "actions": [[torch.from_numpy(np.array(taken)) for taken in group] for group in self._actions],
            **({"normalized_rewards": self._normalize.state_dict()} if self._normalize else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[NDArray[Any]]:
        """Takes it over, by repeating the episodes that were running.

        Returns:
            The observations of each group that its step under way, or else its next one, starts from, (n, observation).
        """
        self.turn = state["turn"]
        if self._normalize:
            self._normalize.load_state_dict(state["normalized_rewards"])
        observations = []
        for number, group in enumerate(self._groups):
            group.set_random_states(state["random_states"][number])
            histories = [taken.numpy() for taken in state["actions"][number]]
            pending = [taken[-1] for taken in histories] if state["pending"][number] else []
            observations.append(self._repeat(number, [taken[:-1] for taken in histories] if pending else histories))
            if pending:
                self._submit(number, np.stack(pending))
        return observations

    def _repeat(self, number: int, histories: Sequence[NDArray[Any]]) -> NDArray[Any]:
        group = self._groups[number]
        observations = group.reset()
        own: list[list[NDArray[Any]]] = [[] for _ in histories]
        for i in range(max(map(len, histories))):
            active = np.array([i < len(taken) for taken in histories])
            still = next(taken[i] for taken in histories if i < len(taken))  # any will do for those that do not step
            group.submit(np.stack([taken[i] if i < len(taken) else still for taken in histories]), active)
            steps = group.collect()
            observations[active] = steps.observations[active]
            self._returns[number][active] += steps.rewards[active]
            for k in np.flatnonzero(active).tolist():
                own[k].append(histories[k][i])
                if steps.last[k]:  # in what was saved, no episode ends
                    own[k].clear()
                    self._returns[number][k] = 0.0
        self._actions[number] = own
        return observations

    def _submit(self, number: int, actions: NDArray[np.floating[Any]]) -> None:
        for taken, action in zip(self._actions[number], actions, strict=True):
            taken.append(action)
        self._groups[number].submit(actions)
        self._pending[number] = True

    def _first(self, number: int) -> int:
        return sum(map(len, self._groups[:number]))

    def _collect(self, number: int) -> Sample:
        steps = self._groups[number].collect()
        self._pending[number] = False
        self._returns[number] += steps.rewards
        taken = self._actions[number]
        actions = np.stack([own[-1] for own in taken])
        if self._clip_rewards:
            steps = steps._replace(rewards=np.clip(steps.rewards, -1, 1))
        if self._normalize:
            steps = steps._replace(rewards=self._normalize(number, steps.rewards, steps.last))
        if self._reward_scale != 1:
            steps = steps._replace(rewards=steps.rewards * self._reward_scale)
        sample = Sample(number, actions, steps, self._returns[number].copy(), self._first(number))
        for i in np.flatnonzero(steps.last):
            taken[i].clear()
        self._returns[number][steps.last] = 0.0
        return sample


def random_actions(random: np.random.Generator, count: int, size: int, *, discrete: bool) -> NDArray[np.float64]:
    """Uniform random actions, (count, size): numbers in [-1, 1), or rows of zeros with a one in each."""
    return np.eye(size)[random.integers(size, size=count)] if discrete else random.uniform(-1, 1, (count, size))
