"""Lower :func:`~roundoff.formats.compiling.float_data.round_float` in inductor, the compiler of PyTorch.

Inductor's interface is not public: this module is made for the pinned version of PyTorch, and only makes programs
faster. An operator without lowering is called as it is.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import config, ir
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.lowering import register_lowering
from torch._inductor.virtualized import V, ops

from ..arithmetic.patterns import INFINITY, INTEGER
from .float_data import EXPONENT, SIGN

_OPERATION = "inline_asm_elementwise"
"""An operation of inductor that takes any operands and a text: an instruction. C++ has none but ours."""
_REGISTER_SUFFIX = {torch.float32: "", torch.int32: "i"}
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "bitwise_left_shift": "<<", "bitwise_right_shift": ">>", "lt": "<", "gt": ">", "eq": "==",
}  # fmt: skip


@register_lowering(torch.ops.roundoff.round_float, type_promotion_kind=None)
def _round_float(x: Any, parameters: Any, by_addition: bool) -> Any:
    dtype, device = x.get_dtype(), x.get_device()
    element, parameter = x.make_loader(), parameters.make_loader()
    name = "round by addition" if by_addition else "round bit by bit"
    body, count = _BODIES[name]
    # Whether a rounding is one operation for inductor, and a function in its C++. Inductor passes over all operations
    # of a program many times. With one in place of some twenty for each rounding, it compiles in three quarters of
    # the time.
    written = device.type == "cpu" and config.cpu_backend == "cpp" and platform.machine() == "x86_64"
    as_function = written and dtype == torch.float32 and pick_vec_isa().bit_width() in (256, 512)
    rows = len(parameters.get_size()) > 1

    def inner(index: Any) -> Any:
        row = index[:1] if rows else ()

        def number(i: int) -> Any:
            return parameter([*row, sympy.Integer(i)])

        if as_function:
            numbers = [number(i) for i in range(count)]
            return ops.inline_asm_elementwise(element(index), *numbers, asm=name, dtype=dtype)
        return body(element(index), number, dtype)

    return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=inner, ranges=x.get_size())


def _by_addition(x: Any, number: Any, dtype: torch.dtype) -> Any:
    factor, up, down = (number(i) for i in range(2, 5))
    integer = INTEGER[dtype]
    smallest, beyond = (ops.to_dtype_bitcast(number(i), integer, dtype) for i in range(2))
    bits = ops.to_dtype_bitcast(x, integer, dtype)
    binade = ops.bitwise_and(bits, ops.constant(EXPONENT[dtype], integer))
    # As integers: of floats, minimum and maximum look for NaN.
    binade = ops.minimum(ops.maximum(binade, smallest), beyond)
    pushes = ops.mul(ops.to_dtype_bitcast(binade, dtype, integer), factor)
    rounded = ops.mul(ops.mul(ops.sub(ops.add(x, pushes), pushes), up), down)
    sign = ops.bitwise_and(bits, ops.constant(SIGN[dtype], integer))
    # Numbers other than zero already have their sign.
    result = ops.bitwise_or(ops.to_dtype_bitcast(rounded, integer, dtype), sign)
    return ops.to_dtype_bitcast(result, dtype, integer)


def _bit_by_bit(x: Any, number: Any, dtype: torch.dtype) -> Any:
    """Rounds as :func:`.float_tensors.round_nearest` does, line by line."""
    integer = INTEGER[dtype]
    shift, smallest_normal, largest, beyond, infinite, zero_sign, flip = (
        ops.to_dtype_bitcast(number(i), integer, dtype) for i in range(7)
    )
    magic = number(7)
    zero, one = ops.constant(0, integer), ops.constant(1, integer)
    bits = ops.to_dtype_bitcast(x, integer, dtype)
    sign = ops.bitwise_and(bits, ops.constant(SIGN[dtype], integer))
    magnitude = ops.bitwise_xor(bits, sign)
    unit = ops.bitwise_left_shift(one, shift)
    odd = ops.bitwise_xor(ops.bitwise_and(ops.bitwise_right_shift(magnitude, shift), one), flip)
    odd = ops.bitwise_or(odd, ops.bitwise_and(unit, one))
    half = ops.sub(ops.bitwise_right_shift(unit, one), one)
    result = ops.bitwise_and(ops.add(ops.add(magnitude, half), odd), ops.sub(zero, unit))
    absolute = ops.to_dtype_bitcast(magnitude, dtype, integer)
    subnormal = ops.to_dtype_bitcast(ops.sub(ops.add(absolute, magic), magic), integer, dtype)
    result = ops.where(ops.lt(magnitude, smallest_normal), subnormal, result)
    result = ops.where(ops.gt(result, largest), beyond, result)
    result = ops.where(ops.eq(magnitude, ops.constant(INFINITY[dtype], integer)), infinite, result)
    result = ops.where(ops.gt(magnitude, ops.constant(INFINITY[dtype], integer)), magnitude, result)
    sign = ops.where(ops.eq(result, zero), ops.bitwise_and(sign, zero_sign), sign)
    return ops.to_dtype_bitcast(ops.bitwise_or(result, sign), dtype, integer)


_BODIES = {"round by addition": (_by_addition, 5), "round bit by bit": (_bit_by_bit, 8)}
"""The computation of a rounding and its number of parameters, by the text of the format that the operation gets."""


class _Lines:
    """Writes operations as lines of C++: of scalars, or of vectors of ``width`` bits.

    With vectors of GCC or Clang, a cast to another type of the same size keeps the bits.
    """

    def __init__(self, width: int | None) -> None:
        self.lines: list[str] = []
        self._width = width

    def __getattr__(self, operation: str) -> Callable[..., str]:
        def write(*operands: Any) -> str:
            self.lines.append(f"auto const r{len(self.lines)} = {self._expression(operation, operands)};")
            return f"r{len(self.lines) - 1}"

        return write

    def _expression(self, operation: str, operands: tuple[Any, ...]) -> str:
        vectors = self._width is not None
        match operation, operands:
            case "to_dtype_bitcast", (x, dtype, source) if vectors:
                registers = [f"__m{self._width}{_REGISTER_SUFFIX[t]}" for t in (dtype, source)]
                return f"at::vec::Vectorized<{DTYPE_TO_CPP[dtype]}>(({registers[0]})({registers[1]})({x}))"
            case "to_dtype_bitcast", (x, dtype, _):
                return f"c10::bit_cast<{DTYPE_TO_CPP[dtype]}>({x})"
            case "constant", (number, dtype):
                return f"at::vec::Vectorized<{DTYPE_TO_CPP[dtype]}>({number})" if vectors else f"int32_t({number})"
            case "where", (chosen, yes, no):
                return f"decltype({no})::blendv({no}, {yes}, {chosen})" if vectors else f"{chosen} ? {yes} : {no}"
            case (("minimum" | "maximum"), (a, b)):
                return f"at::vec::{operation}({a}, {b})" if vectors else f"std::{operation[:3]}({a}, {b})"
        a, b = operands
        return f"{a} {_SIGNS[operation]} {b}"


@cache
def _cpp_function(name: str, width: int | None) -> str:
    """A C++ function that rounds a float32, or a vector of them; the parameters of the format follow it."""
    body, count = _BODIES[name]
    lines = _Lines(width)
    with V.set_ops_handler(lines):  # type: ignore[arg-type]
        result = body("x", lambda i: f"n{i}", torch.float32)
    operands = ", ".join(f"auto const {name}" for name in ("x", *(f"n{i}" for i in range(count))))
    return f"[]({operands}) {{ {' '.join(lines.lines)} return {result}; }}"


def _call_scalars(*operands: Any, asm: str, **_: Any) -> str:
    return f"{_cpp_function(_check_name(asm), None)}({', '.join(map(str, operands))})"


def _call_vectors(*operands: Any, asm: str, **_: Any) -> str:
    function = _cpp_function(_check_name(asm), pick_vec_isa().bit_width())
    count = V.kernel._get_num_vectors(torch.float32)  # noqa: SLF001  public nowhere
    if count == 1:
        return f"{function}({', '.join(map(str, operands))})"
    each = ", ".join(f"{x}[i]" for x in operands)
    lines = f"at::vec::VectorizedN<float, {count}> all; for (int i = 0; i < {count}; ++i) all[i] = {function}({each});"
    return f"[&] {{ {lines} return all; }}()"


def _check_name(text: str) -> str:
    if text not in _BODIES:
        raise NotImplementedError(f"{_OPERATION} in C++")
    return text


for _overrides, _write in ((CppOverrides, _call_scalars), (CppVecOverrides, _call_vectors)):
    _write.__name__ = _OPERATION  # by which inductor finds the one for numbers where none is a vector
    setattr(_overrides, _OPERATION, staticmethod(_write))
