"""The files of the sweeps that are shipped."""

from __future__ import annotations

import functools
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "presets"
QUICK = "-quick"
"""Ends the name of a preset that takes minutes on two cores; the one without it is the paper's size."""


@functools.cache
def preset_files() -> dict[str, Path]:
    """The files of all presets, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"), key=lambda path: path.stem)}


@functools.cache
def includable_files() -> dict[str, Path]:
    """The files that ``include`` knows by name: presets, and the settings that they share."""
    return preset_files() | {path.stem: path for path in sorted((FOLDER / "shared").glob("*.yaml"))}
