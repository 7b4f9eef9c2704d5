"""The place of an element and its random word, for all kernels; written for Triton."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from ..base.random_words import hash32
from ..cpu.addends import mix64

FIXED, HASHED, GIVEN = range(3)
"""The sources of random words: none, a hash of the place, the caller."""
NUMBERS = ("count", "length", "inner", "block", "base", "bits", "shape", "from_strides", "to_strides")
"""Arguments of kernels that Triton must not specialise: no value deserves a separate program."""


def offset_of(index: Any, shape: Any, strides: Any, DIMENSIONS: tl.constexpr) -> Any:
    """Returns the offset in memory of element ``index`` in row-major order; ``index`` itself for 0 dimensions."""
    rest, offset = index, index
    if DIMENSIONS > 0:
        offset = rest * 0
        for i in tl.static_range(DIMENSIONS - 1, 0, -1):
            offset += rest % shape[i] * strides[i]
            rest = rest // shape[i]
        offset += rest * strides[0]
    return offset


def word_of(index: Any, base: Any, bits: Any, given: Any, inside: Any, WORDS: tl.constexpr) -> Any:
    """The random words of elements; 0 where rounding is not stochastic.

    Args:
        index: int64, their places in row-major order.
        base: the base of the keys; see :func:`~roundoff.formats.base.random_words.key_base`.
        bits: the number of bits of a word that the rounding uses.
        given: the address of the caller's words.
        inside: the mask of the elements that exist; None for all.
        WORDS: one of ``FIXED``, ``HASHED``, ``GIVEN``.
    """
    word = tl.full((), 0, tl.uint32)
    if WORDS == 1:
        key = mix64(tl.cast(base, tl.uint64) ^ tl.cast(index >> 32, tl.uint64))
        hashed = hash32(tl.cast(index, tl.uint32), tl.cast(key, tl.uint32), tl.cast(key >> 32, tl.uint32))
        # The bits that count, and half of the last; see `thinning`.
        dropped = tl.cast(32 - bits, tl.uint32)
        half = (tl.full((), 1, tl.uint32) << dropped) >> 1
        word = ((hashed >> dropped) << dropped) | half
    elif WORDS == 2:
        if inside is None:  # `other` is refused without a mask
            word = tl.cast(tl.load(given + index), tl.uint32, bitcast=True)
        else:
            word = tl.cast(tl.load(given + index, mask=inside, other=0), tl.uint32, bitcast=True)
    return word
