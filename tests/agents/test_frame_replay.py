"""The replay of images: stacks exactly as the environment gave them, each image stored once, memory as it fills."""

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.agents import RunError
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.agents.experience.intake import PixelIntake
from roundoff.formats import Format

CPU = torch.device("cpu")


def make(capacity, stack=3, shape=(1, 1, 2), simulators=1):
    options = {"stack": stack, "row_size": 3, "dtype": torch.float32, "device": CPU, "simulators": simulators}
    return FrameReplay(capacity, shape, **options)


def image(number):
    """Two bytes that name it."""
    return torch.tensor([number // 256, number % 256], dtype=torch.uint8).view(1, 1, 2)


class World:
    """Plays episodes into a replay, and remembers every transition as the environment gave it."""

    def __init__(self, replay, simulator=0, first=0):
        self.replay = replay
        self.simulator, self.first = simulator, first
        self.images = 0
        self.transitions = {}  # row -> stacks, and the oldest image needed

    def _look(self):
        self.images += 1
        return image(self.first + self.images - 1)

    def play(self, length):
        stack = self.replay.stack
        seen = [self._look()] * stack
        oldest = self.images - 1
        self.replay.begin(seen[-1], simulator=self.simulator)
        for _ in range(length):
            number = self.first + len(self.transitions)
            row = torch.tensor([float(number), 0.5, 1.0])
            self.transitions[number] = (torch.cat(seen), max(oldest, self.images - stack))
            seen = [*seen[1:], self._look()]
            self.transitions[number] += (torch.cat(seen),)
            self.replay.add(row, seen[-1], self.simulator)

    def kept(self):
        share = self.replay.capacity // len(self.replay._rings)
        return {n for n, (_, oldest, _) in self.transitions.items() if oldest >= self.images - share}

    def check(self, generator):
        batch = self.replay.sample(30 * self.replay.capacity, generator)
        numbers = batch.rows[:, 0].long().tolist()
        assert set(numbers) == self.kept()  # each has come: 30 draws for each leave out one in 1e13
        assert len(self.replay) == len(self.kept())
        for k, number in enumerate(numbers[: 3 * self.replay.capacity]):
            observation, _, following = self.transitions[number]
            assert torch.equal(batch.observations[k], observation)
            assert torch.equal(batch.next_observations[k], following)


@given(st.integers(1, 4), st.integers(1, 8), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=40)
def test_samples_are_what_the_environment_gave(stack, more, lengths, seed):
    world = World(make(stack + more, stack))
    generator = torch.Generator().manual_seed(seed)
    for length in lengths:
        world.play(length)
        world.check(generator)


def test_each_simulator_has_a_ring_of_its_own_and_all_are_sampled_alike():
    for restored in (False, True):
        replay = make(3 * 9 + 2, simulators=3)
        assert replay.capacity == 27
        worlds = [World(replay, simulator, 1000 * simulator) for simulator in range(3)]
        generator = torch.Generator().manual_seed(0)
        for lengths in ((2, 5, 1), (7, 1, 1), (3, 2, 6)):  # rings fill at their own speeds
            for world, length in zip(worlds, lengths, strict=True):
                world.play(length)
            if restored:
                state, replay = replay.state_dict(), make(27, simulators=3)
                replay.load_state_dict(state)
                for world in worlds:
                    world.replay = replay
            numbers = replay.sample(20_000, generator)
            counts = torch.bincount(numbers.rows[:, 0].long())
            kept = sorted(set().union(*(world.kept() for world in worlds)))
            assert counts.nonzero().flatten().tolist() == kept
            assert len(replay) == len(kept)
            expected = 20_000 / len(kept)
            assert (counts[kept] - expected).abs().max() < 6 * expected**0.5
            for k, row in enumerate(numbers.rows[:300, 0].long().tolist()):
                observation, _, following = worlds[row // 1000].transitions[row]
                assert torch.equal(numbers.observations[k], observation)
                assert torch.equal(numbers.next_observations[k], following)


def test_an_episode_may_begin_with_several_images():
    """What the agent saw is what is kept, here after actions that were not learned from."""
    replay = make(12)
    a, b, c, d = (image(number) for number in range(4))
    intake = PixelIntake(replay, (1, 1, 2), Format.parse("fp32"), torch.float32, CPU)
    for seen, kept in (((a, a, a), 1), ((a, a, b), 2), ((a, b, b), 3), ((b, c, d), 3)):
        before = replay._rings[0].images_added
        intake.begin(torch.cat(seen).flatten().numpy())
        assert replay._rings[0].images_added - before == kept
        replay.add(torch.zeros(3), a)
        ring = replay._rings[0]
        ring._needed = type(ring._needed)([ring._needed[-1]])  # the last transition alone is drawn
        batch = replay.sample(1, torch.Generator())
        assert torch.equal(batch.observations[0], torch.cat(seen))
        assert torch.equal(batch.next_observations[0], torch.cat((*seen[1:], a)))


def test_a_restored_buffer_gives_the_same_samples():
    for lengths in ((3,), (5, 4, 7)):  # before the ring is full, and after
        world = World(make(12))
        for length in lengths:
            world.play(length)
        file = io.BytesIO()
        torch.save(world.replay.state_dict(), file)
        file.seek(0)
        restored = make(12)
        restored.load_state_dict(torch.load(file, weights_only=True))
        other = World(restored)
        other.images, other.transitions = world.images, dict(world.transitions)
        for each in (world, other):
            each.play(6)
        a, b = (each.replay.sample(50, torch.Generator().manual_seed(1)) for each in (world, other))
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.rows, b.rows)
        other.check(torch.Generator())


def resident():
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * 4096


def test_memory_is_claimed_as_it_fills_and_a_hundred_thousand_fit_in_three_gib():
    before = resident()
    replay = FrameReplay(100_900, (3, 84, 84), stack=3, row_size=3, dtype=torch.float32, device=CPU)
    tensors = (replay.images, replay.rows, replay._places)
    # 100 000 transitions in episodes of 125, with a deque of 100 000 Python integers
    assert sum(t.nbytes for t in tensors) + 100_000 * 40 < 3 * 2**30
    assert replay.images.nbytes == 100_900 * 21_168
    replay.begin(torch.zeros(3, 84, 84, dtype=torch.uint8))
    for k in range(100):
        replay.add(torch.zeros(3), torch.full((3, 84, 84), k, dtype=torch.uint8))
    assert resident() - before < 50 * 2**20
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    assert 101 * 21_168 < len(file.getvalue()) < 101 * 21_168 + 100 * 28 + 8192


def test_memory_that_cannot_be_had_is_a_message():
    with pytest.raises(RunError, match=r"replay_capacity 1000000000000: .* GiB for images cannot be had on cpu"):
        make(10**12, shape=(3, 84, 84))
