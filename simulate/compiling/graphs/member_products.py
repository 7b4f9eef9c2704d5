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

# Both libraries add the products of an element in their order, by fused multiply-adds, where there are no more.
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
    alone: list[Any] = [x.meta["val"] if isinstance(x, Node) else None for x in node.args]
    last: Any = operands[-1]
    if alone[-1].dim() != 3 or 0 in (*alone[-1].shape, *alone[-2].shape):
        return None
    members, batch = len(last), alone[-1].shape[0]
    flat = [x if x is None else _flatten_members(x, batch) for x in operands]
    lie_alone = tuple(x if x is None else _Layout.of(x) for x in alone)
    lie_together = tuple(x if x is None else _Layout.of(x) for x in flat)
    precision = torch.backends.cuda.matmul.fp32_precision if last.is_cuda else None
    for kernel in (_onednn, target):
        if _same_bits(kernel, target, lie_alone, lie_together, (torch.get_num_threads(), precision)):
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
    given = [x for x in operands if x is not None]
    if kernel is _onednn:
        return kernel(given[0] if len(given) > 2 else None, *given[-2:])
    return kernel(*given)


@cache
def _same_bits(
    kernel: Any,
    target: Any,
    alone: tuple[Any, ...],
    together: tuple[Any, ...],
    settings: tuple[Any, ...],  # noqa: ARG001  they may matter, too
) -> bool:
    a, b = together[-2:]
    if kernel is _onednn and kernel is not target:
        single = a.dtype is b.dtype is torch.float32 and a.device.type == "cpu"
        if not single or a.shape[2] > _TERMS_IN_A_ROW or products.reason_against() is not None:
            return False
    if any(0 in layout.stride for layout in together if layout):
        return False
    generator = torch.Generator().manual_seed(0)
    members = b.shape[0] // alone[-1].shape[0]
    with _disable_current_modes(), torch.no_grad():
        for _ in range(_TRIALS):
            own = [[x and x.drawn(generator) for x in alone] for _ in range(members)]
            columns = list(zip(*own, strict=True))
            held = [x and x.holding(column) for x, column in zip(together, columns, strict=True)]
            expected = torch.cat([_call_product(target, operands) for operands in own])
            if not torch.equal(_call_product(kernel, held), expected):
                return False
    return True
