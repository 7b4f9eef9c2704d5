"""The base of every error that a user can cause, and that of number formats."""

from roundoff.errors import RoundoffError


class FormatError(RoundoffError, ValueError):
    """A number format that does not exist, or that cannot be used where it stands."""


__all__ = ["FormatError", "RoundoffError"]
