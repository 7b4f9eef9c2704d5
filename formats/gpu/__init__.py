"""Kernels for graphics processors, in Triton: one launch per rounding.

The functions of :mod:`.rounding` are attributes of this package; Triton is imported when the first is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith(("to_", "as_qtorch", "float_kernel", "run_")):
        raise AttributeError(name)
    function = globals()[name] = getattr(import_module(f"{__name__}.rounding"), name)
    return function
