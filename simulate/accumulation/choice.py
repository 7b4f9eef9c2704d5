"""The choice of the step that an accumulation takes, and its loop over matrices in the CPU's memory."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ...formats import FixedFormat, FloatFormat, Overflow
from ...formats.cpu.numbers.floats_by_mode import Way, itself, read
from ...formats.cpu.numbers.floats_nearest import ANY, CHAIN
from ...formats.cpu.threads import compiled, in_pieces
from ...formats.cpu.widths import specialised
from ...formats.families.floats import FP32, FP64
from . import steps
from .description import AccumulatorFormat

Words = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]

# Elements of the second matrix that stay in a core's cache while all rows pass over them.
_SLAB = 1 << 15
# Elements of the sums that stay in its first-level cache.
_TILE = 1 << 11

_ONE = 5e-324  # the number with the bits of 1
# See _rounds_to_odd and choose.
_LARGEST_M, _LARGEST_M_ROUNDED_TWICE = 21, 10


class Products(IntEnum):
    """The kind of products that operands have."""

    EXACT = 0
    """The carrier holds them."""
    ORDINARY = 1
    """The carrier holds their errors."""
    ANY = 2
    SUMMANDS = 3
    """Products are the second factor, the first being 1."""


def products_of(a: torch.Tensor, b: torch.Tensor) -> Products:
    """Returns the kind of products of the elements of two gapless tensors in the CPU's memory."""
    answers = np.zeros(2, np.uint32 if a.dtype == torch.float32 else np.uint64)
    kernel = compiled(steps.scan, a.dtype)
    for place, x in enumerate((a, b)):
        kernel(x.data_ptr(), x.numel(), answers.ctypes.data + place * answers.itemsize)
    flags = int(answers[0] | answers[1])
    if not flags & ~steps.EXTREME:
        return Products.EXACT
    return Products.ANY if flags & steps.EXTREME else Products.ORDINARY


