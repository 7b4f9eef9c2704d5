"""The rounding mode as numba loops read it: the addends of the shared tail, and a random word for every element.

A loop works on pieces of at most ``SCRATCH`` elements and adds a word to each one's addend: zero, unless rounding is
stochastic; then it is a hash of the element's index or was given by the caller. That keeps one loop for all modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy import int64, uint32, uint64

from ..arithmetic.tail import rule
from ..base.modes import WORD_BITS, Random, RandomBits, Rounding, RoundingOptions
from ..base.random_words import CHUNK, hash32, key_base, thinning, words32
from .threads import compiled, in_pieces
from .widths import ByWidth, specialised, unsigned

Settings = np.ndarray[tuple[int], np.dtype[np.int64]]

KIND = 4
"""The place in the settings that says where random words come from."""
FIXED, _HASHED, _GIVEN = range(3)
BETWEEN = 9
"""The place in the settings that says whether numbers of a scaled grid are chosen as they are; see
:func:`.between_steps`."""
_LOW = CHUNK - 1
_BELOW: Any = ByWidth(uint64(32), uint64(0))  # how far right an addend of 64 bits is shifted


class Addends(NamedTuple):
    """The arguments of a loop: the addresses of the settings and the given words, and the objects that own them."""

    settings: int
    words: int
    owners: tuple[Any, ...]


def run_in_mode(
    loop: Any,
    options: RoundingOptions,
    data: Sequence[torch.Tensor],
    rest: Sequence[float],
    items: int,
    *,
    between: bool = False,
) -> None:
    """Runs a loop over its items, in several threads where that pays.

    Args:
        loop: called with the addresses of ``data``, the first item and the one after the last, ``rest``, and the
            addresses of the mode's settings and of the random words.
        options: the mode, and the random bits of stochastic rounding.
        data: the source, which is contiguous if rounding is stochastic; the target, and the loop's other inputs.
        rest: numbers.
        items: the number of items.
        between: see ``BETWEEN``.

    Raises:
        FormatError: the caller's random tensor has another shape, device or dtype.
    """
    source = data[0]
    extra = _addends(options.rounding, options.random, source, between)  # Its arrays live until the end of the call.
    kernel = compiled(loop, source.dtype)
    addresses, others = [x.data_ptr() for x in data], (*rest, extra.settings, extra.words)
    in_pieces(lambda first, last: kernel(*addresses, first, last, *others), items, source.numel())


def _addends(rounding: Rounding, random: Random, like: torch.Tensor, between: bool) -> Addends:
    if random is None:
        return _fixed(rounding, between)
    if isinstance(random, RandomBits):
        mask, half = thinning(random.bits)
        base = key_base(random)
        settings = _packed(rounding, between, _HASHED, base & 0xFFFFFFFF, base >> 32, mask, half)
        return Addends(settings.ctypes.data, 0, (settings,))
    words = words32(random, like)
    settings = _packed(rounding, between, _GIVEN)
    return Addends(settings.ctypes.data, words.data_ptr(), (settings, words))


def settings_of(rounding: Rounding) -> Settings:
    """The settings of a mode; where it is stochastic, words are hashed, from a base that is still to be filled in."""
    if rounding is Rounding.STOCHASTIC:
        return _packed(rounding, False, _HASHED, 0, 0, *thinning(WORD_BITS))
    return _packed(rounding, False, FIXED)


@cache
def _fixed(rounding: Rounding, between: bool) -> Addends:
    settings = _packed(rounding, between, FIXED)
    return Addends(settings.ctypes.data, 0, (settings,))


def _packed(rounding: Rounding, between: bool, kind: int, *rest: int) -> Settings:
    mode = rule(rounding, 64)  # Loops of float32 shift the addends down.
    numbers = [mode.positive, mode.negative, mode.parity, mode.sticky, kind, *rest]
    # Addends have 64 unsigned bits; places that the kind does not use are 0.
    return np.array(numbers + [0] * (BETWEEN - len(numbers)) + [between], np.uint64).view(np.int64)


@njit(inline="always")  # type: ignore[untyped-decorator]
def mode_of(settings: Any) -> Any:
    """(positive, negative, parity, sticky) of the mode, unsigned, for fractions of the carrier's width."""
    positive, negative = uint64(settings[0]) >> _BELOW, uint64(settings[1]) >> _BELOW
    return unsigned(positive), unsigned(negative), unsigned(settings[2]), unsigned(settings[3])


mode64 = specialised(mode_of, torch.float64)
"""The :func:`mode_of` of loops that compute in float64 whatever the carrier is."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def mix64(x: Any) -> Any:
    """One output of splitmix64, as in roundoff.formats.base.random_words."""
    x = uint64(x + uint64(0x9E3779B97F4A7C15))
    x = uint64(uint64(x ^ uint64(x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9))
    x = uint64(uint64(x ^ uint64(x >> uint64(27))) * uint64(0x94D049BB133111EB))
    return uint64(x ^ uint64(x >> uint64(31)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def fill(place: Any, count: Any, index: Any, settings: Any, given: Any) -> None:
    """Writes the words of the elements ``index``, ``index + 1``, ... to ``place``, if rounding is stochastic.

    Args:
        place: pointer to uint32, zeros at first.
        count: how many elements, at most ``SCRATCH``.
        index: the index of the first element, int64.
        settings: the settings of the mode.
        given: pointer to the caller's words.
    """
    if settings[KIND] == _HASHED:
        base = uint64(uint64(settings[5]) | uint64(uint64(settings[6]) << uint64(32)))
        mask, half = uint32(settings[7]), uint32(settings[8])
        done = int64(0)
        while done < count:
            at = int64(index + done)
            key = mix64(uint64(base ^ uint64(at >> 32)))  # Every chunk of 2^32 elements has its own keys.
            key0, key1 = uint32(key), uint32(key >> uint64(32))
            start = uint32(at & _LOW)
            part = min(int64(count - done), int64(CHUNK - (at & _LOW)))  # Up to the end of the chunk.
            for i in range(part):
                word = hash32(uint32(start + uint32(i)), key0, key1)
                place[done + i] = uint32(uint32(word & mask) | half)
            done += part
    elif settings[KIND] == _GIVEN:
        for i in range(count):
            place[i] = given[index + i]
