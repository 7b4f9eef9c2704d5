"""Numbers and tables on the device that computes with them, without waiting for it."""

from __future__ import annotations

import torch

from .memory import apart, is_traced


def where(condition: torch.Tensor, a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """``torch.where(condition, a, b)``, of which Python numbers are filled in on the device of ``condition``.

    PyTorch copies them there from the processor's memory, and waits for that (``aten::where``, as of 2.13).
    """
    if condition.is_cpu:
        return torch.where(condition, a, b)
    dtype, device = torch.result_type(a, b), condition.device
    return torch.where(condition, number_on(a, dtype, device), number_on(b, dtype, device))


@apart
def number_on(x: torch.Tensor | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as a tensor without dimensions on ``device``, without waiting; a tensor as it is."""
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device)


def table_on(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``table``, which lies in the processor's memory and never changes, on ``device``: copied there once."""
    if device.type == "cpu":
        return table
    if is_traced():  # what stands for numbers is not to be kept
        return table.to(device)
    copies: dict[torch.device, torch.Tensor] = table.__dict__.setdefault("copies", {})
    if device not in copies:
        copies[device] = table.to(device, non_blocking=True)
    return copies[device]
