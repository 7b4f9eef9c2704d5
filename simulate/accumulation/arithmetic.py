"""Products and sums with a rounded accumulator: which loop, or which tensor operations, do the work."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...formats.base.modes import Rounding
from ...formats.cpu.threads import compiled, in_pieces, runs_natively
from ...formats.families.floats import FP32, FP64
from . import fast_loops as fast
from . import loops, tensors
from . import recovering_loops as recovering

if TYPE_CHECKING:
    from ...formats import FloatFormat
    from .description import Accumulation

    Words = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]

# Elements of the second matrix that stay in a core's cache while all rows pass over them.
_SLAB = 1 << 15
# Elements of the accumulators that stay in its first-level cache; they are independent, so the processor need not wait
# for the sum of one before it starts with the next.
_TILE = 1 << 11
# Elements of the partial sums of blocks that one matrix product makes.
_CHUNK = 1 << 16


@cache
def _words(fmt: FloatFormat, dtype: torch.dtype) -> Words:
    """The parameters of ``fmt`` as the loops read them."""
    packed = fmt.parameters(dtype).packed(dtype)
    return np.append(packed, packed.dtype.type(fmt != (FP32 if dtype == torch.float32 else FP64)))


def _scan(body: Any, a: torch.Tensor, b: torch.Tensor) -> int:
    """What a scanning loop finds in either of two gapless tensors, as bits."""
    answers = torch.empty(2, dtype=a.dtype)
    kernel = compiled(body, a.dtype, "pip")
    for place, x in enumerate((a, b)):
        kernel(x.data_ptr(), x.numel(), answers.data_ptr() + place * a.dtype.itemsize)
    first, second = answers.view(torch.int32 if a.dtype == torch.float32 else torch.int64).tolist()
    return int(first | second)


def _kind(a: torch.Tensor, b: torch.Tensor) -> int:
    """What kind of numbers two gapless matrices hold, for :func:`~roundoff.simulate.accumulation.loops.fused64`."""
    found = _scan(loops.ordinary64, a, b) if a.dtype == torch.float64 else 0  # products of float32 numbers are exact
    return 2 if found & loops.ORDINARY else int(found & loops.EXACT != 0)


def _native(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops can do it."""
    return all(runs_natively(x, Rounding.NEAREST_EVEN) for x in tensors)


def gapless(x: torch.Tensor) -> torch.Tensor:
    """``x`` with the strides of a new tensor, also where a size is 1."""
    return x.contiguous().view(-1).view(x.shape)


class ShapesUnfitError(Exception):
    """The operands have shapes that the operation does not take; torch's own operation knows what to say."""


