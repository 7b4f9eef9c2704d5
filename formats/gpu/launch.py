"""Launching the kernels: the memory layout, the random words and the format's parameters on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton

from ..arithmetic.tail import rule
from ..base.memory import is_dense
from ..base.modes import WORD_BITS, Random, RandomBits, Rounding, RoundingOptions
from ..base.on_device import put_on
from ..base.random_words import key_base, words32
from . import blocks as of_blocks
from . import each as of_each
from .places import FIXED, GIVEN, HASHED
from .translation import in_triton

_BLOCK = 1024  # Elements of a program.
_WIDEST = 2048  # Elements of a block of the format that a program keeps in registers.


def round_each(
    source: torch.Tensor, target: torch.Tensor, options: RoundingOptions, number_of: Any,
    data: tuple[torch.Tensor, ...], *, by_place: bool = False, **parts: Any,
) -> None:  # fmt: skip
    """Rounds every number by itself.

    Args:
        source: float32 or float64 on a device; any strides, not empty.
        target: same dtype, shape and device, any strides; may be ``source``, may not otherwise overlap it.
        options: the mode, and the random bits of stochastic rounding.
        number_of: the function of :mod:`.numbers` that rounds a number.
        data: the format's parameters for ``number_of``.
        by_place: whether ``number_of`` uses the position of a number in row-major order.
        parts: functions that ``number_of`` calls.

    Raises:
        FormatError: the caller's random tensor has another shape, device or dtype.
    """
    kernel = kernel_of(source.dtype, source.device, number_of, **parts)
    run_each(kernel, source, target, options.random, data, by_place)


def kernel_of(dtype: torch.dtype, device: torch.device, number_of: Any, *, listed: bool = False, **parts: Any) -> Any:
    """The kernel of :func:`round_each`, or of :func:`run_many`."""
    kernel = of_each.many if listed else of_each.each
    return in_triton(kernel, dtype, interpreted=is_interpreted(device), number_of=number_of, **parts)


def run_each(
    kernel: Any, source: torch.Tensor, target: torch.Tensor, random: Random, data: tuple[torch.Tensor, ...],
    by_place: bool = False,
) -> None:  # fmt: skip
    """Does the same as :func:`round_each`, with the kernel of :func:`kernel_of`."""
    count = source.numel()
    if (
        random is None
        and not by_place
        and (source is target or source.stride() == target.stride())
        and is_dense(source)
    ):
        layout, words, base, bits, given = _IN_ORDER, FIXED, 0, WORD_BITS, source  # In the order of memory.
    else:
        layout, (words, base, bits, given) = _common_layout(source, target), _random_source(random, source)
    tensors = (source, target, data, given)
    arguments = (*tensors, count, base, bits, *layout, len(layout[0]), words, _BLOCK)
    _launch(kernel, -(-count // _BLOCK), tensors, layout, words, arguments)


def run_many(
    kernel: Any, tensors: Sequence[torch.Tensor], randoms: Sequence[RandomBits | None], data: tuple[torch.Tensor, ...]
) -> None:
    """Rounds tensors of one dtype and device in place, each contiguous and not empty, by one launch."""
    first, rows, programs = tensors[0], [], 0
    words, bits = FIXED, WORD_BITS
    for x, random in zip(tensors, randoms, strict=True):
        words, base, bits, _ = _random_source(random, x)
        rows.append((x.data_ptr(), x.numel(), programs, base))
        programs += -(-x.numel() // _BLOCK)
    table = put_on(rows, first.device, torch.int64)
    constants = (words, all(row[0] & 15 == 0 for row in rows), _BLOCK)
    arguments = (first, table, data, len(rows), bits, *constants)
    _launch(kernel, programs, (first, table, data, table), _IN_ORDER, constants, arguments)


def round_blocks(
    source: torch.Tensor, target: torch.Tensor, axis: int, block: int, options: RoundingOptions, parts: dict[str, Any],
    data: tuple[torch.Tensor, ...],
) -> None:  # fmt: skip
    """Rounds blocks of neighbours along an axis, which share a scale.

    Args:
        source: as for :func:`round_each`.
        target: as for :func:`round_each`.
        axis: counted from the first.
        block: the number of neighbours; the last block along the axis may be shorter.
        options: the mode, and the random bits of stochastic rounding.
        parts: ``key_of``, ``scale_of`` and ``number_of``; of :mod:`.scaled`.
        data: their parameters from the format.
    """
    kernel = in_triton(of_blocks.blocks, source.dtype, interpreted=is_interpreted(source.device), **parts)
    length, inner = (source.shape[axis], source.shape[axis + 1 :].numel()) if source.dim() else (1, 1)
    block = min(block, length)
    count = source.numel() // length * -(-length // block)
    width = min(_power_of_two_from(block), _WIDEST)
    rows = min(max(_BLOCK // width, 1), _power_of_two_from(count))  # Several short blocks share a program.
    layout, (words, base, bits, given) = _common_layout(source, target), _random_source(options.random, source)
    tensors = (source, target, data, given)
    constants = (len(layout[0]), words, rows, width, width >= block)
    arguments = (*tensors, count, length, inner, block, base, bits, *layout, *constants)
    _launch(kernel, -(-count // rows), tensors, layout, constants, arguments)


def _power_of_two_from(count: int) -> int:
    return 1 << (count - 1).bit_length()


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels are run by Triton's interpreter there: in the CPU's memory, for tests."""
    return device.type == "cpu"


