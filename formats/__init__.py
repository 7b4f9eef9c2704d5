"""What a number format is, and rounding a tensor into it."""

from roundoff.formats.errors import FormatError, RoundoffError
from roundoff.formats.floats import FloatFormat
from roundoff.formats.format import Format
from roundoff.formats.modes import Overflow, RandomBits, Rounding
from roundoff.formats.rounding import round

__all__ = [
    "FloatFormat",
    "Format",
    "FormatError",
    "Overflow",
    "RandomBits",
    "Rounding",
    "RoundoffError",
    "round",
]
