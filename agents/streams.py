"""The independent random streams of a run, all derived from its seed."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """The purposes of random streams; the numbers are part of the meaning of a seed and never change."""

    WEIGHTS = 0
    ENVIRONMENT = 1
    SEED_ACTIONS = 2
    ACTION_NOISE = 3
    UPDATE_NOISE = 4
    REPLAY = 5
    EVALUATION = 6
    AUGMENTATION = 10
    RANDOM_START = 15
    ACTOR_CONTROL = 20
    PERTURBATION = 30
    REPLAY_OF_OTHERS = 35


_learner: tuple[int, ...] = ()


def become_learner(rank: int) -> None:
    """Gives this process the streams of a learner that follows a leader, permanently; initial weights are the same.

    Args:
        rank: the number of the learner, 1 or more.
    """
    global _learner  # noqa: PLW0603  a process is one learner
    _learner = (rank,)


def sequence(seed: int, stream: Stream, *more: int) -> np.random.SeedSequence:
    """Returns the seed sequence of a stream of the run with ``seed``; ``more`` numbers select one of a family."""
    learner_key = () if stream in (Stream.WEIGHTS, Stream.PERTURBATION) else _learner
    return np.random.SeedSequence((seed, int(stream), *more, *learner_key))


def torch_generator(seed: int, stream: Stream, device: torch.device, *more: int) -> torch.Generator:
    """Makes a PyTorch generator on ``device`` for a stream; ``more`` numbers select one of a family."""
    generator = torch.Generator(device)
    generator.manual_seed(int(sequence(seed, stream, *more).generate_state(1, np.uint64)[0]))
    return generator
