"""The sweeps that are shipped, planned: found by name or by the figure they make, and listed."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from .language.plan import Plan, plan_file
from .language.preset_files import preset_files, subject_and_size


def find_sweep(name: str) -> Path:
    """The file meant by an argument: of a preset by its name or its figure (``fig4-quick``), else the path itself."""
    files = preset_files()
    figure, size = subject_and_size(name)
    if name not in files and re.fullmatch(r"(accelerated-|quarl-)?(fig|table)\d+", figure):
        for plan in preset_plans():
            if figure in plan.reproduces and subject_and_size(plan.name)[1] == size:
                return files[plan.name]
    return files.get(name, Path(name))


@functools.cache
def preset_plans() -> tuple[Plan, ...]:
    """All presets, planned, by name."""
    return tuple(plan_file(path) for path in preset_files().values())


def presets_table() -> str:
    """A table of all presets, in Markdown."""
    rows: list[tuple[str, ...]] = [("preset", "size", "runs", "paper", "what")]
    for plan in preset_plans():
        _, size = subject_and_size(plan.name)
        rows.append((f"`{plan.name}`", size, str(len(plan.runs)), " ".join(plan.reproduces), plan.description))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    rows.insert(1, tuple("-" * width for width in (*widths, 4)))
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"| {' | '.join(cells)} | {row[-1]} |")
    return "\n".join(lines)
