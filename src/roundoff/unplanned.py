"""Runs in the folder of a sweep that its plan does not list."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_FILES_OF_RUNS = ("config.json", "metrics.jsonl", "result.json")


def unplanned_runs(runs: Path, planned: Collection[str]) -> list[str]:
    """Warnings about what looks like a run and is none of those planned; other things may lie there.

    Args:
        runs: the folder that holds the folders of runs; it may be missing.
        planned: the ids of the runs in ``sweep.json``.
    """
    if not runs.is_dir():
        return []
    strangers = [path for path in sorted(runs.iterdir()) if path.name not in planned and _looks_like_a_run(path)]
    return [f"{path}: is not in sweep.json; left out" for path in strangers]


def _looks_like_a_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in _FILES_OF_RUNS)
