"""The rounding kernels for CPU: numba's loops as C functions, called through plain pointers.

At 10 000 elements it is call overhead that costs, hence ctypes, which also releases the interpreter lock, so that
large tensors are split over torch's threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import types

from roundoff.formats import mode_loops, nearest_loops, random_loops
from roundoff.formats.c_functions import c_function
from roundoff.formats.parameters import INFINITY, LARGEST_EXPONENT, pattern
from roundoff.formats.random_words import CHUNK, keys, thinning
from roundoff.formats.reinterpret import bits_of32 as _bits_of32  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.formats.modes import RandomBits
    from roundoff.formats.parameters import FloatParameters

    Words = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]

# Below this many elements per thread, handing work to a thread costs more than it saves.
_ELEMENTS_PER_THREAD = 1 << 17

_WORD = {torch.float32: types.uint32, torch.float64: types.uint64}


@cache
def _compiled(body: Any, dtype: torch.dtype, signature: str) -> Callable[..., None]:
    """The loop ``body`` as a C function; see :func:`roundoff.formats.c_functions.c_function`.

    ``signature`` has a letter per argument: ``p`` is the address of carrier-wide words, ``k`` of uint32, ``n`` a count.
    """
    kinds = {"p": types.CPointer(_WORD[dtype]), "k": types.CPointer(types.uint32), "n": types.int64}
    return c_function(body, tuple(kinds[letter] for letter in signature))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="roundoff")


def _in_threads(work: Callable[[int, int], None], n: int) -> None:
    """Calls ``work(first, last)`` for pieces that make up ``range(n)``, in torch's threads."""
    threads = max(1, min(torch.get_num_threads(), n // _ELEMENTS_PER_THREAD))
    edges = [n * k // threads for k in range(threads + 1)]
    for piece in [_pool(threads).submit(work, first, last) for first, last in pairwise(edges)]:
        piece.result()


class Loop:
    """A loop with its parameters, ready to run over tensors.

    Args:
        words: what the loop reads at ``p``.
        dtype: the carrier, float32 or float64.
        copying: the loop from one piece of memory to another.
        in_place: the same in place.
    """

    __slots__ = ("_address", "_copying", "_in_place", "_size", "_words")

    def __init__(self, words: Words, dtype: torch.dtype, copying: Any, in_place: Any) -> None:
        self._words = words  # kept alive: the loop reads it by its address
        self._address = words.ctypes.data
        self._size = dtype.itemsize
        self._copying = _compiled(copying, dtype, "ppnp")
        self._in_place = _compiled(in_place, dtype, "pnp")

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Rounds ``source`` into ``target``, both filling one gapless piece of CPU memory in the same order."""
        n = source.numel()
        if n >= 2 * _ELEMENTS_PER_THREAD and torch.get_num_threads() > 1:
            _in_threads(lambda first, last: self._piece(source, target, first, last), n)
        elif target is source:
            self._in_place(source.data_ptr(), n, self._address)
        else:
            self._copying(source.data_ptr(), target.data_ptr(), n, self._address)

    def _piece(self, source: torch.Tensor, target: torch.Tensor, first: int, last: int) -> None:
        offset = first * self._size
        if target is source:
            self._in_place(source.data_ptr() + offset, last - first, self._address)
        else:
            self._copying(source.data_ptr() + offset, target.data_ptr() + offset, last - first, self._address)


def nearest(parameters: FloatParameters, dtype: torch.dtype) -> Loop:
    """Rounding to nearest-even in one format and carrier, with the cheapest loop that can."""
    name = _cheapest(parameters, dtype)
    loops = getattr(nearest_loops, name), getattr(nearest_loops, f"{name}_in_place")
    return Loop(parameters.packed(dtype), dtype, *loops)


def _cheapest(p: FloatParameters, dtype: torch.dtype) -> str:
    """The name of the cheapest loop to nearest; see :mod:`roundoff.formats.nearest_loops`."""
    m, emax = 23 - p.shift, (p.largest >> 23) - LARGEST_EXPONENT[dtype]
    if dtype == torch.float64 or not _gradual(p, dtype) or m == 0:
        return "any64" if dtype == torch.float64 else "any32"
    if _uniform(p, dtype):
        return "uniform32"
    last_binade_is_complete = (p.largest >> p.shift) % (1 << m) == (1 << m) - 1
    infinite = p.infinite == INFINITY[dtype]
    # Cutting a single bit, 1.5 * 2 + x would not stay within one binade.
    room = p.shift >= 2 and 1 <= emax < LARGEST_EXPONENT[dtype] - p.shift
    return "chain32" if infinite and last_binade_is_complete and room else "any32"


def _cheapest_random(p: FloatParameters, dtype: torch.dtype) -> str:
    """The name of the cheapest stochastic loop; see :mod:`roundoff.formats.random_loops`."""
    if dtype == torch.float64 or not _gradual(p, dtype):
        return "any64" if dtype == torch.float64 else "any32"
    if _uniform(p, dtype):
        return "uniform32"
    m, emin, emax = 23 - p.shift, (p.smallest_normal >> 23) - 127, (p.largest >> 23) - 127
    room = emin - m > -LARGEST_EXPONENT[dtype] and emax + 1 - m < LARGEST_EXPONENT[dtype] and emax < 126
    return "chain32" if room else "any32"


def _gradual(p: FloatParameters, dtype: torch.dtype) -> bool:
    """Whether there are bits to cut, subnormal numbers, and a signed zero."""
    subnormals = pattern(p.quantum * 2.0 ** (23 - p.shift), dtype) == p.smallest_normal
    return p.shift > 0 and subnormals and p.zero_sign != 0


def _uniform(p: FloatParameters, dtype: torch.dtype) -> bool:
    """Whether the format is float32 with fewer significand bits, such as bfloat16."""
    infinity = INFINITY[dtype]
    return p.infinite == infinity == p.largest + (1 << p.shift) and p.smallest_normal == pattern(2.0**-126, dtype)


@cache
def _packed(parameters: FloatParameters, dtype: torch.dtype) -> Words:
    return parameters.packed(dtype)


def round_by_mode(
    source: torch.Tensor, target: torch.Tensor, parameters: FloatParameters, random: RandomBits | None
) -> None:
    """Rounds ``source`` into ``target`` as the parameters' mode says.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        parameters: the format and the mode, for this dtype.
        random: the random bits, for stochastic rounding; an element's index is its place in row-major order.
    """
    if random is not None and not source.is_contiguous():
        rounded = source.contiguous()
        round_by_mode(rounded, rounded, parameters, random)
        target.copy_(rounded)
        return
    n, dtype = source.numel(), source.dtype
    words = _packed(parameters, dtype)
    in_place = target is source
    if random is None:
        name = "fixed32" if dtype == torch.float32 else "fixed64"
    else:
        name = _cheapest_random(parameters, dtype)
    body = getattr(mode_loops if random is None else random_loops, name + "_in_place" if in_place else name)
    signature = ("pnp" if in_place else "ppnp") + ("" if random is None else "nk")
    kernel = _compiled(body, dtype, signature)

    def piece(first: int, last: int) -> None:
        offset = first * dtype.itemsize
        addresses = [x.data_ptr() + offset for x in ([source] if in_place else [source, target])]
        hashing = () if chunk_keys is None else (first - chunk * CHUNK, chunk_keys.ctypes.data)
        kernel(*addresses, last - first, words.ctypes.data, *hashing)

    chunk_keys = None
    for chunk in range(max(1, -(-n // CHUNK)) if random is not None else 1):
        start = chunk * CHUNK
        count = min(n - start, CHUNK) if random is not None else n
        if random is not None:
            chunk_keys = np.array([*keys(random, chunk), *thinning(random.bits)], np.uint32)
        if count >= 2 * _ELEMENTS_PER_THREAD and torch.get_num_threads() > 1:
            _in_threads(lambda first, last, start=start: piece(start + first, start + last), count)  # type: ignore[misc]
        else:
            piece(start, start + count)
