"""What goes to a device: on the CPU nothing is copied; to a GPU from pinned memory, without waiting, the same bits."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from comparing import same_bits

from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.frame_replay import FrameReplay
from roundoff.agents.experience.intake import PixelIntake, StateIntake
from roundoff.agents.experience.replay import Replay
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.experience.transfer import copy_to_device_, to_device
from roundoff.formats import Format

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU, CPU = torch.device("cuda"), torch.device("cpu")
HARD = [0.0, -0.0, 1 / 3, 1e-300, 6e-8, -65519.99, 65520.0, np.inf, -np.inf, np.nan]


class Told:
    """Stands for a tensor, and notes how it is copied."""

    def __init__(self, device=CPU):
        self.device = device
        self.calls = []

    def pin_memory(self):
        self.calls.append("pinned")
        return self

    def to(self, device, *, non_blocking):
        self.calls.append((device.type, non_blocking))
        return self

    def copy_(self, x, *, non_blocking):
        x.calls.append((self.device.type, non_blocking))


def test_to_the_cpu_nothing_is_copied():
    x = torch.tensor(HARD)
    assert to_device(x, CPU) is x
    told = Told()
    copy_to_device_(Told(CPU), told)
    assert told.calls == [("cpu", True)]  # which it does at once
    target = torch.empty_like(x)
    copy_to_device_(target, x)
    assert same_bits(target, x)


def test_to_a_gpu_from_pinned_memory_without_waiting():
    told = Told()
    to_device(told, GPU)
    copy_to_device_(Told(GPU), told)
    assert told.calls == ["pinned", ("cuda", True)] * 2


def steps_of(observations, n):
    rewards = np.linspace(0, 1, n)
    return Steps(observations, rewards, np.ones(n), np.zeros(n, dtype=bool), observations)


@contextmanager
def nothing_waits():
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def states(device, count=200):
    """A replay buffer of states, and a batch drawn from it."""
    generator = torch.Generator(device).manual_seed(0)
    replay = Replay(count * 10, 3, 2, dtype=torch.float32, device=device)
    intake = StateIntake(replay, Format.parse("e5m10"), torch.float32, device)
    random = np.random.default_rng(0)
    for number in range(count):
        observations = random.normal(size=(10, 3)) * 10.0**number
        observations[:, 0] = HARD
        seen = intake.perceive(observations)
        steps = steps_of(observations, 10)
        sample = Sample(0, observations[:, 1:], steps, steps.rewards)
        rows = intake.rows(seen, sample)
        observations[:] = 7  # as the environments' memory is, which is written again
        for i in range(10):
            intake.remember(rows[i], sample, i)
    return replay, replay.sample(64, generator)


def images(device, count=200):
    """A replay buffer of images, and a sample of it."""
    generator = torch.Generator(device).manual_seed(0)
    replay = FrameReplay(count + 1, (3, 8, 8), stack=2, row_size=4, dtype=torch.float32, device=device)
    intake = PixelIntake(replay, (3, 8, 8), Format.parse("e5m10"), torch.float32, device)
    random = np.random.default_rng(0)
    for number in range(count):
        stack = random.integers(0, 256, (1, 2 * 3 * 8 * 8), dtype=np.uint8)
        if number == 0:
            intake.begin(stack[0])
        seen = intake.perceive(stack)
        steps = steps_of(stack, 1)
        sample = Sample(0, np.zeros((1, 2)), steps, steps.rewards)
        rows = intake.rows(seen, sample)
        intake.remember(rows[0], sample, 0)
        stack[:] = 7
    return replay, replay.sample(64, generator)


@pytest.mark.cuda
@NEEDS_GPU
def test_what_is_kept_on_a_gpu_is_what_is_kept_on_the_cpu_and_nothing_waits():
    states(GPU, 2), images(GPU, 2)  # what is made once may wait
    with nothing_waits():
        (replay, _), (stacks, _) = states(GPU), images(GPU)
    assert same_bits(replay.rows.cpu(), states(CPU)[0].rows)
    assert torch.equal(stacks.images[:201].cpu(), images(CPU)[0].images[:201])


@pytest.mark.parametrize("make", [states, images])
def test_what_is_kept_does_not_follow_what_it_was_made_of(make):
    """The numbers of an environment lie in memory that its next step writes."""
    replay = make(CPU, 3)[0]
    rows = replay.rows[:3] if isinstance(replay, FrameReplay) else replay.rows[:30]
    assert not (rows == 7).any()
    if isinstance(replay, FrameReplay):
        assert not (replay.images[:4] == 7).flatten(1).all(1).any()
