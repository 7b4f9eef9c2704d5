"""Central parameters: tensors in memory that the learners of one machine share, in chunks, each with its own lock."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor

from ...formats import unsimulated

_READY, _STOP, _STEPS, _TURN = range(4)
_WORDS = 64  # Of the header, 8 bytes each: the four above, and the number of each chunk's active copy.
_MOST_CHUNKS = _WORDS - 4
_PAUSE = 0.0005  # Seconds.


@final
class CentralStore:
    """Chunks of tensors that several processes read and write, and a counter of steps.

    Each chunk has two copies: data is written to the inactive copy, which then becomes the active one. So every chunk
    is complete, before or after a change, if a process is killed at any moment. The locks are the system's locks on
    the memory's file, which end with the process that holds them.

    Args:
        memory: a file of the system's memory (``os.memfd_create``), which is empty until the leader has joined.
        chunks: local tensors, on the CPU; of the same shapes and dtypes in all processes. The leader's are the first
            contents, and must exist before the other learners' are requested.
        leads: whether this process creates the store.
        steps: the initial value of the counter, if this process creates the store.

    Source:
        Stooke, Abbeel, "Accelerated Methods for Deep Reinforcement Learning", Section 4.3.
    """

    def __init__(self, memory: int, chunks: Sequence[Sequence[Tensor]], *, leads: bool, steps: int = 0) -> None:
        assert 0 < len(chunks) <= _MOST_CHUNKS
        self._file = memory
        self._local = [list(chunk) for chunk in chunks]
        sizes = [[-(-tensor.nbytes // 8) * 8 for tensor in chunk] for chunk in self._local]
        total = 8 * _WORDS + 2 * sum(map(sum, sizes))
        if leads:
            os.ftruncate(memory, total)
        while os.fstat(memory).st_size < total:
            time.sleep(_PAUSE)
        self._memory = mmap.mmap(memory, total)
        self._header = np.frombuffer(self._memory, dtype=np.int64, count=_WORDS)
        self._copies: list[tuple[list[Tensor], list[Tensor]]] = []
        offset = 8 * _WORDS
        for chunk, chunk_sizes in zip(self._local, sizes, strict=True):
            copies: tuple[list[Tensor], list[Tensor]] = ([], [])
            for copy in copies:
                for tensor, size in zip(chunk, chunk_sizes, strict=True):
                    flat = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
                    copy.append(flat.view(tensor.shape))
                    offset += size
            self._copies.append(copies)
        if leads:
            for i in range(len(self._local)):
                self._write(i)
            self._header[_STEPS] = steps
            self._header[_READY] = 1
        while not self._header[_READY]:
            time.sleep(_PAUSE)

    def __len__(self) -> int:
        return len(self._local)

    @contextmanager
    def held(self, i: int) -> Iterator[None]:
        """Locks chunk ``i`` for the block; copies it to the local tensors before the block, and back after it."""
        with self._lock(i + 1):
            self._read(i)
            yield
            self._write(i)

    def pull(self) -> None:
        """Copies the central values to all local tensors."""
        for i in range(len(self)):
            with self._lock(i + 1):
                self._read(i)

    def count(self, steps: int) -> int:
        """Adds to the counter of steps; returns it."""
        with self._lock(0):
            self._header[_STEPS] += steps
            return int(self._header[_STEPS])

    @property
    def steps(self) -> int:
        """The counter of steps."""
        return int(self._header[_STEPS])

    @property
    def stop(self) -> bool:
        """Whether the learners are requested to end."""
        return bool(self._header[_STOP])

    def ask_to_stop(self) -> None:
        """Asks the learners to stop."""
        self._header[_STOP] = 1

    @contextmanager
    def turn(self, rank: int, count: int) -> Iterator[None]:
        """Waits for the turn of learner ``rank`` of ``count``, and passes it on after the block: a round-robin."""
        while self._header[_TURN] % count != rank and not self.stop:
            time.sleep(_PAUSE)
        yield
        self._header[_TURN] += 1

    @contextmanager
    def _lock(self, number: int) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    @unsimulated
    def _read(self, i: int) -> None:
        for tensor, central in zip(self._local[i], self._copies[i][self._header[4 + i]], strict=True):
            tensor.copy_(central)

    @unsimulated
    def _write(self, i: int) -> None:
        inactive = 1 - int(self._header[4 + i])
        for tensor, central in zip(self._local[i], self._copies[i][inactive], strict=True):
            central.copy_(tensor)
        self._header[4 + i] = inactive
