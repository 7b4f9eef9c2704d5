"""Finds the user's code on the stack, among PyTorch's and the simulation's, and warns with its lines."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from .entering import SimulationWarning

_NOT_USERS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep,
         "<eval_with_key", "<frozen", "<string>")  # fmt: skip
"""Beginnings of the names of files that are not the user's; the last ones are of generated code."""

_FOR_ITSELF = tuple(f"{Path(torch.__file__).parent / part}{os.sep}" for part in ("amp", "nn", "optim"))
"""Folders of PyTorch's code that computes internal values, such as the step of an optimizer."""

_warned: set[tuple[str, int, object]] = set()
"""The lines that a warning has named."""


def is_users(file: str) -> bool:
    """Whether code of this file is the user's."""
    return not file.startswith(_NOT_USERS)


class Line(NamedTuple):
    """A line of the user's code."""

    file: str
    number: int
    function: str


def here() -> Line | None:
    """Returns the innermost line of the user's code on the stack, without its text; None in threads without any."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def text_of(line: Line | None) -> str:
    """``file:line in function: source``."""
    if line is None:
        return "unknown"
    source = linecache.getline(line.file, line.number).strip()
    return f"{line.file}:{line.number} in {line.function}: {source}"


def user_level() -> tuple[int, str, tuple[str, int]]:
    """Finds the innermost function of the user's: ``stacklevel`` for the caller, its module, its file and line."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level, str(frame.f_globals.get("__name__")), (frame.f_code.co_filename, frame.f_lineno)


def warn_once(text: str, about: object = None) -> None:
    """Warns with the user's line, once for each line; not of internal values of PyTorch.

    Args:
        text: the warning.
        about: a key that distinguishes warnings about the same line.
    """
    level, module, place = user_level()
    is_new, is_agent = (*place, about) not in _warned, module.startswith("roundoff.")  # an agent of this package
    if is_new and not is_agent and not _is_called_by_pytorch():
        _warned.add((*place, about))
        warnings.warn(f"{text} (shown once for each line)", SimulationWarning, stacklevel=level)


def _is_called_by_pytorch() -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_FOR_ITSELF):
            return True
        frame = frame.f_back
    return False
