"""Reading the bits of a float as an integer, and back, inside numba kernels."""

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


float_of32 = _reinterpret(types.uint32, types.float32, ir.FloatType())
bits_of32 = _reinterpret(types.float32, types.uint32, ir.IntType(32))
float_of64 = _reinterpret(types.uint64, types.float64, ir.DoubleType())
bits_of64 = _reinterpret(types.float64, types.uint64, ir.IntType(64))
