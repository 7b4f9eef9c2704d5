"""Turning a numba loop into a C function, and running it over a large tensor in several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from .arguments import c_types
from .c_functions import c_function
from .float_state import in_usual_state
from .widths import specialised

ELEMENTS_PER_THREAD = 1 << 17
"""Below this many elements per thread, handing work to a thread costs more than it saves."""


@cache
def compiled(body: Any, dtype: torch.dtype, *, in_place: bool = False) -> Callable[..., None]:
    """The loop ``body`` as a C function; see :func:`.c_function`.

    It underflows gradually in every thread, also under ``torch.set_flush_denormal(True)``.

    Args:
        body: the loop, in the Python that numba understands; returns nothing. Its arguments are annotated with the
            names of :mod:`.arguments`; the names of :mod:`.widths` have the meaning for the carrier.
        dtype: float32 or float64, the carrier.
        in_place: whether the loop's ``target`` is its ``source``; it is passed all the same.
    """
    loop = in_usual_state(specialised(body, dtype), "numpy", in_place=in_place)
    return c_function(loop, c_types(body, dtype), "numpy")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="roundoff")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads


def in_pieces(work: Callable[[int, int], None], count: int, elements: int) -> None:
    """Calls ``work(first, last)`` for pieces that make up ``range(count)``, in torch's threads where that pays.

    Args:
        work: does the items ``first <= i < last``; must release the interpreter lock to gain anything.
        count: the number of items.
        elements: the number of tensor elements in all items.
    """
    threads = max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD, count))
    if threads == 1:
        work(0, count)
        return
    edges = [count * k // threads for k in range(threads + 1)]
    for piece in [_pool(threads).submit(work, first, last) for first, last in pairwise(edges)]:
        piece.result()
