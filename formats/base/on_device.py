"""Numbers and tables on the device that computes with them, without waiting for it."""

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
    """A number as a tensor without dimensions on ``device``, without waiting; a tensor as it is."""
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device)


def table_on(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``table``, a constant in the processor's memory, on ``device``: copied there once."""
    if device.type == "cpu":
        return table
    if is_traced():  # what stands for numbers is not to be kept
        return table.to(device)
    copies: dict[torch.device, torch.Tensor] = table.__dict__.setdefault("copies", {})
    if device not in copies:
        copies[device] = put_on(table, device)
    return copies[device]


def put_on(
    values: torch.Tensor | np.ndarray[Any, Any] | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Numbers of the processor's memory as a new tensor on a device: a GPU copies them by itself, from pinned memory.

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
    """Whether a CUDA graph is being captured, which will replay the present launches."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
