"""The shipped sweeps (presets): lists them, and finds them by name or figure.

This module plans nothing, so that the list is shown at once, without importing PyTorch.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from roundoff.errors import suggestion

from ..errors import SweepError

FOLDER = Path(__file__).parents[1] / "presets"
Size = Literal["quick", "overnight", "paper"]
"""The size of a preset: minutes on two cores, a night on two cores, or the size in the paper."""
ENDS: dict[Size, str] = {"quick": "-quick", "overnight": "-overnight", "paper": ""}
"""Suffix of the names of presets of each size; the text before it is their subject."""


def subject_and_size(name: str) -> tuple[str, Size]:
    """Splits the name of a preset or figure: ``fig4-quick`` is figure 4 in the quick size."""
    size = next(size for size, end in ENDS.items() if name.endswith(end))
    return name.removesuffix(ENDS[size]), size


@functools.cache
def preset_files() -> dict[str, Path]:
    """The files of all presets, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"), key=lambda path: path.stem)}


@functools.cache
def includable_files() -> dict[str, Path]:
    """The files that ``include`` finds by name: presets, and the settings that they share."""
    return preset_files() | {path.stem: path for path in sorted((FOLDER / "shared").glob("*.yaml"))}


class Preset(NamedTuple):
    """The head of a preset's file."""

    name: str
    size: Size
    reproduces: tuple[str, ...]
    """The figures and tables of papers that the preset is about, such as ``fig4``."""
    description: str
    file: Path


@functools.cache
def presets() -> dict[str, Preset]:
    """All presets, by name."""
    by_name = {}
    for name, file in preset_files().items():
        head = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        figures = head.get("reproduces", ())
        reproduces = (figures,) if isinstance(figures, str) else tuple(figures)
        by_name[name] = Preset(name, subject_and_size(name)[1], reproduces, head["description"].strip(), file)
    return by_name


def find_sweep(name: str) -> Path:
    """Finds the file for an argument: a preset by its name or its figure (``fig4-quick``), else the path itself."""
    figure, size = subject_and_size(name)
    files = preset_files()
    if name not in files and re.fullmatch(r"(accelerated-|quarl-)?(fig|table)\d+", figure):
        for preset in presets().values():
            if figure in preset.reproduces and preset.size == size:
                return preset.file
    return files.get(name, Path(name))


def presets_table(text: str = "", size: Size | None = None) -> str:
    """Makes a table of presets, in Markdown.

    Args:
        text: a part of the name, the figures or the description (any letter case); empty for all presets.
        size: the size of the presets; None for all sizes.

    Raises:
        SweepError: no preset is left.
    """
    chosen = [
        preset
        for preset in presets().values()
        if size in (None, preset.size)
        and text.lower() in " ".join((preset.name, *preset.reproduces, preset.description)).lower()
    ]
    if not chosen:
        near = suggestion(text, list(presets()))
        raise SweepError(
            f"no preset{f' of the size {size}' if size else ''} has {text!r} in its name, figures or"
            f" description{near}; `roundoff presets` lists all {len(presets())}"
        )
    rows = [("preset", "size", "paper", "description")]
    rows += [(f"`{preset.name}`", preset.size, " ".join(preset.reproduces), preset.description) for preset in chosen]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-----------"))
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))} | {row[-1]} |"
        for row in rows
    )
