"""Turning a numba loop into a C function, and running it over a large tensor in several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from numba import types

from ..base.memory import in_memory
from .c_functions import c_function
from .float_state import in_usual_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..base.modes import Rounding

ELEMENTS_PER_THREAD = 1 << 17
"""Below this many elements per thread, handing work to a thread costs more than it saves."""

_NUMBA = {torch.float32: types.float32, torch.float64: types.float64}
_WORD = {torch.float32: types.uint32, torch.float64: types.uint64}
_POINTED = {"w": types.uint32, "m": types.int64, "q": types.float64}


def runs_natively(x: torch.Tensor, rounding: Rounding) -> bool:
    """Whether the compiled loops can round ``x``: nearest-even, in the CPU's memory, and not while torch compiles."""
    return rounding == "nearest-even" and in_memory(x)


@cache
def compiled(body: Any, dtype: torch.dtype, signature: str) -> Callable[..., None]:
    """The loop ``body`` as a C function; see :func:`.c_function`.

    It underflows gradually in every thread, also under ``torch.set_flush_denormal(True)``.

    Args:
        body: the loop, in the Python that numba understands; returns nothing.
        dtype: float32 or float64, the carrier.
        signature: a letter for each argument: ``p`` address of carrier numbers, ``b`` of their bit patterns, ``w`` of
            uint32, ``m`` of int64 (the settings of a mode), ``q`` of float64; ``f`` carrier number, ``d`` float64,
            ``i`` integer.
    """
    carrier = _NUMBA[dtype]
    kinds = {
        **{letter: types.CPointer(kind) for letter, kind in _POINTED.items()},
        "p": types.CPointer(carrier),
        "b": types.CPointer(_WORD[dtype]),
        "f": carrier,
        "d": types.float64,
        "i": types.int64,
    }
    loop = in_usual_state(body, "numpy")
    return c_function(loop, tuple(kinds[letter] for letter in signature), "numpy")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="roundoff")


def in_pieces(work: Callable[[int, int], None], count: int, elements: int) -> None:
    """Calls ``work(first, last)`` for pieces that make up ``range(count)``, in torch's threads where that pays.

    Args:
        work: does the items ``first <= i < last``; must release the interpreter lock to gain anything.
        count: how many items there are.
        elements: how many tensor elements they are together.
    """
    threads = max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD, count))
    if threads == 1:
        work(0, count)
        return
    edges = [count * k // threads for k in range(threads + 1)]
    for piece in [_pool(threads).submit(work, first, last) for first, last in pairwise(edges)]:
        piece.result()
