"""Matrix products of float32 tensors on NVIDIA's tensor cores, where a narrow dtype holds every number in them.

Tensor cores multiply two float16 (or two bfloat16) numbers exactly and add the products in float32. So numbers that
float16 holds can be handed over as float16, and no bit of them is lost: what differs from a float32 product is how the
sum is made. It has another order, and several products are aligned and added at a time, cut off instead of rounded.

Which dtype holds the numbers is the caller's to know. Whether a product is computed so depends on the dtype, the sizes
and the device, never on numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from roundoff.locks import new_lock

from .products import MATRIX_PRODUCTS, by_pytorch

_DEVICE = "cuda"

# Smaller ones gain less than it costs to convert their operands. An estimate for an H100: it has not been measured.
_MULTIPLICATIONS = 1 << 28

_CAPABILITIES = {torch.float16: (7, 0), torch.bfloat16: (8, 0)}  # of the first GPU whose tensor cores take the dtype


def takes(operation: OpOverload, operands: Sequence[Any], factors: Mapping[str, Any]) -> bool:
    """Whether a call is a product worth converting for: ``mm``, ``bmm``, ``addmm``, ``baddbmm`` of float32 on a GPU.

    Args:
        operation: the ATen operation.
        operands: its positional arguments.
        factors: its arguments by name; with ``alpha`` or ``beta`` it is left to PyTorch.
    """
    if operation not in MATRIX_PRODUCTS or factors:
        return False
    for x in operands:
        if x.dtype is not torch.float32 or x.device.type != _DEVICE or x.layout is not torch.strided or x.is_nested:
            return False
    a, b = operands[-2:]
    return bool(a.numel() * b.shape[-1] >= _MULTIPLICATIONS)


def product(operands: Sequence[torch.Tensor], carrier: torch.dtype) -> torch.Tensor:
    """The product of the last two operands, which hold only values of ``carrier``, plus the first if there are three.

    Each product of two numbers is exact within float32's range, and the sum is float32. Infinities, NaN and subnormals
    are the same as in PyTorch's product. Where :func:`reason_against` has a reason, PyTorch computes it in float32.

    Args:
        operands: the operands that :func:`takes` has accepted.
        carrier: float16 or bfloat16.

    Returns:
        A new float32 tensor.
    """
    addend = operands[0] if len(operands) > 2 else None
    result: torch.Tensor = torch.ops.roundoff.narrow_product.default(addend, *operands[-2:], carrier)
    return result


def reason_against(carrier: torch.dtype, device: torch.device) -> str | None:
    """The reason that a device does not add products of ``carrier`` in float32; None if it does."""
    if device.type != _DEVICE:
        return "only NVIDIA's GPUs have tensor cores"
    if torch.version.hip is not None:
        return "no model of the additions of AMD's GPUs is known here"
    if carrier is torch.float16 and torch.backends.cuda.matmul.allow_fp16_accumulation:
        return "the program allows sums in float16 (torch.backends.cuda.matmul.allow_fp16_accumulation)"
    capability, needed = _capability(device), _CAPABILITIES[carrier]
    if capability < needed:
        name = str(carrier).removeprefix("torch.")
        has = f"compute capability {capability}"
        return f"its tensor cores do not multiply {name}: {has}, {needed} is the first that does"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _by_tensor_cores(
    addend: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, carrier: torch.dtype
) -> torch.Tensor:
    if reason_against(carrier, a.device) is not None:
        return by_pytorch(addend, a, b)
    result = _multiplied(a.to(carrier), b.to(carrier))
    # Not addmm with out_dtype, which takes no addend that is to be broadcast. The sum is rounded once here, as there.
    return result if addend is None else result.add_(addend)


def _multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    multiply: Any = torch.mm if a.dim() == 2 else torch.bmm
    result: torch.Tensor = multiply(a, b, out_dtype=torch.float32)
    return result


torch.library.define("roundoff::narrow_product", "(Tensor? addend, Tensor a, Tensor b, ScalarType carrier) -> Tensor")
for _key in ("CPU", "CUDA"):
    torch.library.impl("roundoff::narrow_product", _key, _by_tensor_cores)
torch.library.register_fake("roundoff::narrow_product", lambda addend, a, b, _carrier: by_pytorch(addend, a, b))


_GPU = "cuda"
_FLOAT32, _TF32 = "ieee", "tf32"
_lock = new_lock()  # All threads share the settings.


def is_on_gpu(operands: Sequence[Any]) -> bool:
    """Whether the first tensor among the operands is on a GPU."""
    first = next((x for x in operands if isinstance(x, torch.Tensor)), None)
    return first is not None and first.device.type == _GPU


@contextmanager
def in_float32(*operations: str) -> Iterator[None]:
    """For the block, products of float32 tensors on a GPU are computed in float32, without TF32.

    TF32 rounds operands to 10 significand bits. PyTorch allows it for convolutions and recurrent layers unless set
    otherwise, and for matrix products if a program says so (``torch.set_float32_matmul_precision("high")``).
    PyTorch's settings (``fp32_precision``) are then restored; a later ``torch.backends.fp32_precision = ...`` no
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
