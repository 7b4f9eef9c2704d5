"""Finds and imports modules of the user, which define formats, tasks or algorithms."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
"""The name of a module, as a regular expression."""

WHERE = (
    "a module is named as in an import statement; it is installed, or is in the folder of the command's file, in the"
    " current folder, or in a folder of PYTHONPATH"
)
"""The places in which a module is looked for, for messages."""

_folders: list[str] = []


def look_in(folders: Iterable[str | Path]) -> None:
    """Appends folders to the search path of modules: last, so that a ``random.py`` there does not hide Python's."""
    for folder in map(str, map(Path.absolute, map(Path, folders))):
        if folder not in sys.path:
            sys.path.append(folder)
            _folders.append(folder)


def looked_in() -> list[str]:
    """Returns the folders that :func:`look_in` has added, for processes that import the same modules."""
    return list(_folders)


def import_all(modules: Iterable[str]) -> None:
    """Imports modules that the user has allowed.

    Raises:
        ImportError: a module, or one of its imports, is not found; the message names the folders that are searched.
    """
    for module in modules:
        if not re.fullmatch(NAME, module):
            raise ImportError(f"{module!r} is no name of a module; {WHERE}")
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise ImportError(f"{error}; {WHERE}") from error
