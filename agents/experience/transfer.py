"""Copies batches from the processor's memory to a device without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def to_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of a tensor of the processor's memory on a device, with the same dtype; for a CPU ``x`` itself.

    A GPU copies it after its earlier work, and this function does not wait for that; ``x`` may be changed at once.
    """
    return x if device.type == "cpu" else staged(x, device).to(device, non_blocking=True)


def copy_to_device_(target: torch.Tensor, x: torch.Tensor) -> None:
    """Copies a tensor of the processor's memory into one of a device, as :func:`to_device` does."""
    target.copy_(staged(x, target.device), non_blocking=True)


def staged(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of ``x`` in pinned memory for a GPU, which copies from there by itself; else ``x``.

    PyTorch does not reuse pinned memory before the copies from it are complete.
    """
    return x.pin_memory() if device.type == "cuda" else x