_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # a * b + c is rounded twice, as everywhere
_compiled: dict[Any, Any] = {}


def _launch(
    kernel: Any, programs: int, tensors: tuple[Any, ...], layout: _Layout, constants: Any, arguments: tuple[Any, ...]
) -> None:
    """Launches a kernel, without Triton's checks before each launch if a similar launch came before.

    A program depends on the kernel, on constants, on whether addresses are multiples of 16, and on how wide integers
    must be; Triton determines it again for every argument, which takes longer than all the rest. Hooks that a profiler
    sets in Triton see the first launch of a program only.
    """
    source, target, data, given = tensors
    device = source.device
    if is_interpreted(device):
        kernel[(programs,)](*arguments, **_OPTIONS)
        return
    if device.type == "cuda" and device.index != torch.cuda.current_device():  # Triton launches on the current one.
        with torch.cuda.device(device):
            _launch(kernel, programs, tensors, layout, constants, arguments)
        return
    aligned = tuple([x.data_ptr() & 15 == 0 for x in (source, target, given, *data)])
    # Triton passes sizes and strides of 2^31 or more as 64-bit integers, in another program.
    wide = layout is not _IN_ORDER and tuple([number >> 31 > 0 for part in layout for number in part])
    key = (id(kernel), device.index, source.dtype, constants, wide, aligned)
    program = _compiled.get(key)
    if program is None:
        _compiled[key] = kernel[(programs,)](*arguments, **_OPTIONS)
        return
    stream = triton.runtime.driver.active.get_current_stream(device.index)
    program.run(programs, 1, 1, stream, program.function, program.packed_metadata, None, None, None, *arguments)


_Layout = tuple[tuple[int, ...], ...]
_IN_ORDER: _Layout = ((), (), ())


def _common_layout(source: torch.Tensor, target: torch.Tensor) -> _Layout:
    """Returns shape and strides of both with the fewest dimensions; no dimensions if both are in row-major order."""
    if source.is_contiguous() and target.is_contiguous():
        return _IN_ORDER
    sizes: list[tuple[int, int, int]] = []
    for size, near, far in zip(source.shape, source.stride(), target.stride(), strict=True):
        if size == 1:
            continue
        if sizes and sizes[-1][1] == size * near and sizes[-1][2] == size * far:  # One axis in both.
            sizes[-1] = (sizes[-1][0] * size, near, far)
        else:
            sizes.append((size, near, far))
    return tuple(zip(*sizes, strict=True)) if sizes else _IN_ORDER


def _random_source(random: Random, like: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """Returns the source of the words, the base of their keys, the number of bits in use, and the caller's words."""
    if random is None:
        return FIXED, 0, WORD_BITS, like
    if isinstance(random, RandomBits):
        base = key_base(random)
        return HASHED, base - (1 << 64) if base >> 63 else base, random.bits, like  # As an int64.
    return GIVEN, 0, WORD_BITS, words32(random, like)


@cache
def settings_of(rounding: Rounding, device: torch.device) -> torch.Tensor:
    """The mode's addends, as loops have them: int64."""
    return put_on(np.array(rule(rounding, 64), np.uint64).view(np.int64), device)
