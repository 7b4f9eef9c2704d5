"""The rounding kernels for CPU: numba's loops as C functions, called through plain pointers.

At 10 000 elements it is call overhead that costs, hence ctypes, which also releases the interpreter lock, so that
large tensors are split over torch's threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any, final

import numpy as np
import torch

from ..arithmetic.float_parameters import FloatParameters
from ..arithmetic.patterns import INFINITY, LARGEST_EXPONENT, pattern
from ..base.modes import RandomBits
from ..base.random_words import CHUNK, keys, thinning, words32
from .addressed import Addressed, Calling
from .numbers import floats_by_mode, floats_nearest
from .threads import ELEMENTS_PER_THREAD, compiled, in_pieces
from .widths import specialised

Parameters = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


@final
class FloatLoop:
    """A loop with its parameters, ready to run over tensors.

    Args:
        parameters: the words that the loop reads at ``p``.
        dtype: the carrier, float32 or float64.
        body: the loop over a source, a target and their length.

    Attributes:
        addressed: the loop for callers without Python.
    """

    __slots__ = ("_address", "_copying", "_in_place", "_size", "addressed")

    def __init__(self, parameters: Parameters, dtype: torch.dtype, body: Any) -> None:
        self.addressed = Addressed(Calling.BY_ADDRESS, body, dtype, parameters, places=True)
        self._address, self._size = self.addressed.parameters, dtype.itemsize
        self._copying = self.addressed.function(in_place=False)
        self._in_place = self.addressed.function(in_place=True)

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Rounds ``source`` into ``target``, both filling one gapless piece of CPU memory in the same order."""
        n, kernel = source.numel(), self._in_place if target is source else self._copying
        start, into = source.data_ptr(), target.data_ptr()
        if n < 2 * ELEMENTS_PER_THREAD or torch.get_num_threads() == 1:  # The usual case, without a closure.
            kernel(start, into, n, self._address)
            return

        def piece(first: int, last: int) -> None:
            offset = first * self._size
            kernel(start + offset, into + offset, last - first, self._address)

        in_pieces(piece, n, n)


def nearest(parameters: FloatParameters, dtype: torch.dtype) -> FloatLoop:
    """Rounding to nearest-even in one format and carrier, in the cheapest way that can."""
    if parameters.infinite != parameters.over_positive:  # The ways to nearest treat infinity as an overflow.
        return FloatLoop(_packed(parameters, dtype), dtype, floats_by_mode.fixed)
    loop = specialised(floats_nearest.nearest, dtype, **cheapest(parameters, dtype)._asdict())
    return FloatLoop(parameters.packed(dtype), dtype, loop)


def cheapest(p: FloatParameters, dtype: torch.dtype) -> floats_by_mode.Way:
    """The cheapest way to nearest."""
    if dtype == torch.float64:  # The faster ways are written for float32.
        return floats_nearest.ANY
    if p.shift < 23 and p.gradual(dtype) and _uniform(p, dtype):
        return floats_nearest.UNIFORM
    return floats_nearest.CHAIN if p.rounds_by_addition(dtype) else floats_nearest.ANY


def cheapest_random(p: FloatParameters, dtype: torch.dtype) -> floats_by_mode.Way:
    """The cheapest stochastic way."""
    if dtype == torch.float64 or not p.gradual(dtype) or p.infinite != p.over_positive:
        return floats_by_mode.ANY
    if _uniform(p, dtype):
        return floats_by_mode.UNIFORM
    m, emin, emax = 23 - p.shift, (p.smallest_normal >> 23) - 127, (p.largest >> 23) - 127
    # The factors that scale the last place to 1, and back, must be normal numbers.
    room = emin - m > -LARGEST_EXPONENT[dtype] and emax + 1 - m < LARGEST_EXPONENT[dtype] and emax < 126
    return floats_by_mode.CHAIN if room else floats_by_mode.ANY


def _uniform(p: FloatParameters, dtype: torch.dtype) -> bool:
    """Whether the format is float32 with fewer significand bits, such as bfloat16."""
    infinity = INFINITY[dtype]
    return p.infinite == infinity == p.largest + (1 << p.shift) and p.smallest_normal == pattern(2.0**-126, dtype)


@cache
def _packed(parameters: FloatParameters, dtype: torch.dtype) -> Parameters:
    return parameters.packed(dtype, by_mode=True)


def in_mode(parameters: FloatParameters, dtype: torch.dtype, *, draws: bool) -> Addressed:
    """The loop of :func:`round_by_mode`, for callers without Python; ``draws``: the mode is stochastic."""
    if draws:
        body = _hashed(parameters, dtype)
        return Addressed(Calling.DRAWN, body, dtype, _packed(parameters, dtype), places=True)
    return Addressed(Calling.BY_ADDRESS, floats_by_mode.fixed, dtype, _packed(parameters, dtype), places=True)


@cache
def _hashed(parameters: FloatParameters, dtype: torch.dtype) -> Any:
    """The loop that rounds with hashed words."""
    return specialised(floats_by_mode.hashed, dtype, **cheapest_random(parameters, dtype)._asdict())


def round_by_mode(
    source: torch.Tensor, target: torch.Tensor, parameters: FloatParameters, random: RandomBits | torch.Tensor | None
) -> None:
    """Rounds ``source`` into ``target`` as the parameters' mode says.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        parameters: the format and the mode, for this dtype.
        random: the random bits, for stochastic rounding; an element's index is its place in row-major order.
    """
    if random is not None and not (source.is_contiguous() and target.is_contiguous()):  # Words follow row-major order.
        rounded = source.clone(memory_format=torch.contiguous_format)
        round_by_mode(rounded, rounded, parameters, random)
        target.copy_(rounded)
        return
    n, size, words = source.numel(), source.itemsize, _packed(parameters, source.dtype)
    start, into, address = source.data_ptr(), target.data_ptr(), words.ctypes.data
    if isinstance(random, RandomBits):
        kernel = compiled(_hashed(parameters, source.dtype), source.dtype, in_place=target is source)
        for chunk in range(max(1, -(-n // CHUNK))):  # Each chunk has its own keys.
            at, count = chunk * CHUNK, min(n - chunk * CHUNK, CHUNK)
            drawn = np.array([*keys(random, chunk), *thinning(random.bits)], np.uint32)

            def hashed(first: int, last: int, at: int = at, drawn: Any = drawn) -> None:
                offset = (at + first) * size
                kernel(start + offset, into + offset, last - first, address, first, drawn.ctypes.data)

            in_pieces(hashed, count, count)
        return
    loop = floats_by_mode.fixed if random is None else floats_by_mode.given
    kernel = compiled(loop, source.dtype, in_place=target is source)
    caller_words = words32(random, source) if random is not None else None

    def piece(first: int, last: int) -> None:
        rest = () if caller_words is None else (caller_words.data_ptr() + first * 4,)  # 4 bytes a word.
        kernel(start + first * size, into + first * size, last - first, address, *rest)

    in_pieces(piece, n, n)
