"""The rounding kernels for CPU: numba's loops as C functions, called through plain pointers.

At 10 000 elements it is call overhead that costs, hence ctypes, which also releases the interpreter lock, so that
large tensors are split over torch's threads.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..arithmetic.carriers import INFINITY, LARGEST_EXPONENT, pattern
from ..base.modes import RandomBits
from ..base.random_words import CHUNK, keys, thinning, words32
from .numbers import (
    floats_by_mode as mode_loops,
)
from .numbers import (
    floats_nearest as nearest_loops,
)
from .numbers import (
    floats_stochastic as random_loops,
)
from .threads import ELEMENTS_PER_THREAD, compiled, in_pieces

if TYPE_CHECKING:
    from types import ModuleType

    from ..arithmetic.float_parameters import FloatParameters

    Words = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


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
        self._copying = compiled(copying, dtype, "bbib")
        self._in_place = compiled(in_place, dtype, "bib")

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Rounds ``source`` into ``target``, both filling one gapless piece of CPU memory in the same order."""
        n = source.numel()
        if n >= 2 * ELEMENTS_PER_THREAD and torch.get_num_threads() > 1:
            in_pieces(lambda first, last: self._piece(source, target, first, last), n, n)
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
    if parameters.infinite != parameters.over_positive:  # the loops to nearest treat infinity as what is too large
        loops = (mode_loops.fixed32, mode_loops.fixed32_in_place), (mode_loops.fixed64, mode_loops.fixed64_in_place)
        return Loop(_packed(parameters, dtype), dtype, *loops[dtype == torch.float64])
    name = _cheapest(parameters, dtype)
    loop, in_place = getattr(nearest_loops, name), getattr(nearest_loops, f"{name}_in_place")
    return Loop(parameters.packed(dtype), dtype, loop, in_place)


def _cheapest(p: FloatParameters, dtype: torch.dtype) -> str:
    """The name of the cheapest loop to nearest; see :mod:`.floats_nearest`."""
    if dtype == torch.float64:
        return "any64"
    if p.shift < 23 and p.gradual(dtype) and _uniform(p, dtype):
        return "uniform32"
    return "chain32" if p.rounds_by_addition(dtype) else "any32"


def _cheapest_random(p: FloatParameters, dtype: torch.dtype) -> str:
    """The cheapest stochastic loop, without the width of the carrier; see :mod:`.floats_stochastic`."""
    if dtype == torch.float64 or not p.gradual(dtype) or p.infinite != p.over_positive:
        return "any"
    if _uniform(p, dtype):
        return "uniform"
    m, emin, emax = 23 - p.shift, (p.smallest_normal >> 23) - 127, (p.largest >> 23) - 127
    room = emin - m > -LARGEST_EXPONENT[dtype] and emax + 1 - m < LARGEST_EXPONENT[dtype] and emax < 126
    return "chain" if room else "any"


def _uniform(p: FloatParameters, dtype: torch.dtype) -> bool:
    """Whether the format is float32 with fewer significand bits, such as bfloat16."""
    infinity = INFINITY[dtype]
    return p.infinite == infinity == p.largest + (1 << p.shift) and p.smallest_normal == pattern(2.0**-126, dtype)


@cache
def _packed(parameters: FloatParameters, dtype: torch.dtype) -> Words:
    return parameters.packed(dtype, by_mode=True)


def round_by_mode(
    source: torch.Tensor,
    target: torch.Tensor,
    parameters: FloatParameters,
    random: RandomBits | torch.Tensor | None,
) -> None:
    """Rounds ``source`` into ``target`` as the parameters' mode says.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        parameters: the format and the mode, for this dtype.
        random: the random bits, for stochastic rounding; an element's index is its place in row-major order.
    """
    if random is not None and not (source.is_contiguous() and target.is_contiguous()):
        rounded = source.clone(memory_format=torch.contiguous_format)
        round_by_mode(rounded, rounded, parameters, random)
        target.copy_(rounded)
        return
    words = _packed(parameters, source.dtype)
    if random is None:
        _run(_loop(mode_loops, "fixed", source, target), source, target, words, (), 0, source.numel())
    elif isinstance(random, RandomBits):
        _round_by_hash(source, target, parameters, words, random)
    else:
        _round_by_given(source, target, words, words32(random, source))


def _loop(module: ModuleType, name: str, source: torch.Tensor, target: torch.Tensor) -> Any:
    return getattr(module, f"{name}{8 * source.itemsize}{'_in_place' if target is source else ''}")


def _run(
    loop: Any, source: torch.Tensor, target: torch.Tensor, words: Words, rest: tuple[int, ...], first: int, last: int
) -> None:
    """Runs a loop over the elements ``first`` to ``last``; of ``rest``, the first is an index to count on from."""
    in_place = target is source
    kernel = compiled(loop, source.dtype, ("bib" if in_place else "bbib") + ("iw" if rest else ""))
    size = source.itemsize
    data = (source.data_ptr(),) if in_place else (source.data_ptr(), target.data_ptr())

    def piece(start: int, end: int) -> None:
        hashing = (rest[0] + start, *rest[1:]) if rest else ()
        at = (first + start) * size
        kernel(*(address + at for address in data), end - start, words.ctypes.data, *hashing)

    in_pieces(piece, last - first, last - first)


def _round_by_hash(
    source: torch.Tensor, target: torch.Tensor, parameters: FloatParameters, words: Words, random: RandomBits
) -> None:
    loop = _loop(random_loops, _cheapest_random(parameters, source.dtype), source, target)
    n = source.numel()
    for chunk in range(max(1, -(-n // CHUNK))):
        chunk_keys = np.array([*keys(random, chunk), *thinning(random.bits)], np.uint32)
        _run(loop, source, target, words, (0, chunk_keys.ctypes.data), chunk * CHUNK, min(n, (chunk + 1) * CHUNK))


def _round_by_given(source: torch.Tensor, target: torch.Tensor, words: Words, given: torch.Tensor) -> None:
    loop = random_loops.given32 if source.itemsize == 4 else random_loops.given64
    kernel = compiled(loop, source.dtype, "bbibw")
    size, data = source.itemsize, (source.data_ptr(), target.data_ptr(), given.data_ptr())

    def piece(first: int, last: int) -> None:
        kernel(data[0] + first * size, data[1] + first * size, last - first, words.ctypes.data, data[2] + first * 4)

    in_pieces(piece, source.numel(), source.numel())
