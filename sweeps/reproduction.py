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
    """The preset that makes a figure, and the names of the figures to draw from its runs.

    Args:
        name: a figure (``fig4``, ``accelerated-fig2``) or a table, or the subject of a preset (``significand``).
        size: the size of the preset; not every subject has one for a night.
        others: names that mean something to the caller; for the message.

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
            of_size = ", ".join(sorted(one for one in subjects if one + ENDS[size] in presets()))
            raise SweepError(
                f"{name!r}: there is no preset {subject + ENDS[size]!r}; allowed are the sizes {sizes}, or, for the"
                f" size {size}, the subjects {of_size}"
            )
        return plan_file(preset.file), [name] if name in figures else list(preset.reproduces) or [name]
    known = [*sorted([*figures, *others], key=_in_order), *sorted(subjects)]
    near = nearest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    raise SweepError(f"{name!r}: there is no such figure, table or subject; {hint}allowed are {', '.join(known)}")


def finished_elsewhere(plan: Plan, directory: Path) -> dict[str, Path]:
    """Runs of the plan that are new in ``directory``, and ended in another sweep's folder next to it.

    A run counts if its whole config and the version of roundoff are the same.
    """
    store = SweepDirectory(directory)
    beside = [path.parent for path in sorted(directory.parent.glob(f"*/{MARKER}")) if path.parent != directory]
    found: dict[str, Path] = {}
    for run in plan.runs:
        if not store.run_path(run).exists():
            folders = (folder / "runs" / run.id for folder in beside)
            ended = next((folder for folder in folders if _is_finished(folder, run)), None)
            if ended:
                found[run.id] = ended
    return found


def take_over(plan: Plan, directory: Path) -> int:
    """Copies the runs of :func:`finished_elsewhere` into ``directory``; returns how many.

    A copy appears as a whole, and never where a run was begun.

    Raises:
        SweepError: the folder is something else.
        FileError: it cannot be written.
    """
    found = finished_elsewhere(plan, directory)
    if not found:
        return 0
    store = SweepDirectory(directory)
    store.check(plan)
    make_directory(directory)
    with directory_lock(directory, wait=True):
        store.claim(plan)
        remove_temporaries(directory)
        runs = make_directory_inside(directory, "runs")
        taken = Leases(store.leases).numbers()
        missing = {x: folder for x, folder in found.items() if x not in taken and not (runs / x).exists()}
        for identity, folder in missing.items():
            copy_directory(folder, runs / identity)
    return len(missing)


def _is_finished(folder: Path, run: Run) -> bool:
    files = RunDirectory(folder)
    same = {"config": run.config.as_json(), "version": version("roundoff")}
    return files.outcome().result is not None and try_json(files.config)[0] == same


def _in_order(name: str) -> tuple[str, str, int]:
    """fig2 before fig10, and both before accelerated-fig2."""
    prefix, _, of_paper = name.rpartition("-")
    found = re.fullmatch(r"(\D+)(\d+)", of_paper)
    return (prefix, found[1], int(found[2])) if found else (prefix, of_paper, 0)