class SumLoop(NamedTuple):
    """A compiled loop with the formats it rounds to."""

    dtype: torch.dtype
    """The dtype of operands and sums: float32 or float64."""
    compensated: bool
    kernel: Any
    words: tuple[Words, Words]
    """The products' format and the sums' as the kernel reads them, kept alive here."""
    formats: tuple[int, int]
    """The addresses of both."""

    def begin(self, like: torch.Tensor, *shape: int) -> list[torch.Tensor]:
        """Sums of that shape, all zero; if compensated, also their errors."""
        return [like.new_zeros(shape, dtype=self.dtype) for _ in range(1 + self.compensated)]

    def add(self, sums: list[torch.Tensor], a: torch.Tensor, b: torch.Tensor, first: int = 0, last: int = -1) -> None:
        """Adds the products of matrices, k ascending.

        In threads: over batches, over the rows of the only batch, or over the columns of its only row.

        Args:
            sums: result of :meth:`begin`, (B, M, N).
            a: (B, M, K), gapless, float32 or float64.
            b: (B, K, N), gapless, of the dtype of ``a``.
            first: the first k.
            last: before which k to end; -1: after the last one.
        """
        a, b = a.to(self.dtype), b.to(self.dtype)
        batches, rows, whole = a.shape
        columns, size = b.shape[2], self.dtype.itemsize
        depth = (whole if last < 0 else last) - first
        slab, tile = max(1, _SLAB // columns), max(1, _TILE // columns)
        shape, split = [batches, rows, columns], 0 if batches > 1 else 1 if rows > 1 else 2
        # How far apart the parts of a, b and the sums are.
        strides = ((rows * whole, whole * columns, rows * columns), (whole, 0, columns), (0, 1, 1))[split]
        a_begins, b_begins = a.data_ptr() + first * size, b.data_ptr() + first * columns * size
        total, lost = sums[0].data_ptr(), sums[-1].data_ptr()

        def piece(start: int, end: int) -> None:
            a_far, b_far, far = (start * step * size for step in strides)
            part = shape.copy()
            part[split] = end - start
            self.kernel(
                a_begins + a_far, b_begins + b_far, total + far, lost + far,
                part[0], part[1], depth, part[2], whole, columns, slab, tile, *self.formats,
            )  # fmt: skip

        in_pieces(piece, shape[split], batches * rows * depth * columns)


@cache
def choose(
    product: AccumulatorFormat | None,
    total: AccumulatorFormat,
    dtype: torch.dtype,
    products: Products,
    *,
    compensated: bool = False,
) -> SumLoop:
    """The loop of an accumulation.

    It is one in float32 where that is right: vectors hold twice the number of such elements. In float64, products of
    float32 numbers are exact.

    Args:
        product: the format of products; None: they are exact.
        total: the format of sums.
        dtype: dtype of the operands.
        products: the kind of their products.
        compensated: whether to sum by Kahan's way.
    """
    floats = [fmt for fmt in (product, total) if isinstance(fmt, FloatFormat)]  # in fixed point float64 is used
    narrow = dtype == torch.float32 and _rounds_to_odd(total)
    # Rounding a sum twice, to float32 and to a format of m bits, is harmless if no summand has more than m bits, and
    # 2 (m + 1) + 2 <= 24 (Figueroa, "When is double rounding innocuous?", 1995).
    m = max((fmt.significand_bits for fmt in floats), default=0)
    harmless = narrow and m == floats[-1].significand_bits <= _LARGEST_M_ROUNDED_TWICE
    chained = narrow and all(fmt.parameters(dtype).rounds_by_addition(dtype) for fmt in floats)
    exact = products in (Products.EXACT, Products.SUMMANDS)
    if compensated:
        narrow = chained and harmless and exact
    elif products == Products.ORDINARY:
        narrow = narrow and product is not None and _rounds_to_odd(product)
    else:
        narrow = narrow and exact
    if not narrow and not exact and dtype == torch.float32:
        products = Products.EXACT
    rounds_sums = product is not None or compensated  # not only sums of exact products
    chain = narrow and chained and (harmless or not rounds_sums)
    parts = {
        "step": steps.compensated_step if compensated else steps.plain_step,
        **_way(total, CHAIN if chain else ANY),
        "add": steps.add_twice if narrow and harmless and rounds_sums else steps.add_once,
        "product": steps.product_exact if product is None else _PRODUCTS[products],
        "add_product": _FUSED[products] if product is None else steps.add_rounded,
    }
    return _steps(torch.float32 if narrow else torch.float64, product or total, total, parts, compensated=compensated)


@cache
def choose_block(product: AccumulatorFormat, products: Products) -> SumLoop:
    """The loop that sums rounded products in float64, of float64 operands."""
    parts = {
        "step": steps.plain_step,
        **_way(product, ANY),
        "product": _PRODUCTS[products],
        "add_product": steps.add_rounded_only,
    }
    return _steps(torch.float64, product, product, parts)


# By Products.
_PRODUCTS = (steps.product_exact, steps.product_ordinary, steps.product_anywhere)
_FUSED = (steps.fused_exact, steps.fused_ordinary, steps.fused_anywhere, steps.add_summand)


def _rounds_to_odd(fmt: AccumulatorFormat) -> bool:
    """Whether float32 numbers rounded to odd have the bits that rounding to a format takes: two more than it has."""
    return isinstance(fmt, FloatFormat) and (fmt.significand_bits <= _LARGEST_M or fmt == FP32)


def _way(fmt: AccumulatorFormat, way: Way) -> dict[str, Any]:
    """The parts that round to formats like ``fmt``: floats in a ``way``."""
    if isinstance(fmt, FixedFormat):
        return {"parameters": steps.grid_parameters, "constants": itself, "rounded": steps.to_grid, "narrower": False}
    return {"parameters": read, "constants": way.constants, "rounded": way.rounded, "narrower": way is CHAIN}


def _steps(
    dtype: torch.dtype,
    product: AccumulatorFormat,
    total: AccumulatorFormat,
    parts: dict[str, Any],
    *,
    compensated: bool = False,
) -> SumLoop:
    kernel = compiled(specialised(steps.accumulate, dtype, **parts), dtype)
    words = _words(product, dtype), _words(total, dtype)
    return SumLoop(dtype, compensated, kernel, words, (words[0].ctypes.data, words[1].ctypes.data))


def _words(fmt: AccumulatorFormat, dtype: torch.dtype) -> Words:
    """A format as the loops read it."""
    if isinstance(fmt, FixedFormat):
        low, high = fmt.min / fmt.eps, fmt.max / fmt.eps
        turn = high - low + 1 if fmt.overflow is Overflow.WRAP else 0.0
        return np.array([1 / fmt.eps, fmt.eps, low, high, turn] + [0.0] * 10 + [_ONE]).view(np.uint64)
    packed = fmt.parameters(dtype).packed(dtype)
    return np.append(packed, packed.dtype.type(fmt != (FP32 if dtype == torch.float32 else FP64)))
