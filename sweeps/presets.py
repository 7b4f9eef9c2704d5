"""The sweeps that are shipped."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundoff.sweeps.plan import Plan

FOLDER = Path(__file__).parent / "presets"
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


def find_sweep(name: str) -> Path:
    """The file meant by an argument: of a preset by its name or its figure (``fig4-quick``), else the path itself."""
    files = preset_files()
    if name not in files and re.fullmatch(rf"(fig|table)\d+({QUICK})?", name):
        size = QUICK if name.endswith(QUICK) else ""
        for plan in preset_plans():
            if name.removesuffix(QUICK) in plan.reproduces and plan.name.endswith(QUICK) == bool(size):
                return files[plan.name]
    return files.get(name, Path(name))


@functools.cache
def preset_plans() -> tuple[Plan, ...]:
    """All presets, planned, by name."""
    from roundoff.sweeps.plan import plan_file  # noqa: PLC0415  which reads what presets include

    return tuple(plan_file(path) for path in preset_files().values())


def presets_table() -> str:
    """A table of all presets, in Markdown."""
    rows: list[tuple[str, ...]] = [("preset", "size", "runs", "paper", "what")]
    for plan in preset_plans():
        size = "quick" if plan.name.endswith(QUICK) else "paper"
        rows.append((f"`{plan.name}`", size, str(len(plan.runs)), " ".join(plan.reproduces), plan.description))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    rows.insert(1, tuple("-" * width for width in (*widths, 4)))
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"| {' | '.join(cells)} | {row[-1]} |")
    return "\n".join(lines)
