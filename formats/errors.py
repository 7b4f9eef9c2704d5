"""The base of every error that a user can cause."""


class RoundoffError(Exception):
    """An error the user can mend: its message names the place, the rule, the value and what is allowed.

    The command line prints the message alone and exits with status 2.
    """


class FormatError(RoundoffError, ValueError):
    """A number format that does not exist, or that cannot be used where it stands."""
