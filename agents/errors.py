"""Errors of training runs that a user can fix."""

from roundoff.errors import FileError, RunError

__all__ = ["FileError", "RunError"]
