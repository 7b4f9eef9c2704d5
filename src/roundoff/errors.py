"""The base of every error that a user can cause; files, which all parts share; names that do not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class RoundoffError(Exception):
    """An error the user can mend: its message names the place, the rule, the value and what is allowed.

    The command line prints the message alone and exits with status 2.
    """


class FileError(RoundoffError):
    """A file or folder that cannot be written, read, or understood; the message names it and the next step."""


def suggestion(name: object, known: Collection[str]) -> str:
    """The name among ``known`` that comes nearest, as `` (did you mean "..."?)``; empty if none comes near."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def check_name(what: str, name: str, known: Collection[str]) -> str:
    """Returns ``name`` if it is one of ``known``.

    Raises:
        ValueError: it is none of them; the nearest one is named.
    """
    if name not in known:
        raise ValueError(f'unknown {what} "{name}"{suggestion(name, known)}; allowed are {", ".join(known)}')
    return name
