"""The base of every error that a user can cause, and the errors of number formats."""

from roundoff.errors import RoundoffError


class FormatError(RoundoffError, ValueError):
    """A number format that does not exist, or that cannot be used in its place."""


__all__ = ["FormatError", "RoundoffError"]
