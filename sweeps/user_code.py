"""Describes exceptions of user code without the frames of this package around it."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).resolve().parent  # of the code that calls the user's
_OURS = tuple(_HERE.parent / name for name in ("src", "formats", "simulate", "agents", "sweeps", "analysis"))


def describe_error(error: BaseException) -> str:
    """Describes an exception in one line, with the last place in the user's code."""
    text = "".join(traceback.format_exception_only(error)[-1:]).strip().replace("\n", " ")
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r})"
    if isinstance(error, SyntaxError):
        return f"{text} ({error.filename}:{error.lineno})"
    last = None
    frames = traceback.walk_tb(_user_frames(error.__traceback__))
    for frame, line in frames:
        name = frame.f_code.co_filename
        is_library = "site-packages" in name or name.startswith("<")
        if not is_library and not any(map(Path(name).resolve().is_relative_to, _OURS)):
            last = f"{name}:{line}"
    return f"{text} ({last})" if last else text


def format_traceback(error: BaseException) -> str:
    """Returns the traceback as Python prints it, from the user's function on."""
    lines = traceback.format_exception(type(error), error, _user_frames(error.__traceback__))
    return "".join(lines).rstrip()


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Drops the frames of this package, and of importlib, before the user's first."""
    frame = frames
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not (file.startswith("<frozen importlib") or Path(file).resolve().is_relative_to(_HERE)):
            break
        frame = frame.tb_next
    return frame if frame is not None else frames
