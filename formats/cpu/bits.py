"""Machine operations for numba kernels: the bits of a float as an integer, and shifts of fixed width."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _reinterpret(source: types.Type, target: types.Type, llvm: ir.Type) -> Any:
    """A numba function that reads the bits of a ``source`` as a ``target``."""

    @intrinsic  # type: ignore[untyped-decorator]
    def view(_context: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm)

        return target(source), generate

    return view


def _shift(word: types.Type, llvm: ir.IntType, direction: str) -> Any:
    """A numba function that shifts a word by any count, to 0 where the count is the width or more.

    numba's own operators widen to 64 bits, which halves the speed of a vectorised loop, and leave large counts
    undefined; the vector instructions give 0 without a test.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def shift(_context: Any, _value: Any, _count: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value, count = arguments
            shifted = builder.lshr(value, count) if direction == "right" else builder.shl(value, count)
            small = builder.icmp_unsigned("<", count, ir.Constant(llvm, llvm.width))
            return builder.select(small, shifted, ir.Constant(llvm, 0))

        return word(word, word), generate

    return shift


SCRATCH = 1024
"""Number of words of a scratch."""


def _scratch(word: types.Type, llvm: ir.Type, *, zeros: bool) -> Any:
    """A numba function that gives a pointer to ``SCRATCH`` words on the stack of the running function.

    They are zeros at first, or else anything: to fill them takes as long as to round a hundred numbers. No argument can
    overlap that memory, so that loops over it and an argument are vectorised without a test.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def scratch(_context: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
            words = ir.ArrayType(llvm, SCRATCH)
            with builder.goto_entry_block():  # Not in a loop, where the stack would grow.
                place = builder.alloca(words)
                if zeros:
                    builder.store(ir.Constant(words, None), place)
            return builder.bitcast(place, llvm.as_pointer())

        return types.CPointer(word)(), generate

    return scratch


float_of32 = _reinterpret(types.uint32, types.float32, ir.FloatType())
bits_of32 = _reinterpret(types.float32, types.uint32, ir.IntType(32))
float_of64 = _reinterpret(types.uint64, types.float64, ir.DoubleType())
bits_of64 = _reinterpret(types.float64, types.uint64, ir.IntType(64))

left32 = _shift(types.uint32, ir.IntType(32), "left")
right32 = _shift(types.uint32, ir.IntType(32), "right")
left64 = _shift(types.uint64, ir.IntType(64), "left")
right64 = _shift(types.uint64, ir.IntType(64), "right")

scratch32 = _scratch(types.uint32, ir.IntType(32), zeros=True)
scratch64 = _scratch(types.uint64, ir.IntType(64), zeros=True)
unfilled32 = _scratch(types.uint32, ir.IntType(32), zeros=False)
unfilled64 = _scratch(types.uint64, ir.IntType(64), zeros=False)
