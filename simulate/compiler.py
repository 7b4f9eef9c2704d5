"""Whether PyTorch's compiler works on this machine."""

from __future__ import annotations

from functools import cache

import torch

from roundoff.simulate.graph_writer import FormatsAsData
from roundoff.simulate.refusals import last_words


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
