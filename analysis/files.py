"""Writing what was made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roundoff.analysis.errors import AnalysisError

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> Path:
    """Replaces a file as a whole, so that a killed command leaves no half of one; returns its path.

    Raises:
        AnalysisError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise AnalysisError(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error
    return path
