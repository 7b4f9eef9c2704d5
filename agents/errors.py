"""Errors of training runs that a user can mend."""

from roundoff.errors import FileError, RoundoffError


class RunError(RoundoffError):
    """A run that cannot start or go on as its config and its directory stand."""


__all__ = ["FileError", "RunError"]