class Arithmetic:
    """Contractions and sums of one dtype under one :class:`~roundoff.simulate.accumulation.description.Accumulation`.

    Args:
        how: the accumulation.
        dtype: float32 or float64; must hold the formats.
    """

    def __init__(self, how: Accumulation, dtype: torch.dtype) -> None:
        self._how = how
        self._dtype = dtype
        self._format: FloatFormat = how.format  # type: ignore[assignment]  # parsed when made
        self._product: FloatFormat | None = how.product  # type: ignore[assignment]
        self._step_dtype = torch.float64
        if dtype == torch.float32 and not how.compensated:
            enough = self._format.significand_bits <= fast.LARGEST_M or self._format == FP32
            self._step_dtype = torch.float32 if enough else torch.float64
        self._fast = self._recovering = None
        if dtype == torch.float32:
            self._fast = fast.loop(self._product, self._format, compensated=how.compensated)
            self._recovering = recovering.loop(self._product, self._format, compensated=how.compensated)

    def begun(self, named: dict[str, Any]) -> tuple[Arithmetic, dict[str, Any]]:
        """The arithmetic and the arguments for an operation: an accumulator of its own format begins with zero."""
        return self, named

    def contract(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The products of matrices, each element summed over k in ascending order.

        Args:
            a: (B, M, K), any strides.
            b: (B, K, N), any strides, same dtype and device.

        Returns:
            (B, M, N), elements of the accumulator's format; +0 where K is 0.

        Raises:
            ShapesUnfitError: these are no such matrices.
        """
        # The loops trust the shapes, and the operation's own check comes after this.
        if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise ShapesUnfitError
        rows, columns = a.shape[1], b.shape[2]
        if rows > columns and columns < 32:  # the loops are vectorised over columns
            return self.contract(b.mT, a.mT).mT
        if a.shape[2] == 0 or a.shape[0] * rows * columns == 0:
            return a.new_zeros(a.shape[0], rows, columns)
        if self._how.every > 1 and self._product is None:
            return self._blocks(a, b)
        if self._how.every > 1:
            return self._rounded_blocks(a, b)
        if not _native(a, b):
            return self._slowly(a, b)
        return self._sequential(a.contiguous(), b.contiguous())

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Column sums: of (K, N) summands, any strides, the (N,) sums, rounded as products' sums are."""
        terms, count = x.shape
        acc = x.new_zeros(count)
        if terms == 0 or count == 0:
            return acc
        every = self._how.every
        if every > 1:
            whole = terms // every * every
            parts = [x[:whole].reshape(-1, every, count).sum(1)] if whole else []
            x = torch.cat([*parts, x[whole:].sum(0, keepdim=True)]) if whole < terms else parts[0]
        return self._running(acc, x, None)[0]

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x + y``, rounded once to the accumulator's format; ``y`` is broadcast to the shape of ``x``."""
        plain = Arithmetic._plain_running
        return plain(self, x.reshape(-1), y.expand(x.shape).reshape(1, -1)).reshape(x.shape)

    def _sequential(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """L = 1, in the CPU's loops; both gapless."""
        product = self._product
        body, dtype, options = None, torch.float32, []
        if self._dtype == torch.float32:
            found = _scan(fast.scan32, a, b)
            if not found & fast.EXACT:
                body = self._fast
            elif not found & fast.RECOVERABLE:
                body = self._recovering
        if body is None:
            dtype, options = torch.float64, [_kind(a, b)]
            if self._how.compensated:
                body = loops.compensated_fused64 if product is None else loops.compensated_rounded64
            else:
                body = loops.fused64 if product is None else loops.rounded64
        a, b = a.to(dtype), b.to(dtype)
        state = [a.new_zeros(a.shape[0], a.shape[1], b.shape[2]) for _ in range(1 + self._how.compensated)]
        words = [_words(fmt, dtype) for fmt in (product, self._format) if fmt is not None]
        self._over_rows(body, a, b, state, words, *options)
        return state[0].to(self._dtype)

    def _over_rows(
        self,
        body: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        state: list[torch.Tensor],
        words: list[Words],
        *options: int,
    ) -> None:
        """Runs a loop in threads, over batches, or over the rows of the only batch."""
        signature = "pp" + "p" * len(state) + "iiiiii" + "i" * len(options) + "p" * len(words)
        kernel = compiled(body, a.dtype, signature)
        batches, rows, depth = a.shape
        columns = b.shape[2]
        slab, tile = max(1, _SLAB // columns), max(1, _TILE // columns)
        size = a.dtype.itemsize
        addresses = [array.ctypes.data for array in words]

        def piece(first: int, last: int) -> None:
            # One step is a batch, or a row if there is but one batch: then b starts where it starts for all.
            per_step = rows if batches > 1 else 1
            shape = (last - first, rows) if batches > 1 else (1, last - first)
            x = a.data_ptr() + first * per_step * depth * size
            y = b.data_ptr() + (first * depth * columns * size if batches > 1 else 0)
            into = [one.data_ptr() + first * per_step * columns * size for one in state]
            kernel(x, y, *into, *shape, depth, columns, slab, tile, *options, *addresses)

        in_pieces(piece, batches if batches > 1 else rows, batches * rows * depth * columns)

    def _blocks(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """L > 1, products exact: torch's own product for each block, in chunks that stay in cache."""
        (batches, rows, depth), columns = a.shape, b.shape[2]
        every = self._how.every
        acc = a.new_zeros(batches, rows, columns)
        chunk = _CHUNK * (torch.get_num_threads() if _native(a) else 1 << 14)
        batch_step = max(1, chunk // (rows * columns))
        row_step = rows if rows * columns <= chunk else max(1, chunk // columns)
        for batch in range(0, batches, batch_step):
            for row in range(0, rows, row_step):
                these = slice(batch, batch + batch_step), slice(row, row + row_step)
                into, x, y = acc[these], a[these], b[these[0]]
                flat, lost = into.view(-1), None
                running = flat
                for k in range(0, depth, every):
                    partial = torch.bmm(x[..., k : k + every], y[:, k : k + every])
                    running, lost = self._running(running, partial.reshape(1, -1), lost)
                if running is not flat:
                    flat.copy_(running)
        return acc

    def _rounded_blocks(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """L > 1, products rounded, and summed in float64 within a block."""
        assert self._product is not None
        a, b = a.double().contiguous(), b.double().contiguous()
        acc, lost = a.new_zeros(a.shape[0], a.shape[1], b.shape[2]), None
        shape, depth, every = acc.shape, a.shape[2], self._how.every
        native = _native(a, b)
        kind = _kind(a, b) if native else 0
        wide = Arithmetic(self._how, torch.float64)
        for k in range(0, depth, every):
            partial = torch.zeros_like(acc)
            if native:
                self._partial(a, b, partial, k, min(k + every, depth), kind)
            else:
                for one in range(k, min(k + every, depth)):
                    partial = partial + tensors.multiply(a[:, :, one, None], b[:, one, None, :], self._product)
            running, lost = wide._running(acc.reshape(-1), partial.reshape(1, -1), lost)
            acc = running.view(shape)
        return acc.to(self._dtype)

    def _partial(
        self, a: torch.Tensor, b: torch.Tensor, partial: torch.Tensor, first: int, last: int, kind: int
    ) -> None:
        assert self._product is not None
        words = _words(self._product, torch.float64)
        kernel = compiled(loops.partial64, torch.float64, "pppiiiiiiip")
        pointers = a.data_ptr(), b.data_ptr(), partial.data_ptr()
        kernel(*pointers, a.shape[0], a.shape[1], a.shape[2], b.shape[2], first, last, kind, words.ctypes.data)

    def _slowly(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """L = 1, by tensor operations."""
        fmt, product = self._format, self._product
        a, b = a.double(), b.double()
        acc = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
        lost = torch.zeros_like(acc)
        for k in range(a.shape[2]):
            x, y = a[:, :, k, None], b[:, k, None, :]
            if not self._how.compensated:
                acc = (
                    tensors.multiply_add(x, y, acc, fmt)
                    if product is None
                    else tensors.add(acc, tensors.multiply(x, y, product), fmt)
                )
                continue
            summand = (
                tensors.multiply_add(x, y, -lost, fmt)
                if product is None
                else tensors.add(tensors.multiply(x, y, product), -lost, fmt)
            )
            acc, lost = tensors.compensated(acc, summand, fmt)
        return acc.to(self._dtype)

    def _running(
        self, acc: torch.Tensor, x: torch.Tensor, lost: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Adds the rows of ``x`` (terms, count) to ``acc`` (count), perhaps in place; ``lost`` is Kahan's memory."""
        if not self._how.compensated:
            return self._plain_running(acc, x), None
        total, x = acc.double().contiguous(), x.double().contiguous()
        lost = torch.zeros_like(total) if lost is None else lost
        if _native(acc, x):
            kernel = compiled(loops.compensated64, torch.float64, "pppiiip")
            words = _words(self._format, torch.float64)
            count = total.numel()
            kernel(total.data_ptr(), lost.data_ptr(), x.data_ptr(), count, x.shape[0], count, words.ctypes.data)
        else:
            for row in x:
                summand = tensors.add(row, -lost, self._format)
                total, lost = tensors.compensated(total, summand, self._format)
        return total.to(acc.dtype), lost

    def _plain_running(self, acc: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """As ``_running``, by plain additions."""
        if not _native(acc, x):
            total = acc.double()
            for row in x.double():
                total = tensors.add(total, row, self._format)
            return total.to(acc.dtype)
        dtype = self._step_dtype
        total, x = acc.to(dtype).contiguous(), x.to(dtype).contiguous()
        kernel = compiled(loops.running32 if dtype == torch.float32 else loops.running64, dtype, "ppiiip")
        words, count, size = _words(self._format, dtype), total.numel(), dtype.itemsize

        def piece(first: int, last: int) -> None:
            offset = first * size
            pointers = total.data_ptr() + offset, x.data_ptr() + offset
            kernel(*pointers, last - first, x.shape[0], count, words.ctypes.data)

        in_pieces(piece, count, x.numel())
        return total.to(acc.dtype)
