"""Matrix products of float32 numbers on the CPU, by the faster of the two libraries that PyTorch has for them.

PyTorch calls MKL, which does without the AVX-512 of AMD's processors; oneDNN, which is there too, takes half the time.
PyTorch hands float32 products to oneDNN when it is allowed to multiply in bfloat16. That permission is given here, for
the length of a call, only on machines where oneDNN has been seen to make no use of it: the result is a float32
product, summed in another order.

Which library computes a product depends on the machine and on the product's sizes, never on numbers or on time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from roundoff.locks import new_lock

_aten = torch.ops.aten
MATRIX_PRODUCTS = (_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)

# Where oneDNN is faster, inside of a training step (bench/products.py). A batch counts as one of its products, which so
# has the same bits alone and among others.
MULTIPLICATIONS = 1 << 22
_TERMS = 64  # Of each sum; with fewer, writing the result takes most of the time.
_THIN = 4  # thinner results are read for, rather than computed

_permission: Any = getattr(torch.backends.mkldnn, "matmul", None)  # PyTorch 2.8 has none
_UNSET = "none"
_lock = new_lock()  # the permission is one for all threads


def kernel(operation: OpOverload) -> Callable[..., Any]:
    """Returns a function for ``operation``: itself, or for matrix products the library that is faster at their size.

    Large products of float32 matrices (2^22 multiplications or more) are left to oneDNN, which multiplies exactly and
    adds in float32, in its own order. NaN, infinities, -0 and subnormals are the same as in PyTorch's products.
    To be called where :func:`reason_against` is None.
    """
    return partial(by_size, operation) if operation in MATRIX_PRODUCTS else operation


def by_size(operation: OpOverload, *operands: torch.Tensor, **factors: Any) -> Any:
    """Computes a matrix product with the library that is faster at its size; see :func:`kernel`."""
    a, b = operands[-2:]
    if factors or not _is_large(a, b):
        return operation(*operands, **factors)
    return torch.ops.roundoff.product.default(operands[0] if len(operands) > 2 else None, a, b)


def _is_large(a: torch.Tensor, b: torch.Tensor) -> bool:
    *batch, rows, terms = a.shape
    columns = b.shape[-1]
    if batch:
        columns = max(columns, _THIN)  # batches of a few columns take MKL as long as batches of four
    if rows * terms * columns < MULTIPLICATIONS or terms < _TERMS or min(rows, columns) < _THIN:
        return False
    return all(x.dtype is torch.float32 and x.device.type == "cpu" and x.layout is torch.strided for x in (a, b))


def by_pytorch(addend: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """PyTorch's own product, plus ``addend`` if there is one."""
    if addend is None:
        return torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)
    return torch.addmm(addend, a, b) if a.dim() == 2 else torch.baddbmm(addend, a, b)


def _by_onednn(addend: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if reason_against() is not None:  # a compiled program from another machine
        return by_pytorch(addend, a, b)
    return _permitted(addend, a, b)


def _permitted(addend: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with _lock:
        if _permission.fp32_precision != _UNSET:  # A setting of the program must stay.
            return by_pytorch(addend, a, b)
        _permission.fp32_precision = "bf16"
        try:
            return by_pytorch(addend, a, b)
        finally:
            _permission.fp32_precision = _UNSET


# Not torch.library.custom_op: its calls take 6 us longer.
torch.library.define("roundoff::product", "(Tensor? addend, Tensor a, Tensor b) -> Tensor")
torch.library.impl("roundoff::product", "CPU", _by_onednn)
torch.library.register_fake("roundoff::product", by_pytorch)


@cache
def reason_against() -> str | None:
    """The reason that PyTorch's library computes all products on this machine; None if oneDNN computes large ones."""
    if _permission is None or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch has no oneDNN, or none that can be asked for products in float32"
    if "AMD" not in str(torch.cpu.get_capabilities().get("cpu_name")):
        return "MKL is the faster library on processors that are not AMD's"
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "oneDNN is no faster than MKL without AVX-512"
    if _permission.fp32_precision != _UNSET:
        return "the program has set PyTorch's fp32_precision itself"
    if not _is_exact_with_permission():
        return "oneDNN would multiply in bfloat16"
    return None


def _is_exact_with_permission() -> bool:
    """Whether numbers with all 24 significant bits survive products with the identity."""
    side = 128
    with _disable_current_modes(), torch.no_grad():
        identity = torch.eye(side, dtype=torch.float32, device="cpu")
        x = 1 + torch.arange(side * side, dtype=torch.float32, device="cpu").view(side, side) * 2.0**-23
        return all(
            torch.equal(_permitted(None, a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)), y.expand(*batch, -1, -1))
            for y in (x, x.mT)
            for a, b in ((y, identity), (identity, y))
            for batch in ((), (2,))
        )
