"""Which code on the stack is the user's: neither PyTorch's nor a simulation's."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import torch

_OURS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep,
         "<eval_with_key", "<frozen", "<string>")  # fmt: skip
"""What the names of files begin with that hold no user's code: the last are those of generated code."""


def is_users(file: str) -> bool:
    """Whether code of this file is the user's."""
    return not file.startswith(_OURS)


def user_line() -> str:
    """The innermost line of the stack that is the user's: ``file:line in function: source``."""
    for frame in reversed(traceback.extract_stack()):
        if is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return "unknown"


def user_level() -> tuple[int, str, tuple[str, int]]:
    """Of the innermost function that is the user's: ``stacklevel`` for the caller, its module, its file and line."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  the only access there is
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level, str(frame.f_globals.get("__name__")), (frame.f_code.co_filename, frame.f_lineno)
