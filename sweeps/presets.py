"""The sweeps that are shipped."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "presets"


def preset_files() -> dict[str, Path]:
    """The files of all presets, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find_sweep(file_or_preset: str) -> Path:
    """The file meant by an argument: that of a preset if it is the name of one, else the path itself."""
    return preset_files().get(file_or_preset, Path(file_or_preset))
