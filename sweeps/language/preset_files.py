"""The files of the sweeps that are shipped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parents[1] / "presets"
Size = Literal["quick", "overnight", "paper"]
"""The size of a preset: minutes on two cores, a night on two cores, or as the paper did it."""
ENDS: dict[Size, str] = {"quick": "-quick", "overnight": "-overnight", "paper": ""}
"""How the names of presets of each size end; what stands before that is their subject."""


def subject_and_size(name: str) -> tuple[str, Size]:
    """The parts of a preset's name, or of a figure's: ``fig4-quick`` is figure 4 in the quick size."""
    size = next(size for size, end in ENDS.items() if name.endswith(end))
    return name.removesuffix(ENDS[size]), size


@functools.cache
def preset_files() -> dict[str, Path]:
    """The files of all presets, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"), key=lambda path: path.stem)}


@functools.cache
def includable_files() -> dict[str, Path]:
    """The files that ``include`` knows by name: presets, and the settings that they share."""
    return preset_files() | {path.stem: path for path in sorted((FOLDER / "shared").glob("*.yaml"))}
