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
"""Element indices repeat after so many elements: the next chunk gets other keys."""

# What a caller's own integer tensor holds per element. Wider types give their lowest 32 bits.
_GIVEN_BITS = {torch.uint8: 8, torch.uint16: 16, torch.int32: 32, torch.uint32: 32, torch.int64: 32}


def _mix64(x: int) -> int:
    """One output of splitmix64 (Steele, Lea, Flood 2014) with state ``x``."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def keys(random: RandomBits, chunk: int = 0) -> tuple[int, int]:
    """The two 32-bit keys of a rounding, for the elements from ``chunk * CHUNK`` on."""
    key = _mix64(key_base(random) ^ chunk)
    return key & _MASK, key >> 32


def key_base(random: RandomBits) -> int:
    """The 64 bits that the keys of every chunk follow from."""
    return _mix64(_mix64(random.seed & _MASK64) ^ (random.step & _MASK64))


def thinning(bits: int) -> tuple[int, int]:
    """(mask, half): ``word & mask | half`` keeps the top ``bits`` bits and centres them in their interval.

    The centre makes the probability of a carry the nearest multiple of 2^-bits instead of the next lower one.
    """
    if bits == WORD_BITS:
        return _MASK, 0
    return _MASK & -(1 << (WORD_BITS - bits)), 1 << (WORD_BITS - 1 - bits)


@njit(inline="always")  # type: ignore[untyped-decorator]
def hash32(index: Any, key0: Any, key1: Any) -> Any:
    """The random word of element ``index`` (0 to 2^32 - 1), of uint32, for use inside numba kernels."""
    x = uint32(uint32(index * uint32(_SPREAD)) + key0)
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(_FIRST))
    x = uint32(x ^ key1)
    x = uint32(uint32(x ^ uint32(x >> uint32(15))) * uint32(_SECOND))
    return uint32(x ^ uint32(x >> uint32(15)))


def hash_tensor(index: torch.Tensor, key0: int | torch.Tensor, key1: int | torch.Tensor) -> torch.Tensor:
    """:func:`hash32` on an int64 tensor of indices 0 to 2^32 - 1, any device; words as int64."""
    x = (index * _SPREAD + key0) & _MASK
    x = ((x ^ (x >> 16)) * _FIRST) & _MASK
    x = x ^ key1
    x = ((x ^ (x >> 15)) * _SECOND) & _MASK
    return x ^ (x >> 15)


def random_words(random: RandomBits | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One 32-bit word per element of ``like``, thinned to its number of bits, as int64 in [0, 2^32).

    Args:
        random: where the words come from: the counter hash, or integers given by the caller, of the shape of ``like``:
            8 random bits an element for uint8, 16 for uint16, and 32 (the lowest) for int32, uint32 and int64.
        like: shape and device.

    Raises:
        FormatError: the caller's tensor has another shape, device or dtype.
    """
    if isinstance(random, RandomBits):
        chunks = enumerate(range(0, max(like.numel(), 1), CHUNK))
        sizes = ((chunk, min(like.numel() - start, CHUNK)) for chunk, start in chunks)
        pieces = [hash_tensor(torch.arange(n, device=like.device), *keys(random, chunk)) for chunk, n in sizes]
        words = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(like.shape)
        bits = random.bits
    else:
        check_given(random, like)
        bits = _GIVEN_BITS[random.dtype]
        words = (random.to(torch.int64) << (WORD_BITS - bits)) & _MASK
    mask, half = thinning(bits)
    return words if not half else (words & mask) | half


def words32(random: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The words that a caller's tensor gives, as :func:`random_words` has them, but in 32 bits each: contiguous int32.

    Raises:
        FormatError: the tensor has another shape, device or dtype than it may.
    """
    check_given(random, like)
    bits = _GIVEN_BITS[random.dtype]
    if bits == WORD_BITS:
        random = random.view(torch.int32) if random.dtype == torch.uint32 else random.to(torch.int32)
        return random.contiguous()
    words = random.to(torch.int32, memory_format=torch.contiguous_format)
    return words.bitwise_left_shift_(WORD_BITS - bits).bitwise_or_(thinning(bits)[1])


def check_given(random: object, like: torch.Tensor) -> None:
    """Raises FormatError unless ``random`` is an integer tensor that can serve the elements of ``like``."""
    if not isinstance(random, torch.Tensor):
        raise FormatError(f"random must be RandomBits(seed, step, bits) or an integer tensor, got {random!r}")
    if random.dtype not in _GIVEN_BITS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _GIVEN_BITS)
        raise FormatError(f"a tensor of random bits must have one of the dtypes {allowed}, got {random.dtype}")
    if random.shape != like.shape or random.device != like.device:
        raise FormatError(
            f"a tensor of random bits must have the shape and device of the tensor to round, {tuple(like.shape)} on"
            f" {like.device}, got {tuple(random.shape)} on {random.device}"
        )
