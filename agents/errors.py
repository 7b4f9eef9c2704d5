"""Errors of training runs that a user can mend."""

from roundoff.formats.errors import RoundoffError


class FileError(RoundoffError):
    """A file or folder that cannot be written, read, or understood; the message names it and the next step."""


class RunError(RoundoffError):
    """A run that cannot start or go on as its config and its directory stand."""
