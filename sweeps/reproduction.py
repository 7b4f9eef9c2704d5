"""Finds the sweep that makes a figure of a paper, and runs of it that were made for another sweep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from roundoff.errors import nearest
from roundoff.files import (
    copy_directory,
    directory_lock,
    make_directory,
    make_directory_inside,
    remove_temporaries,
    try_json,
)
from roundoff.runs.folder import RunDirectory

from .errors import SweepError
from .folder.directory import MARKER, SweepDirectory
from .folder.leases import Leases
from .language.plan import Plan, plan_file
from .language.preset_files import ENDS, Size, presets, subject_and_size
from .subjects.subject import Run


def find_reproduction(name: str, size: Size, others: Sequence[str] = ()) -> tuple[Plan, list[str]]:
    """Finds the preset that makes a figure, and the names of the figures to draw from its runs.

    Args:
        name: a figure (``fig4``, ``accelerated-fig2``) or a table, or the subject of a preset (``significand``).
        size: the size of the preset; not every subject has the size ``overnight``.
        others: further names that the caller accepts; for the message.

    Raises:
        SweepError: no sweep has that name, or that size.
    """
    subjects = {subject_and_size(preset)[0] for preset in presets()}
    figures = {figure: subject for subject in subjects for figure in presets()[subject].reproduces}
    subject = figures.get(name, name)
    if subject in subjects:
        preset = presets().get(subject + ENDS[size])
        if preset is None:
            sizes = ", ".join(size for size, end in ENDS.items() if subject + end in presets())
            subjects_of_size = ", ".join(sorted(other for other in subjects if other + ENDS[size] in presets()))
            raise SweepError(
                f"{name!r}: there is no preset {subject + ENDS[size]!r}; allowed are the sizes {sizes}, or, for the"
                f" size {size}, the subjects {subjects_of_size}"
            )
        return plan_file(preset.file), [name] if name in figures else list(preset.reproduces) or [name]
    known = [*sorted([*figures, *others], key=_figure_order), *sorted(subjects)]
    near = nearest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    raise SweepError(f"{name!r}: unknown figure, table or subject; {hint}allowed are {', '.join(known)}")


def finished_elsewhere(plan: Plan, directory: Path) -> dict[str, Path]:
    """Finds runs of the plan that are new in ``directory``, and ended in another sweep's folder next to it.

    A run counts if its whole config and the version of roundoff are the same.
    """
    store = SweepDirectory(directory)
    beside = [path.parent for path in sorted(directory.parent.glob(f"*/{MARKER}")) if path.parent != directory]
    folders: dict[str, Path] = {}
    for run in plan.runs:
        if not store.run_path(run).exists():
            candidates = (folder / "runs" / run.id for folder in beside)
            finished = next((folder for folder in candidates if _is_finished(folder, run)), None)
            if finished:
                folders[run.id] = finished
    return folders


def take_over(plan: Plan, directory: Path) -> int:
    """Copies the runs of :func:`finished_elsewhere` into ``directory``; returns how many.

    A copy appears as a whole, and never where a run was begun.

    Raises:
        SweepError: the folder is something else.
        FileError: it cannot be written.
    """
    finished = finished_elsewhere(plan, directory)
    if not finished:
        return 0
    store = SweepDirectory(directory)
    store.check(plan)
    make_directory(directory)
    with directory_lock(directory, wait=True):
        store.claim(plan)
        remove_temporaries(directory)
        runs = make_directory_inside(directory, "runs")
        taken = Leases(store.leases).numbers()
        missing = {x: folder for x, folder in finished.items() if x not in taken and not (runs / x).exists()}
        for identity, folder in missing.items():
            copy_directory(folder, runs / identity)
    return len(missing)


def _is_finished(folder: Path, run: Run) -> bool:
    files = RunDirectory(folder)
    identity = {"config": run.config.as_json(), "version": version("roundoff")}
    return files.outcome().result is not None and try_json(files.config)[0] == identity


def _figure_order(name: str) -> tuple[str, str, int]:
    """Sort key: fig2 comes before fig10, and both before accelerated-fig2."""
    prefix, _, number_in_paper = name.rpartition("-")
    match = re.fullmatch(r"(\D+)(\d+)", number_in_paper)
    return (prefix, match[1], int(match[2])) if match else (prefix, number_in_paper, 0)
