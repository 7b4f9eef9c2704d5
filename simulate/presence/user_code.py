"""The user's code on the stack, told from PyTorch's and a simulation's; and warnings that name its lines."""

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

_OURS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep,
         "<eval_with_key", "<frozen", "<string>")  # fmt: skip
"""Beginnings of the names of files that are not the user's; the last ones are of generated code."""

_FOR_ITSELF = tuple(f"{Path(torch.__file__).parent / part}{os.sep}" for part in ("amp", "nn", "optim"))
"""Code of PyTorch that computes values which no user sees, such as the step of an optimizer."""

_warned: set[tuple[str, int, object]] = set()
"""The lines that a warning has named."""


def is_users(file: str) -> bool:
    """Whether code of this file is the user's."""
    return not file.startswith(_OURS)


class Line(NamedTuple):
    """A line of the user's code."""

    file: str
    number: int
    function: str


def here() -> Line | None:
    """The innermost line of the stack that is the user's; its text is not read. None in threads without one."""
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
    """Warns with the user's line, once for each line; of values that PyTorch computes for itself, not at all.

    Args:
        text: The warning.
        about: Distinguishes warnings about the same line.
    """
    level, module, place = user_level()
    is_new = (*place, about) not in _warned
    if is_new and not module.startswith("roundoff.") and not _is_called_by_pytorch():  # our own agents know
        _warned.add((*place, about))
        warnings.warn(f"{text} (said once for each line)", SimulationWarning, stacklevel=level)


def _is_called_by_pytorch() -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_FOR_ITSELF):
            return True
        frame = frame.f_back
    return False
