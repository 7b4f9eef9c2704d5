"""Reading the description of a policy from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.extras import from_extras
from roundoff.files import read_bytes

from ...formats import FormatError


def read_description(path: str | Path) -> dict[str, Any] | str:
    """Reads the plain data in a YAML file, for ``Policy.parse``.

    Raises:
        FormatError: it cannot be read, is not YAML, or has neither a mapping nor a name.
    """
    with from_extras():
        import yaml  # noqa: PLC0415  of an extra

    try:
        description = yaml.safe_load(read_bytes(path))
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: is not YAML: {str(error).splitlines()[0] if str(error) else error!r}") from error
    if not isinstance(description, (dict, str)):
        raise FormatError(f"{path}: a policy is a mapping, or the name of a format, got {description!r}")
    return description
