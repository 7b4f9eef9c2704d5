"""The rounding kernels for CPU: one fused, branch-free pass over memory, compiled by numba from the Python below.

They are called through plain C pointers (ctypes): at 10 000 elements it is call overhead that costs. ctypes also
releases the interpreter lock, so that large tensors are split over torch's threads. LLVM vectorises the loops only
while every intermediate stays 32 (64) bits wide, hence the many casts: numba would widen ``uint32 + uint32``.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic
from numpy import uint32, uint64

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundoff.formats.parameters import FloatParameters

# Below this many elements per thread, handing work to a thread costs more than it saves.
_ELEMENTS_PER_THREAD = 1 << 17


def _reinterpret(source: types.Type, target: types.Type, llvm: ir.Type) -> Any:
    """A numba function that reads the bits of a ``source`` as a ``target``."""

    @intrinsic  # type: ignore[untyped-decorator]
    def view(_context: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm)

        return target(source), generate

    return view


_float_of32 = _reinterpret(types.uint32, types.float32, ir.FloatType())
_bits_of32 = _reinterpret(types.float32, types.uint32, ir.IntType(32))
_float_of64 = _reinterpret(types.uint64, types.float64, ir.DoubleType())
_bits_of64 = _reinterpret(types.float64, types.uint64, ir.IntType(64))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _nearest_even32(bits: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> Any:
    """The float32 ``bits`` rounded to nearest-even in the format that the other arguments describe."""
    one = uint32(1)
    unit = uint32(one << shift)
    magnitude = uint32(bits & uint32(0x7FFFFFFF))
    sign = uint32(bits ^ magnitude)
    # Normal numbers: add just less than half a unit, plus the parity bit, and cut. A carry moves into the exponent.
    less_than_half = uint32(uint32(unit >> one) - one)
    odd = uint32(uint32(magnitude >> shift) & one)
    # With nothing to cut (shift 0) half a unit is 0 and the two terms must cancel: 0 - 1 + 1.
    odd = uint32(odd | uint32(unit & one))
    result = uint32(uint32(magnitude + less_than_half) + odd)
    result = uint32(result & uint32(~uint32(unit - one)))
    result = uint32(0x7F800000) if result > largest else result
    # Subnormal numbers are multiples of one quantum: the carrier's own addition rounds to it.
    subnormal = _bits_of32(_float_of32(magnitude) + magic - magic)
    result = subnormal if magnitude < smallest_normal else result
    result = magnitude if magnitude > uint32(0x7F800000) else result  # NaN keeps its payload
    return uint32(result | sign)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _nearest_even64(bits: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> Any:
    """As :func:`_nearest_even32`, for float64."""
    one = uint64(1)
    unit = uint64(one << shift)
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    sign = uint64(bits ^ magnitude)
    less_than_half = uint64(uint64(unit >> one) - one)
    odd = uint64(uint64(magnitude >> shift) & one)
    odd = uint64(odd | uint64(unit & one))
    result = uint64(uint64(magnitude + less_than_half) + odd)
    result = uint64(result & uint64(~uint64(unit - one)))
    result = uint64(0x7FF0000000000000) if result > largest else result
    subnormal = _bits_of64(_float_of64(magnitude) + magic - magic)
    result = subnormal if magnitude < smallest_normal else result
    result = magnitude if magnitude > uint64(0x7FF0000000000000) else result
    return uint64(result | sign)


def _copying32(source: Any, target: Any, n: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> None:
    for i in range(n):
        target[i] = _nearest_even32(source[i], shift, smallest_normal, largest, magic)


def _in_place32(data: Any, n: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> None:
    for i in range(n):
        data[i] = _nearest_even32(data[i], shift, smallest_normal, largest, magic)


def _copying64(source: Any, target: Any, n: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> None:
    for i in range(n):
        target[i] = _nearest_even64(source[i], shift, smallest_normal, largest, magic)


def _in_place64(data: Any, n: Any, shift: Any, smallest_normal: Any, largest: Any, magic: Any) -> None:
    for i in range(n):
        data[i] = _nearest_even64(data[i], shift, smallest_normal, largest, magic)


@cache
def _compiled(body: Any, dtype: torch.dtype) -> Callable[..., None]:
    """The loop ``body`` as a C function taking addresses; compiled at first use, then read from numba's cache."""
    bits, floating, c_bits, c_float = {
        torch.float32: (types.uint32, types.float32, ctypes.c_uint32, ctypes.c_float),
        torch.float64: (types.uint64, types.float64, ctypes.c_uint64, ctypes.c_double),
    }[dtype]
    pointers = 1 if body in (_in_place32, _in_place64) else 2
    signature = types.void(*[types.CPointer(bits)] * pointers, types.int64, bits, bits, bits, floating)
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers, ctypes.c_int64, c_bits, c_bits, c_bits, c_float)
    compiled = cfunc(signature, cache=True)(body)
    function = prototype(compiled.address)
    function.compiled = compiled  # type: ignore[attr-defined]  # keeps the machine code alive
    return function


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="roundoff")


def round_float(source: torch.Tensor, target: torch.Tensor, parameters: FloatParameters) -> None:
    """Rounds the elements of ``source`` to nearest-even into ``target``.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        parameters: the format, for this dtype.
    """
    n = source.numel()
    size = source.element_size()
    addresses = [source.data_ptr()]
    wide = source.dtype == torch.float64
    if target is source:
        kernel = _compiled(_in_place64 if wide else _in_place32, source.dtype)
    else:
        kernel = _compiled(_copying64 if wide else _copying32, source.dtype)
        addresses.append(target.data_ptr())
    threads = min(torch.get_num_threads(), n // _ELEMENTS_PER_THREAD) if n >= 2 * _ELEMENTS_PER_THREAD else 1
    if threads == 1:
        kernel(*addresses, n, *parameters)
        return
    starts = [n * k // threads for k in range(threads + 1)]
    pieces = [
        _pool(threads).submit(kernel, *(a + first * size for a in addresses), last - first, *parameters)
        for first, last in pairwise(starts)
    ]
    for piece in pieces:
        piece.result()
