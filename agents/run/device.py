"""The device of a run: checks that this machine has it, and that it supports the run."""

from __future__ import annotations

import torch

from ..config.rules import NATIVE_FORMATS
from ..errors import RunError

_NEEDED_CAPABILITIES = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}
"""The lowest compute capability with arithmetic of a dtype; older cards emulate it, or refuse."""


def open_device(name: str, native: str | None = None) -> torch.device:
    """Returns the device called ``name``, without an allocation there.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:<n>``.
        native: the format of tensors, if it is a half precision of PyTorch.

    Raises:
        RunError: PyTorch does not find the device, or it does not compute in ``native``; the message has a remedy.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise RunError(
            f"device is {name}, but PyTorch finds {count or 'no'} CUDA device{'s' * (count != 1)} on this machine;"
            f" use device=cpu, or {_remedy(count)}"
        )
    dtype = NATIVE_FORMATS.get(native or "", "")
    needed, has = _NEEDED_CAPABILITIES.get(dtype, (0, 0)), torch.cuda.get_device_capability(device)
    if has < needed:
        raise RunError(
            f"device is {name}, a {torch.cuda.get_device_name(device)} of compute capability {_dotted(has)}, but"
            f" native: true in format {native} computes in torch.{dtype}, which needs {_dotted(needed)} or more;"
            " simulate the format with native: false, or use a newer card"
        )
    return device


def _remedy(count: int) -> str:
    if count:
        return f"one from cuda:0 to cuda:{count - 1}"
    if torch.version.cuda is None:
        return "install PyTorch with CUDA (https://pytorch.org/get-started): this is a build without"
    return (
        f"check the driver: `nvidia-smi` must list the card, and support CUDA {torch.version.cuda}, for which this"
        " PyTorch was built"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
