"""The global generators, which libraries draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators of Python, NumPy and PyTorch, seeded for the block, and restored after it."""
    kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries draw from it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(kept)
            np.random.set_state(kept_numpy)  # noqa: NPY002
