"""Reads the files of runs, which may be damaged or come from somebody else, and writes results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from roundoff.errors import FileError
from roundoff.files import atomic_writer, is_name, make_directory, try_json

from ..errors import AnalysisError


def read_json(path: Path, warnings: list[str]) -> Any:
    """The JSON in a file; None if the file is missing, or, with a warning, if it cannot be read."""
    content, complaint = try_json(path)
    if complaint:
        warnings.append(f"{path}: {complaint}; left out")
    return content


def planned_runs(plan: Any) -> dict[str, dict[str, Any]]:
    """The configs of the runs in the content of ``sweep.json``, by id, which is the name of a run's folder.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not the plan of a sweep.
    """
    planned = {str(run["id"]): dict(run["config"]) for run in plan["runs"]}
    for identity in planned:
        if not is_name(identity):
            raise ValueError(f"{identity!r} is no name of a folder")
    return planned


def replace_file(path: Path, content: bytes) -> Path:
    """Replaces a file as a whole, so that a killed command leaves no half of one; returns its path.

    Raises:
        AnalysisError: it cannot be written.
    """
    return write_file(path, lambda file: file.write(content))


def make_folder(path: Path) -> None:
    """Makes a folder that is missing.

    Raises:
        AnalysisError: it cannot be made, or not be written to.
    """
    try:
        make_directory(path)
    except FileError as error:
        raise AnalysisError(str(error)) from error


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Replaces a file as :func:`replace_file` does, with what ``write`` writes."""
    try:
        with atomic_writer(path) as file:
            write(file)
    except FileError as error:
        raise AnalysisError(str(error)) from error
    return path
