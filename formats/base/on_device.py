"""Copies numbers and tables to the device that computes with them, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .errors import FormatError
from .memory import is_traced, unsimulated


def where(condition: torch.Tensor, a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """``torch.where(condition, a, b)``; fills in Python numbers on the device of ``condition``.

    PyTorch copies them there from the processor's memory, and waits for that (``aten::where``, as of 2.13).
    """
    if condition.is_cpu:
        return torch.where(condition, a, b)
    dtype, device = torch.result_type(a, b), condition.device
    return torch.where(condition, number_on(a, dtype, device), number_on(b, dtype, device))


@unsimulated
def number_on(x: torch.Tensor | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Converts a number to a tensor without dimensions on ``device``, without waiting; returns a tensor unchanged."""
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device)


def table_on(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the copy on ``device`` of a constant table in the processor's memory; copies it only once."""
    if device.type == "cpu":
        return table
    if is_traced():  # the copy may be a fake tensor, which must not be kept
        return table.to(device)
    copies: dict[torch.device, torch.Tensor] = table.__dict__.setdefault("copies", {})
    if device not in copies:
        copies[device] = put_on(table, device)
    return copies[device]


def put_on(
    values: torch.Tensor | np.ndarray[Any, Any] | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Copies numbers in the processor's memory to a new tensor on a device, by way of pinned memory for a GPU.

    Raises:
        FormatError: a CUDA graph is being captured, and its replays would read the numbers from freed memory.
    """
    x = torch.as_tensor(values, dtype=dtype, device="cpu")
    if device.type != "cuda":
        return x.to(device)
    if is_captured():
        raise FormatError(
            "the first rounding of its kind puts the format on the device, which a CUDA graph cannot repeat: run the"
            " step once before it is captured"
        )
    return x.pin_memory().to(device, non_blocking=True)


def is_captured() -> bool:
    """Whether a CUDA graph is being captured, so that launches are recorded instead of run."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
