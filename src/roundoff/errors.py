"""The base of every error that a user can cause, and the error of files, which all parts share."""


class RoundoffError(Exception):
    """An error the user can mend: its message names the place, the rule, the value and what is allowed.

    The command line prints the message alone and exits with status 2.
    """


class FileError(RoundoffError):
    """A file or folder that cannot be written, read, or understood; the message names it and the next step."""
