"""Checkpoints: dicts of tensors and plain values, written atomically and read without executing code from the file.

Snapshots are written for comparing runs of different precision afterwards: a run's networks at its evaluations.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from roundoff.errors import FileError, RoundoffError, causes
from roundoff.files import atomic_writer, cannot_be_written, make_directory_inside, open_to_read

from ..experience.replay import Replay

# Increased whenever the meaning of the stored values changes.
VERSION = 3


def save(path: Path, state: dict[str, Any], about: dict[str, Any] | None = None) -> None:
    """Writes ``state`` (tensors, numbers, text, dicts and lists of them) to ``path``, atomically.

    Args:
        path: the file.
        state: the state for :func:`load` to return.
        about: additional values of the same types, for :func:`load_about`.

    Raises:
        FileError: it cannot be written.
    """
    with atomic_writer(path) as file:
        try:
            torch.save({"version": VERSION, "state": state, **({"about": about} if about else {})}, file)
        except RuntimeError as error:  # From PyTorch, such as for a full disk.
            reason = next((part.strerror for part in causes(error) if isinstance(part, OSError)), None)
            raise FileError(cannot_be_written(path, reason or str(error).partition("\n")[0])) from error


@contextmanager
def taking_over(path: Path) -> Iterator[None]:
    """Turns any error of the block, which restores a checkpoint, into FileError: the file can have any content."""
    try:
        yield
    except RoundoffError:
        raise
    except Exception as error:  # Of any type, since the file can have any content.
        raise FileError(
            f"{path}: is not a complete checkpoint of this run ({type(error).__name__}: {error});"
            " delete the run's folder to start the run again"
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint that :func:`save` wrote.

    Args:
        path: the file.

    Returns:
        The state; its tensors are on the CPU.

    Raises:
        FileError: the file is missing, damaged, from another version, or no checkpoint.
    """
    state: dict[str, Any] = _read_archive(path)["state"]
    return state


def load_about(path: Path) -> Any:
    """Returns the argument ``about`` of the :func:`save` that wrote a checkpoint; None if there was none."""
    return _read_archive(path).get("about")


def _read_archive(path: Path) -> dict[str, Any]:
    advice = "delete the run's folder to start the run again"
    try:
        with open_to_read(path) as file:
            _check_archive(file)
            file.seek(0)  # The check has moved the position.
            content = torch.load(file, map_location="cpu", weights_only=True)  # Executes no code from the file.
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # Of any type, since the file decides the calls of the unpickler.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileError(f"{path}: is damaged or not a checkpoint ({reason}); {advice}") from error
    if not isinstance(content, dict) or "version" not in content or not isinstance(content.get("state"), dict):
        raise FileError(f"{path}: is not a checkpoint of a run; {advice}")
    if content["version"] != VERSION:
        raise FileError(
            f"{path}: has version {content['version']!r} of the checkpoint format, this program reads {VERSION};"
            f" continue it with the program that wrote it, or {advice}"
        )
    return content


def _check_archive(file: IO[bytes]) -> None:
    """Raises BadZipFile unless it is a complete archive with correct checksums, which PyTorch does not verify.

    It also refuses compressed members: PyTorch writes none, and a small compressed file could fill the memory.
    """
    with zipfile.ZipFile(file) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise zipfile.BadZipFile("a part of it is compressed")
        damaged = archive.testzip()
    if damaged:
        raise zipfile.BadZipFile(f"the checksum of its part {damaged} is wrong")


_STATE_COUNT = 2000


def write_networks(folder: Path, step: int, networks: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Writes ``<step>.npz`` to ``folder``, which is created if it is missing.

    Args:
        folder: the folder of the snapshots.
        step: environment steps taken.
        networks: layers by the name of the network; layer i is stored as ``<name>_<i>``, float32 or float64 (half
            precision is widened, exactly).

    Raises:
        FileError: it cannot be written.
    """
    arrays = {f"{name}_{i}": _as_array(layer) for name, layers in networks.items() for i, layer in enumerate(layers)}
    make_directory_inside(folder.parent, folder.name)
    with atomic_writer(folder / f"{step}.npz") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its second parameter is no array


def write_states(folder: Path, replay: Replay) -> None:
    """Writes ``states.npz`` with ``inputs``: critics' inputs of at most 2000 transitions, evenly spaced in the buffer.

    Raises:
        FileError: it cannot be written.
    """
    stored = len(replay)
    indices = torch.linspace(0, max(stored - 1, 0), min(stored, _STATE_COUNT), dtype=torch.float64).long()
    batch = replay.take(indices.to(replay.rows.device))
    make_directory_inside(folder.parent, folder.name)
    with atomic_writer(folder / "states.npz") as file:
        np.savez(file, inputs=_as_array(batch.observations_and_actions))


def _as_array(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return (x if x.dtype == torch.float64 else x.float()).numpy()
