"""What a number format is, and rounding a tensor into it."""

from roundoff.formats.errors import FormatError, RoundoffError

__all__ = ["FormatError", "RoundoffError"]
