"""Counter-based random words: the same 32 bits for (seed, step, element index) on every device.

The index is spread by an odd multiplier (near 2^32 times the golden ratio, top bits cleared), then mixed with two keys
by the best two-round 32-bit mixer of hash-prospector (C. Wellons, https://github.com/skeeto/hash-prospector,
``21f0aaad 735a2d97``). Without the multiplier neighbouring indices showed correlated bits at 8 standard deviations in
2^18 words; with it none. All constants are below 2^31, so that 64-bit signed arithmetic does not overflow.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import njit
from numpy import uint32

from .errors import FormatError
from .modes import WORD_BITS, RandomBits

_SPREAD, _FIRST, _SECOND = 0x1E3779B9, 0x21F0AAAD, 0x735A2D97
_MASK = 0xFFFFFFFF
_MASK64 = (1 << 64) - 1
CHUNK = 1 << 32
"""The number of elements in a chunk; the next chunk has the same indices and other keys."""

# The random bits per element of a caller's integer tensor. Of wider types the lowest 32 bits are used.
_WORD_WIDTHS = {torch.uint8: 8, torch.uint16: 16, torch.int32: 32, torch.uint32: 32, torch.int64: 32}


def _mix64(x: int) -> int:
    """Computes one output of splitmix64 (Steele, Lea, Flood 2014) with state ``x``."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def keys(random: RandomBits, chunk: int = 0) -> tuple[int, int]:
    """Computes the two 32-bit keys of a rounding, for the elements from ``chunk * CHUNK`` on."""
    key = _mix64(key_base(random) ^ chunk)
    return key & _MASK, key >> 32


def key_base(random: RandomBits) -> int:
    """Computes the 64 bits from which the keys of every chunk are derived."""
    return _mix64(_mix64(random.seed & _MASK64) ^ (random.step & _MASK64))


def thinning(bits: int) -> tuple[int, int]:
    """Returns (mask, half): ``word & mask | half`` keeps the top ``bits`` bits and centres them in their interval.

    The centre makes the probability of a carry the nearest multiple of 2^-bits instead of the next lower one.
    """
    if bits == WORD_BITS:
        return _MASK, 0
    return _MASK & -(1 << (WORD_BITS - bits)), 1 << (WORD_BITS - 1 - bits)


@njit(inline="always")  # type: ignore[untyped-decorator]
def hash32(index: Any, key0: Any, key1: Any) -> Any:
    """Computes the random word, uint32, of element ``index`` (0 to 2^32 - 1); for use inside numba kernels."""
    x = uint32(uint32(index * uint32(_SPREAD)) + key0)
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(_FIRST))
    x = uint32(x ^ key1)
    x = uint32(uint32(x ^ uint32(x >> uint32(15))) * uint32(_SECOND))
    return uint32(x ^ uint32(x >> uint32(15)))


def hash_tensor(index: torch.Tensor, key0: int | torch.Tensor, key1: int | torch.Tensor) -> torch.Tensor:
    """Computes :func:`hash32` of an int64 tensor of indices (0 to 2^32 - 1), on any device; returns words as int64."""
    x = (index * _SPREAD + key0) & _MASK
    x = ((x ^ (x >> 16)) * _FIRST) & _MASK
    x = x ^ key1
    x = ((x ^ (x >> 15)) * _SECOND) & _MASK
    return x ^ (x >> 15)


def random_words(random: RandomBits | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns a 32-bit word for each element of ``like``, reduced to the number of random bits; int64 in [0, 2^32).

    Args:
        random: the source of the words: the counter hash, or the caller's integers, of the shape of ``like``:
            8 random bits an element for uint8, 16 for uint16, and 32 (the lowest) for int32, uint32 and int64.
        like: a tensor with the shape and device of the result.

    Raises:
        FormatError: the caller's tensor has another shape, device or dtype.
    """
    if isinstance(random, RandomBits):
        chunks = enumerate(range(0, max(like.numel(), 1), CHUNK))
        chunk_sizes = ((chunk, min(like.numel() - start, CHUNK)) for chunk, start in chunks)
        chunk_words = [
            hash_tensor(torch.arange(n, device=like.device), *keys(random, chunk)) for chunk, n in chunk_sizes
        ]
        words = (chunk_words[0] if len(chunk_words) == 1 else torch.cat(chunk_words)).view(like.shape)
        bits = random.bits
    else:
        check_words(random, like)
        bits = _WORD_WIDTHS[random.dtype]
        words = (random.to(torch.int64) << (WORD_BITS - bits)) & _MASK  # Few bits are the upper ones of a word.
    mask, half = thinning(bits)
    return words if not half else (words & mask) | half  # Of 32 bits, all count.


def words32(random: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the words of a caller's tensor as :func:`random_words` does, but as contiguous int32.

    Raises:
        FormatError: the caller's tensor has another shape, device or dtype.
    """
    check_words(random, like)
    bits = _WORD_WIDTHS[random.dtype]
    if bits == WORD_BITS:
        random = random.view(torch.int32) if random.dtype == torch.uint32 else random.to(torch.int32)
        return random.contiguous()
    words = random.to(torch.int32, memory_format=torch.contiguous_format)
    return words.bitwise_left_shift_(WORD_BITS - bits).bitwise_or_(thinning(bits)[1])


def check_words(random: object, like: torch.Tensor) -> None:
    """Raises FormatError unless ``random`` is an integer tensor with a word for each element of ``like``."""
    if not isinstance(random, torch.Tensor):
        raise FormatError(f"random must be RandomBits(seed, step, bits) or an integer tensor, got {random!r}")
    if random.dtype not in _WORD_WIDTHS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _WORD_WIDTHS)
        raise FormatError(f"a tensor of random bits must have one of the dtypes {allowed}, got {random.dtype}")
    if random.shape != like.shape or random.device != like.device:
        raise FormatError(
            f"a tensor of random bits must have the shape and device of the tensor to round, {tuple(like.shape)} on"
            f" {like.device}, got {tuple(random.shape)} on {random.device}"
        )
