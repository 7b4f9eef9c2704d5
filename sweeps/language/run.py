"""One run of a sweep, and the name of its directory."""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

from ..subjects.subject import RunConfig


class Run(NamedTuple):
    """One planned run."""

    id: str
    """Name of its directory: task, format, seed, and a hash of the whole config."""
    config: RunConfig
    case: str = ""
    """Name of the case it belongs to, if the sweep has any."""


def run_id(config: RunConfig) -> str:
    """The name of a run's directory; equal configs have equal names, whatever sweep they are part of."""
    canonical = json.dumps(config.as_json(), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
    # gym:Pendulum-v1 would be no good name of a folder, nor module:format.
    task, fmt = (re.sub(r"[^\w.-]", "_", name) for name in (config.task, config.format))
    return f"{task}-{fmt}-s{config.seed}-{digest}"
