"""Defines the base of all errors that a user can cause, errors of files, and messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator


class RoundoffError(Exception):
    """An error the user can fix: its message names the place, the rule, the value and the allowed values.

    The command line prints only the message and exits with status 2.
    """


class FileError(RoundoffError):
    """A file or folder that cannot be written, read, or understood; the message names it and the next step."""


class RunError(RoundoffError):
    """A run that cannot start or continue with its present config and directory."""


class FolderInUseError(FileError):
    """A folder that another process is using at this moment."""


def suggestion(name: object, known: Collection[str]) -> str:
    """Writes the nearest name among ``known`` as `` (did you mean "..."?)``; empty if none is near."""
    near = nearest(str(name), known)
    return f' (did you mean "{near}"?)' if near else ""


def nearest(name: str, known: Collection[str], least: float = 0.6) -> str | None:
    """Finds the name among ``known`` that ``name`` may mean: the first that begins with it, else the most similar.

    Args:
        name: the unknown name; one character is not taken as a beginning.
        known: the names that exist.
        least: the least similarity, from 0 to 1, as measured by difflib.
    """
    completions = (candidate for candidate in known if candidate.startswith(name) and len(name) > 1)
    return next(completions, None) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=least)), None)


def check_name(kind: str, name: str, known: Collection[str]) -> str:
    """Returns ``name`` if it is one of ``known``.

    Raises:
        ValueError: it is not one of them; the message names the nearest.
    """
    if name not in known:
        raise ValueError(f'unknown {kind} "{name}"{suggestion(name, known)}; allowed are {", ".join(known)}')
    return name


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and the errors that it was raised from."""
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
