"""Tells the user's code on the stack from PyTorch's and a simulation's."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from types import FrameType

_OURS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep,
         "<eval_with_key", "<frozen", "<string>")  # fmt: skip
"""What the names of files begin with that hold no user's code: the last are those of generated code."""


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


def user_line() -> str:
    """The innermost line of the stack that is the user's, as text."""
    return text_of(here())


def user_level() -> tuple[int, str, tuple[str, int]]:
    """Finds the innermost function of the user's: ``stacklevel`` for the caller, its module, its file and line."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level, str(frame.f_globals.get("__name__")), (frame.f_code.co_filename, frame.f_lineno)
