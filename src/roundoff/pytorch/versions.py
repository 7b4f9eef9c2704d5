"""Lists the checked versions of PyTorch, and handles other versions.

``docs/limits.md`` lists the tests of each. A new version is checked by ``roundoff doctor --bits`` and ``make test
TORCH=...``, and added here, in ``pyproject.toml`` (the extra ``checked``) and on that page; a test compares the three.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

OLDEST = (2, 8)
"""Formats, ``round`` and ``testing`` work from here on."""
SIMULATING = ((2, 13), (2, 14), (2, 15))
"""Simulations, observers, blame and sweeps of programs were checked with these."""
COMPILING = ((2, 13), (2, 14), (2, 15))
"""The bits of compiled steps and populations were checked with these."""
VARIABLE = "ROUNDOFF_UNCHECKED"
"""If this environment variable is ``1``, steps are compiled on every version, to check one."""

_warned = False


class VersionWarning(UserWarning):
    """The installed version of PyTorch was not checked."""


def installed() -> str:
    """Returns the version of PyTorch, such as ``"2.13.0+cpu"``."""
    from torch import __version__  # noqa: PLC0415  torch takes seconds to import

    return str(__version__)


def release(version: str) -> tuple[int, int]:
    """Returns the major and the minor number of a version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def written(releases: tuple[tuple[int, int], ...]) -> str:
    """Returns releases as a text, such as ``"2.12, 2.13, 2.15"``."""
    return ", ".join(f"{major}.{minor}" for major, minor in releases)


def warn_where_unchecked() -> None:
    """Warns, once in a process, that simulations were not checked on the installed version."""
    global _warned  # noqa: PLW0603  once in a process
    if _warned:
        return
    _warned = True
    version = installed()
    if release(version) not in SIMULATING:
        warnings.warn(
            f"simulations were checked with PyTorch {written(SIMULATING)}, and not with {version}, which is installed:"
            " operations may have changed; `roundoff doctor --bits` compares samples of them",
            VersionWarning,
            stacklevel=2,
        )


def reason_against_compiled_bits() -> str | None:
    """Describes why steps are not compiled on the installed version; None if they are."""
    version = installed()
    if release(version) in COMPILING or os.environ.get(VARIABLE) == "1":
        return None
    return (
        f"the bits of compiled programs were checked with PyTorch {written(COMPILING)}, and not with {version}, which"
        f" is installed ({VARIABLE}=1 compiles all the same)"
    )


@contextmanager
def compiling_on_any_version() -> Iterator[None]:
    """Compiles steps even on unchecked versions, within the block."""
    original = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if original is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = original
