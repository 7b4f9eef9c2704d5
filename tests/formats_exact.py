"""The scalar references in exact rational arithmetic, which every format family is compared with, bit for bit."""

from roundoff.formats.tools.reference import exponent, goes_up, round_float, round_to_integer

__all__ = ["exponent", "goes_up", "hash_reference", "round_float", "round_to_integer"]


def hash_reference(index: int, key0: int, key1: int) -> int:
    """The random word of element ``index`` (0 to 2^32 - 1), in plain Python."""
    x = (index * 0x1E3779B9 + key0) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x ^= key1
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
