"""Products of float32 numbers on a GPU without TF32, which rounds operands to 10 significand bits.

PyTorch allows it for convolutions and recurrent layers unless set otherwise, and for matrix products if a
program says so (``torch.set_float32_matmul_precision("high")``, ``allow_tf32``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from roundoff.locks import new_lock

_DEVICE = "cuda"
_FLOAT32, _TF32 = "ieee", "tf32"
_lock = new_lock()  # the settings are those of all threads


def is_on_gpu(operands: Sequence[Any]) -> bool:
    """Whether the first tensor among the operands is on a GPU."""
    first = next((x for x in operands if isinstance(x, torch.Tensor)), None)
    return first is not None and first.device.type == _DEVICE


@contextmanager
def in_float32(*operations: str) -> Iterator[None]:
    """For the block, products of float32 tensors on a GPU are computed in float32.

    PyTorch's settings (``fp32_precision``) are then what they were; a later ``torch.backends.fp32_precision = ...`` no
    longer reaches settings that were TF32. Other threads that multiply meanwhile also do it in float32.

    Args:
        operations: the names of the products, convolutions and recurrent layers.
    """
    backends: Any = torch.backends
    settings = [backends.cuda.matmul]
    if any("conv" in operation for operation in operations):
        settings.append(backends.cudnn.conv)
    if any("rnn" in operation for operation in operations):
        settings.append(backends.cudnn.rnn)
    with _lock, ExitStack() as at_the_end:
        for setting in settings:
            if setting.fp32_precision == _TF32:
                setting.fp32_precision = _FLOAT32
                at_the_end.callback(setattr, setting, "fp32_precision", _TF32)
        yield
