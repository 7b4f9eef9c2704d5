"""Elementwise arithmetic rounded once to the carrier, in any mode: the compiled loops for CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from typing import Any, final

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy import int64, uint32, uint64

from ...formats import Overflow, RandomBits, Rounding
from ...formats.arithmetic.tail import rule
from ...formats.base.random_words import CHUNK, hash32
from ...formats.cpu.addends import mix64
from ...formats.cpu.arguments import Double, Int, Mode, Numbers
from ...formats.cpu.bits import bits_of64, float_of32, float_of64, left64, right64
from ...formats.cpu.tail import addend64
from ...formats.cpu.threads import ELEMENTS_PER_THREAD, compiled, in_pieces
from ...formats.cpu.widths import KernelPart, specialised
from ...formats.families.floats import FP32
from .carrier_rounding import CarrierRounding
from .error_free import LARGEST, odd64, two_product64, two_sum
from .formulas import Dialect, double, single

UNSAFE = 0x7FF4_0DD5_0DD5_0DD5
"""The bits of a NaN that marks results where a formula is not safe."""

# Elements that go through a loop together: their operands and results stay in the first-level cache.
_BLOCK = 512
_SMALLEST_NORMAL, _LARGEST_FINITE = 0x3810_0000_0000_0000, 0x47EF_FFFF_E000_0000  # of float32, as float64

_inlined = njit(inline="always")


def _block_buffer(number: types.Type, llvm: ir.Type) -> Any:
    """A numba function that gives a pointer to room for a block on the stack of the running function."""

    @intrinsic  # type: ignore[untyped-decorator]
    def block(_context: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
            with builder.goto_entry_block():
                place = builder.alloca(ir.ArrayType(llvm, _BLOCK))
            return builder.bitcast(place, llvm.as_pointer())

        return types.CPointer(number)(), generate

    return block


_numbers = _block_buffer(types.float64, ir.DoubleType())
_patterns = _block_buffer(types.uint64, ir.IntType(64))
_words = _block_buffer(types.uint32, ir.IntType(32))


@_inlined  # type: ignore[untyped-decorator]
def _odd(total: Any, error: Any) -> Any:
    return float_of64(odd64(total, error, uint64(1)))


@_inlined  # type: ignore[untyped-decorator]
def _choose(condition: Any, one: Any, other: Any) -> Any:
    return one if condition else other


@_inlined  # type: ignore[untyped-decorator]
def _root(x: Any) -> Any:
    return sqrt(x)


_DIALECT = Dialect(_inlined, two_sum, two_product64, _odd, _root, _choose)
_FORMULAS = {torch.float32: single(_DIALECT), torch.float64: double(_DIALECT)}


@_inlined  # type: ignore[untyped-decorator]
def _ordinary(top: Any, plain: Any) -> Any:
    """Whether the exact result is used, rather than the plain one; see :mod:`.formulas`."""
    return (abs(top) <= LARGEST) & (abs(plain) <= LARGEST) & (top != 0.0)


@_inlined  # type: ignore[untyped-decorator]
def _to_normal32(bits: Any, mode: Any, word: Any) -> Any:
    """A float64 rounded to float32, if it is zero or there is a normal number of float32 above and below it."""
    positive, negative, parity, _ = mode
    odd = uint64(uint64(bits >> uint64(29)) & uint64(1))  # 52 - 23 bits are dropped.
    addend = addend64(positive, negative, parity, uint64(bits >> uint64(63)), odd)
    addend = uint64(uint64(addend + uint64(uint64(word) << uint64(32))) >> uint64(35))  # 64 - 29
    return types.float32(float_of64(uint64(uint64(bits + addend) & uint64(0xFFFF_FFFF_E000_0000))))


@_inlined  # type: ignore[untyped-decorator]
def _to_any32(bits: Any, mode: Any, over: Any, word: Any) -> Any:
    """A float64 that is zero or at least 2^-1022 rounded to float32."""
    positive, negative, parity, sticky = mode
    magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
    minus = uint64(bits >> uint64(63))
    field = uint64(magnitude >> uint64(52))
    lowest = max(field, uint64(_SMALLEST_NORMAL >> 52))
    hidden = uint64(1 << 52) if magnitude != uint64(0) else uint64(0)
    significand = uint64(uint64(magnitude & uint64((1 << 52) - 1)) | hidden)
    # Subnormal numbers of float32 drop more bits; of those beyond a fraction of 64, one says whether there are any.
    shift = uint64(uint64(29) + uint64(lowest - field))
    whole = right64(significand, shift)
    fraction = left64(significand, uint64(uint64(64) - shift))
    fraction = uint64(fraction | right64(significand, uint64(shift - uint64(64))))
    lost = sticky if significand != uint64(0) else uint64(0)
    fraction = uint64(fraction | lost) if shift > uint64(64) else fraction
    addend = addend64(positive, negative, parity, minus, uint64(whole & uint64(1)))
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    result = uint64(uint64(uint64(lowest - uint64(_SMALLEST_NORMAL >> 52)) << uint64(23)) + whole)
    result = uint64(result + uint64(1)) if uint64(fraction + addend) < fraction else result
    over_positive, over_negative, under = over
    beyond = over_negative if minus != uint64(0) else over_positive
    result = beyond if result > uint64(0x7F7FFFFF) else result
    result = max(result, under) if significand != uint64(0) else result
    result = uint64(0x7F800000) if magnitude == uint64(0x7FF0000000000000) else result
    result = uint64(0x7FC00000) if magnitude > uint64(0x7FF0000000000000) else result
    return float_of32(uint32(uint64(result | uint64(minus << uint64(31)))))


@_inlined  # type: ignore[untyped-decorator]
def _to_64(top: Any, rest: Any, mode: Any, word: Any) -> Any:
    """``top + rest`` rounded to float64."""
    positive, negative, parity, sticky = mode
    bits = bits_of64(top)
    inexact = uint64(1) if abs(rest) > 0.0 else uint64(0)
    # The exact magnitude is below that of the nearest number if the rest has the other sign.
    opposite = uint64(uint64(bits ^ bits_of64(rest)) >> uint64(63))
    lower = uint64(bits - uint64(opposite & inexact))
    low, high = float_of64(lower), float_of64(uint64(lower + uint64(1)))
    # How far the result lies above the lower neighbour: 52 bits of a number from 1 to below 2, the first of 64.
    above = 1.0 + ((top - low) + rest) / (high - low)
    above = above if above < 2.0 else 2.0 - 2.0**-52
    fraction = uint64(bits_of64(above) << uint64(12)) if inexact != uint64(0) else uint64(0)
    fraction = uint64(fraction | uint64(inexact & sticky))
    addend = addend64(positive, negative, parity, uint64(bits >> uint64(63)), uint64(lower & uint64(1)))
    addend = uint64(addend + uint64(uint64(word) << uint64(32)))
    return float_of64(uint64(lower + uint64(1)) if uint64(fraction + addend) < fraction else lower)


@_inlined  # type: ignore[untyped-decorator]
def _unpack_settings(s: Any) -> Any:
    """The mode, the results of overflow and underflow, whether rounding is stochastic, the sign of zero."""
    mode = uint64(s[0]), uint64(s[1]), uint64(s[2]), uint64(s[3])
    return mode, (uint64(s[4]), uint64(s[5]), uint64(s[6])), s[7] != 0, types.float64(s[8])


@_inlined  # type: ignore[untyped-decorator]
def _draw_words(words: Any, index: Any, count: Any, seed: Any, step: Any) -> Any:
    """The random words of the elements ``index``, ``index + 1``, ..., as from RandomBits(seed, step)."""
    base = mix64(uint64(mix64(uint64(seed)) ^ uint64(step)))  # As random_words.key_base.
    key = mix64(uint64(base ^ uint64(index >> int64(32))))
    key0, key1, start = uint32(key), uint32(key >> uint64(32)), uint32(index & int64(CHUNK - 1))
    for i in range(count):
        words[i] = hash32(uint32(start + uint32(i)), key0, key1)


@_inlined  # type: ignore[untyped-decorator]
def _read_block(place: Any, x: Any, at: Any, step: Any, count: Any) -> Any:
    """A block of an operand, which may be one number for all elements (step 0), in float64."""
    if step != 0:
        for i in range(count):
            place[i] = types.float64(x[at + i])
    else:
        for i in range(count):
            place[i] = types.float64(x[0])


@_inlined  # type: ignore[untyped-decorator]
def _block_size(at: Any, last: Any) -> Any:
    """Returns the number of elements in the block from ``at`` on; all share the keys of random words."""
    return min(int64(_BLOCK), last - at, int64(CHUNK) - (at & int64(CHUNK - 1)))


# The elements from ``first`` to before ``last``. ``steps`` has a bit for each operand: 1 for a number for each element,
# 0 for one for all.

formula: Any = KernelPart()


def _loop32(
    x: Numbers, a: Numbers, b: Numbers, steps: Int, v: Double, target: Numbers, first: Int, last: Int, settings: Mode,
    seed: Int, step: Int,
) -> None:  # fmt: skip
    mode, over, stochastic, sign = _unpack_settings(settings)
    xs, as_, bs, exact, words = _numbers(), _numbers(), _numbers(), _patterns(), _words()
    for i in range(_BLOCK):
        words[i] = uint32(0)
    at = first
    while at < last:
        count = _block_size(at, last)
        if stochastic:
            _draw_words(words, at, count, seed, step)
        _read_block(xs, x, at, steps & 1, count)
        _read_block(as_, a, at, steps & 2, count)
        _read_block(bs, b, at, steps & 4, count)
        unusual = uint64(0)  # Not zero if a result is subnormal or not finite in float32.
        for i in range(count):
            top, rest, plain, _ = formula(xs[i], as_[i], bs[i], v, sign)
            bits = odd64(top, rest, uint64(1))
            bits = bits if _ordinary(top, plain) else bits_of64(plain)
            magnitude = uint64(bits & uint64(0x7FFFFFFFFFFFFFFF))
            outside = uint64(magnitude - uint64(_SMALLEST_NORMAL)) > uint64(_LARGEST_FINITE - _SMALLEST_NORMAL)
            unusual = uint64(unusual | (magnitude if outside else uint64(0)))
            exact[i] = bits
        if unusual == uint64(0):  # The usual loop is shorter, and the compiler vectorises it.
            for i in range(count):
                target[at + i] = _to_normal32(exact[i], mode, words[i])
        else:
            for i in range(count):
                target[at + i] = _to_any32(exact[i], mode, over, words[i])
        at += count


def _loop64(
    x: Numbers, a: Numbers, b: Numbers, steps: Int, v: Double, target: Numbers, first: Int, last: Int, settings: Mode,
    seed: Int, step: Int,
) -> None:  # fmt: skip
    mode, _, stochastic, sign = _unpack_settings(settings)
    xs, as_, bs, words = _numbers(), _numbers(), _numbers(), _words()
    for i in range(_BLOCK):
        words[i] = uint32(0)
    at = first
    while at < last:
        count = _block_size(at, last)
        if stochastic:
            _draw_words(words, at, count, seed, step)
        _read_block(xs, x, at, steps & 1, count)
        _read_block(as_, a, at, steps & 2, count)
        _read_block(bs, b, at, steps & 4, count)
        for i in range(count):
            top, rest, plain, safe = formula(xs[i], as_[i], bs[i], v, sign)
            result = _to_64(top, rest, mode, words[i])
            result = result if _ordinary(top, plain) else plain
            target[at + i] = result if safe else float_of64(uint64(UNSAFE))
        at += count


def _nearest_root(x: Numbers, target: Numbers, first: Int, last: Int) -> None:
    for i in range(first, last):
        target[i] = sqrt(x[i])


@cache
def _compiled_loop(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """The loop with this formula in it; one for all simulations, since reading it from disk takes 20 ms."""
    body = _loop32 if dtype == torch.float32 else _loop64
    return compiled(specialised(body, dtype, formula=getattr(_FORMULAS[dtype], name)), dtype)


@final
class RoundedOnceLoop:
    """A formula, a carrier and a mode, ready to run over tensors.

    Args:
        formula: a field of :class:`~roundoff.simulate.rounded_once.formulas.Formulas`.
        dtype: the carrier.
        rounding: the rounding from exact results to the carrier.

    Attributes:
        function: the loop as a C function.
        settings: the address of the settings of the mode.
    """

    def __init__(self, formula: str, dtype: torch.dtype, rounding: CarrierRounding) -> None:
        self.function = _compiled_loop(formula, dtype)
        over = FP32.parameters(torch.float32, rounding.mode, Overflow.SATURATE if rounding.saturating else None)
        sign = -1 if rounding.mode is Rounding.DOWN else 1
        ends = over.over_positive, over.over_negative, rounding.saturating
        numbers = [*rule(rounding.mode, 64), *ends, rounding.mode is Rounding.STOCHASTIC, sign]
        # Read by its address as long as the loop lives.
        self._settings = np.array([number & (1 << 64) - 1 for number in numbers], np.uint64)
        self.settings: int = self._settings.ctypes.data

    def __call__(
        self, addresses: Sequence[int], steps: int, factor: float, target: torch.Tensor, count: int,
        random: RandomBits | None,
    ) -> None:  # fmt: skip
        """Writes results to ``target``, or ``UNSAFE`` where a float64 formula is.

        Args:
            addresses: addresses of the values of three operands, of the carrier; for unused operands any other's.
            steps: a bit for each operand, 1 if it has a number for each element, 0 if one for all.
            factor: the formula's ``v``, a number of the carrier.
            target: A tensor of the carrier, on the CPU, contiguous in memory, in the order of the operands; in
                row-major order for stochastic rounding.
            count: the number of elements.
            random: the bits of stochastic rounding.
        """
        seed, step = (0, 0) if random is None else (_signed(random.seed), _signed(random.step))
        before, behind = (*addresses, steps, factor, target.data_ptr()), (self.settings, seed, step)
        if count < 2 * ELEMENTS_PER_THREAD:  # at once: a call costs as much as 1000 elements
            self.function(*before, 0, count, *behind)
        else:
            in_pieces(lambda first, last: self.function(*before, first, last, *behind), count, count)


def _signed(number: int) -> int:
    """The lowest 64 bits of an integer, as a signed one."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


@cache
def _root_loop(dtype: torch.dtype) -> Any:
    return compiled(_nearest_root, dtype)


def nearest_roots() -> dict[torch.dtype, Callable[..., None]]:
    """The loops of :func:`nearest_root`: C functions of source, target, first element and the end (exclusive)."""
    return {dtype: _root_loop(dtype) for dtype in (torch.float32, torch.float64)}


def nearest_root(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Square roots to the nearest, ties to even: IEEE 754's, which PyTorch's on the CPU are not always.

    Args:
        x: float32 or float64, on the CPU, its elements in one piece of memory.
        target: contiguous memory of the same number of elements, in the same order; may be ``x``.

    Returns:
        The target. The root of a negative number is NaN, the root of -0 is -0.
    """
    kernel, source, into, count = _root_loop(x.dtype), x.data_ptr(), target.data_ptr(), x.numel()
    if count < 2 * ELEMENTS_PER_THREAD:
        kernel(source, into, 0, count)
    else:
        in_pieces(lambda first, last: kernel(source, into, first, last), count, count)
    return target
