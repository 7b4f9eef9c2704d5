"""A run's networks as they were at its evaluations, for comparing runs of different precision afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from roundoff.files import atomic_writer, make_directory_inside

from ..experience.replay import Replay

STATES = 2000


def write_networks(folder: Path, step: int, networks: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Writes ``<step>.npz`` into ``folder``, which is made if it is missing.

    Args:
        folder: the folder of the snapshots.
        step: environment steps taken.
        networks: layers by the name of the network; layer i is stored as ``<name>_<i>``, float32 or float64 (half
            precision is widened, exactly).

    Raises:
        FileError: it cannot be written.
    """
    arrays = {f"{name}_{i}": _array(layer) for name, layers in networks.items() for i, layer in enumerate(layers)}
    make_directory_inside(folder.parent, folder.name)
    with atomic_writer(folder / f"{step}.npz") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its second parameter is no array


def write_states(folder: Path, replay: Replay) -> None:
    """Writes ``states.npz``: in ``inputs`` what critics see of 2000 transitions (or fewer), evenly spaced in memory.

    Raises:
        FileError: it cannot be written.
    """
    stored = len(replay)
    indices = torch.linspace(0, max(stored - 1, 0), min(stored, STATES), dtype=torch.float64).long()
    batch = replay.take(indices.to(replay.rows.device))
    make_directory_inside(folder.parent, folder.name)
    with atomic_writer(folder / "states.npz") as file:
        np.savez(file, inputs=_array(batch.observations_and_actions))


def _array(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return (x if x.dtype == torch.float64 else x.float()).numpy()
