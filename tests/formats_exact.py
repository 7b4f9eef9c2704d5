"""The scalar references in exact rational arithmetic, which every format family is compared with, bit for bit."""

from roundoff.formats.tools.reference import exponent, goes_up, round_float, round_to_integer

__all__ = ["exponent", "goes_up", "round_float", "round_to_integer"]
