"""Determines the origin of a result: versions, processor, commit and time."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def origin() -> dict[str, str]:
    """Returns versions, processor, commit and time of this process; facts that cannot be determined are left out.

    Returns:
        Versions of ``python``, ``torch`` and ``numpy``, the ``processor``, the ``commit`` of this package's checkout
        (``-dirty`` follows if files are changed), and ``ended``, the time now (UTC, ISO 8601).
    """
    return _constant_facts() | {"ended": datetime.now(UTC).isoformat(timespec="seconds")}


def commit_of(file: Path) -> str | None:
    """Returns the commit of the checkout of a file; None if git is missing or does not track the file."""
    git = shutil.which("git")
    if git is None:
        return None
    tracked = [git, "ls-files", "--error-unmatch", file.name]
    describe = [git, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        for command in (tracked, describe):
            result = subprocess.run(  # noqa: S603  git itself, with our own arguments
                command, cwd=file.parent, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
                capture_output=True, check=True, text=True, timeout=20,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.strip()


@cache
def _constant_facts() -> dict[str, str]:
    """Returns the facts that do not change during a process."""
    facts = {"python": platform.python_version()}
    for package in ("torch", "numpy"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = commit_of(Path(__file__).resolve())
    return facts | {"processor": _processor()} | ({"commit": commit} if commit else {})


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system than Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
