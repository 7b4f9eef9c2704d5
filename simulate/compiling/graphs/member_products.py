"""Matrix products of all members of a population at once, where that gives each the bits of a separate product.

Libraries sum in an order that depends on more than the sizes of matrices: on the number of products in a batch, on how
matrices lie in memory, and, in MKL, on where they begin, modulo 64 bytes. So every batch of a program is tried when the
program is made: with random numbers in the final layout, against the separate products of each member.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from ...aten import products

_aten = torch.ops.aten
_onednn = torch.ops.roundoff.product.default

MATRIX_PRODUCTS = frozenset([_aten.bmm.default, _aten.baddbmm.default, _onednn])

# Up to this number of terms, both libraries add an element's products in order, by fused multiply-adds.
_TERMS_IN_A_ROW = 128
_TRIALS = 3


class _Layout(NamedTuple):
    """The memory layout of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """The distance from where memory is aligned, in elements."""
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: torch.Tensor) -> _Layout:
        offset = int(x.storage_offset()) % (64 // x.dtype.itemsize)
        return cls(tuple(x.shape), x.stride(), offset, x.dtype, x.device)

    def drawn(self, generator: torch.Generator) -> torch.Tensor:
        """Random numbers that lie like this."""
        room = self.offset + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        memory = torch.randn(room, generator=generator, dtype=self.dtype).to(self.device)
        return memory.as_strided(self.shape, self.stride, self.offset)

    def holding(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The values of ``parts``, one after the other, with this layout."""
        memory = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        batch = self.shape[0] // len(parts)
        return memory.copy_(torch.cat([part.expand(batch, *part.shape[1:]) for part in parts]))


def multiply(node: Node, operands: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The products of all members, by the fastest kernel that gives the bits of separate products; None if none does.

    Args:
        node: the product of one member: ``bmm``, ``baddbmm`` or ``roundoff::product``.
        operands: operands of all members, (members, ...), in its order.
    """
    target: Any = node.target
    single: list[Any] = [x.meta["val"] if isinstance(x, Node) else None for x in node.args]
    last: Any = operands[-1]
    if single[-1].dim() != 3 or 0 in (*single[-1].shape, *single[-2].shape):
        return None
    members, batch = len(last), single[-1].shape[0]
    flat = [x if x is None else _flatten_members(x, batch) for x in operands]
    separate, batched = (tuple(x if x is None else _Layout.of(x) for x in tensors) for tensors in (single, flat))
    precision = torch.backends.cuda.matmul.fp32_precision if last.is_cuda else None
    for kernel in (_onednn, target):  # the faster one first
        if _same_bits(kernel, target, separate, batched, (torch.get_num_threads(), precision)):
            product: torch.Tensor = _call_product(kernel, flat)
            return product.view(members, batch, *product.shape[1:])
    return None


def _flatten_members(x: torch.Tensor, batch: int) -> torch.Tensor:
    """(members, ...) as (members * batch, rows, columns); matrices stay transposed, if they are."""
    with_axes = x.view(len(x), *[1] * (4 - x.dim()), *x.shape[1:]).expand(-1, batch, -1, -1)
    if with_axes.stride(-2) == 1 != with_axes.stride(-1):
        return with_axes.mT.reshape(-1, *with_axes.mT.shape[2:]).mT
    return with_axes.reshape(-1, *with_axes.shape[2:])


def _call_product(kernel: Any, operands: Sequence[torch.Tensor | None]) -> Any:
    """Calls a product with an addend, if there is one."""
    tensors = [x for x in operands if x is not None]
    if kernel is _onednn:
        return kernel(tensors[0] if len(tensors) > 2 else None, *tensors[-2:])
    return kernel(*tensors)


@cache
def _same_bits(
    kernel: Any,
    target: Any,
    separate: tuple[Any, ...],
    batched: tuple[Any, ...],
    settings: tuple[Any, ...],  # noqa: ARG001  a part of the cache's key: they may also change bits
) -> bool:
    """Whether ``kernel`` gives batched operands the bits that ``target`` gives each member's separate operands."""
    a, b = batched[-2:]
    if kernel is _onednn and kernel is not target:
        float32_on_cpu = a.dtype is b.dtype is torch.float32 and a.device.type == "cpu"
        if not float32_on_cpu or a.shape[2] > _TERMS_IN_A_ROW or products.reason_against() is not None:
            return False
    if any(0 in layout.stride for layout in batched if layout):
        return False
    generator = torch.Generator().manual_seed(0)
    members = b.shape[0] // separate[-1].shape[0]
    with _disable_current_modes(), torch.no_grad():
        for _ in range(_TRIALS):
            rows = [[x and x.drawn(generator) for x in separate] for _ in range(members)]  # the operands of each member
            joined = [x and x.holding(column) for x, column in zip(batched, zip(*rows, strict=True), strict=True)]
            if not torch.equal(_call_product(kernel, joined), torch.cat([_call_product(target, row) for row in rows])):
                return False
    return True
