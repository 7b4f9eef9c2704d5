"""Reading what runs have left, which may be damaged, and writing what was made."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from roundoff.analysis.errors import AnalysisError

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path, warnings: list[str]) -> Any:
    """The JSON in a file; None if there is no file, or, with a warning, if it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        json.dumps(content, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not JSON"
        warnings.append(f"{path}: {reason}; left out")
        return None
    return content


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
