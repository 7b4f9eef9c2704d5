"""Whether PyTorch's compiler works on this machine, and what errors say if something cannot be compiled."""

from __future__ import annotations

import os
import traceback
from functools import cache
from pathlib import Path

import torch

from roundoff.simulate.graph_writer import FormatsAsData

INSIDE = (os.sep + "torch" + os.sep, str(Path(__file__).parent) + os.sep, "<string>")
"""Parts of the names of files that no step is written in."""


@cache
def reason_against_compiling() -> str | None:
    """Why nothing can be compiled on this machine: found out by compiling something, which is on disk the next time."""
    from roundoff.simulate.graphs import compile_graph, trace  # noqa: PLC0415  the compiler takes seconds to import

    x = torch.zeros(16)
    try:
        formats = FormatsAsData([], x.dtype, x.device)
        program = compile_graph(trace(lambda tensors: tensors[0] + 1, [x], None, formats))
        program([x])
    except Exception as error:  # noqa: BLE001  whatever it is: no compiler, no headers, a folder that cannot be written
        return (
            f"PyTorch's compiler does not work here ({last_words(error)}); it needs g++ and the headers of Python"
            " (python3-dev)"
        )
    return None


def last_words(error: Exception) -> str:
    """What a compiler has to say, which may be pages."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = [line.strip() for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or [type(error).__name__])[-1][:200]


def of_optimizer(error: BaseException) -> str | None:
    """The name of the file of ``torch.optim`` that an error comes from; None if it comes from elsewhere."""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent.name == "optim" and file.parent.parent.name == "torch" and file.stem != "optimizer":
            return file.stem.lstrip("_")
        if not any(part in frame.filename for part in INSIDE):
            return None
    return None
