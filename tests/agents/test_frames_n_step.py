"""Transitions of images, of several steps and drawn by priority: the same as those of rows that hold everything."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience import n_step
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.agents.experience.n_step import NStepIntake, NStepPixelIntake
from roundoff.agents.experience.prioritized import PrioritizedReplay
from roundoff.agents.experience.replay import Replay
from roundoff.agents.experience.sampling import Sample
from roundoff.formats import Format

CPU = torch.device("cpu")
STACK, ACTION, DISCOUNT = 3, 2, 0.9
FP64 = Format.parse("fp64")


class Worlds:
    """Two environments of images of two bytes, no two alike; their episodes end by chance."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.images = 0
        self.seen = [self._first() for _ in range(2)]

    def _image(self):
        self.images += 1
        return np.array(divmod(self.images - 1, 256), dtype=np.uint8)

    def _first(self):
        return np.tile(self._image(), STACK)

    def step(self):
        random = self.random
        before = np.stack(self.seen)
        after = np.stack([np.concatenate((seen[2:], self._image())) for seen in self.seen])
        last = random.random(2) < 0.15
        lost = random.random(2) < 0.1  # a life: the return ends, the episode does not
        discounts = np.where(last, random.integers(2, size=2), np.where(lost, 0.0, 1.0))
        self.seen = [self._first() if over else seen for over, seen in zip(last, after, strict=True)]
        steps = Steps(after, random.normal(size=2), discounts, last, np.stack(self.seen))
        return before, Sample(0, np.eye(ACTION)[random.integers(ACTION, size=2)], steps, np.zeros(2))


def of_images(n, capacity):
    options = {"stack": STACK, "row_size": ACTION + 2, "dtype": torch.float64, "device": CPU, "simulators": 2}
    replay = FrameReplay(capacity, (1, 1, 2), n_steps=n, **options)
    return NStepPixelIntake(replay, n, DISCOUNT, (1, 1, 2), fmt=FP64, dtype=torch.float64, device=CPU)


def of_rows(n):
    options = {"dtype": torch.float64, "device": CPU}
    return NStepIntake(Replay(5000, 2 * STACK, ACTION, **options), n, DISCOUNT, fmt=FP64, **options)


def begin(intake, worlds):
    for i, seen in enumerate(worlds.seen):
        intake.begin(seen, i)


def in_groups(before, sample):
    """Each environment is a group of its own."""
    for i in range(2):
        own = slice(i, i + 1)
        steps = Steps(*(field[own] for field in sample.steps))
        yield before[own], Sample(i, sample.actions[own], steps, sample.returns[own], first=i)


def play(worlds, images, rows, steps, *, groups=1):
    """Gives both intakes the same steps, as a run does."""
    for _ in range(steps):
        for before, sample in [worlds.step()] if groups == 1 else in_groups(*worlds.step()):
            steps_of_rows = sample.steps._replace(next_observations=sample.steps.next_observations.astype(float))
            plain = sample._replace(steps=steps_of_rows)
            both = zip(images.rows(None, sample), rows.rows(torch.from_numpy(before).double(), plain), strict=True)
            for i, (of_image, of_row) in enumerate(both):
                images.remember(of_image, sample, i)
                rows.remember(of_row, plain, i)


def texts(before, numbers, after):
    """Returns reward and discount of each transition, by its first observation, its action and its last observation."""
    whole = torch.cat((before.flatten(1).double(), numbers[:, :ACTION], after.flatten(1).double()), dim=1)
    outcomes = numbers[:, ACTION : ACTION + 2].tolist()
    return {tuple(key): tuple(outcome) for key, outcome in zip(whole.tolist(), outcomes, strict=True)}


def all_rows(intake):
    batch = intake.replay.take(torch.arange(len(intake.replay)))
    numbers = torch.cat((batch.actions, batch.rewards, batch.discounts), dim=1)
    return texts(batch.observations, numbers, batch.next_observations)


def drawn(replay, count=4000):
    batch = replay.sample(count, torch.Generator().manual_seed(0))
    return texts(batch.observations, batch.rows, batch.next_observations)


@given(st.integers(1, 4), st.integers(0, 10**6), st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_transitions_of_several_steps_are_those_of_rows(n, seed, groups):
    """Saved and restored in the middle."""
    worlds, images, rows = Worlds(seed), of_images(n, 400), of_rows(n)
    begin(images, worlds)
    play(worlds, images, rows, 20, groups=groups)
    state, replay_state = images.state_dict(), images.replay.state_dict()
    images = of_images(n, 400)
    images.load_state_dict(state)
    images.replay.load_state_dict(replay_state)
    play(worlds, images, rows, 20, groups=groups)
    assert len(images.replay) == len(rows.replay)
    assert drawn(images.replay) == all_rows(rows)


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_forgotten_is_never_drawn_by_priority(n):
    """Rings of eleven images, which are overwritten many times; saved and restored in the middle."""

    def with_priorities():
        intake = of_images(n, 22)
        intake.replay = PrioritizedReplay(intake.frames, 0.4, additions=1000, fmt=Format.parse("fp32"))
        return intake

    worlds, images, rows = Worlds(1), with_priorities(), of_rows(n)
    begin(images, worlds)
    for _ in range(30):
        play(worlds, images, rows, 3)
        if not len(images.replay):
            continue
        batch = images.replay.sample(16, torch.Generator().manual_seed(0))
        assert batch.rows.shape == (16, ACTION + 3)
        images.replay.prioritize(torch.rand(16, generator=torch.Generator().manual_seed(1)) + 0.1)
        again, state = with_priorities(), images.replay.state_dict()
        again.load_state_dict(images.state_dict())
        again.replay.load_state_dict(state)
        images = again
        tree = images.replay._tree
        assert (tree[:] > 0).sum() == len(images.replay)
        got, whole = drawn(images.replay), all_rows(rows)
        assert len(got) == len(images.replay)
        assert got.items() <= whole.items()
    assert len(images.replay) < 22 < len(whole)


@pytest.mark.parametrize("n", [1, 3])
def test_the_smallest_ring_holds_one_transition_at_least(n):
    worlds, images, rows = Worlds(2), of_images(n, 2 * (STACK + n)), of_rows(n)
    begin(images, worlds)
    play(worlds, images, rows, 60)
    assert drawn(images.replay).items() <= all_rows(rows).items()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_follows_steps_cut_short_by_time_counts_as_behind_those_there_were(terminal):
    """The learner multiplies what follows by g^n, also where an episode had m steps left: 1 / g^(n - m) mends that."""
    under_way, head = n_step._PendingTransitions(3, 0.5), torch.zeros(1, 1)

    def step(*, last):
        steps = SimpleNamespace(
            last=np.array([last]), discounts=np.array([1.0 - (last and terminal)]), rewards=np.ones(1)
        )
        return under_way.step(SimpleNamespace(group=0, ratios=None, steps=steps), head, [0])

    assert step(last=False) == ([], [0])
    whole, counts = step(last=True)
    assert counts == [2]
    assert [(one.rewards, one.discount) for one in whole] == [
        (1.5, 0.0 if terminal else 2),
        (1, 0.0 if terminal else 4),
    ]
