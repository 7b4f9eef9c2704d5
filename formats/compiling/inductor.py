"""How inductor, PyTorch's compiler, writes :func:`~roundoff.formats.compiling.float_data.round_float` into its loops.

Inductor's interface is not public: what is here is made for the pinned version of PyTorch, and only makes programs
faster. An operator without lowering is called as it is.
"""

from __future__ import annotations

import platform
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp import CppVecOverrides
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.lowering import register_lowering
from torch._inductor.virtualized import ops

from ..arithmetic.carriers import INFINITY, INTEGER
from .float_data import EXPONENT, SIGN

if TYPE_CHECKING:
    from collections.abc import Iterator

_REGISTER_SUFFIX = {torch.float32: "", torch.int32: "i"}


@register_lowering(torch.ops.roundoff.round_float, type_promotion_kind=None)
def _round_float(x: Any, parameters: Any, by_addition: bool) -> Any:
    dtype = x.get_dtype()
    element, parameter = x.make_loader(), parameters.make_loader()
    body = _by_addition if by_addition else _bit_by_bit

    rows = len(parameters.get_size()) > 1

    def inner(index: Any) -> Any:
        row = index[:1] if rows else ()
        return body(element(index), lambda i: parameter([*row, sympy.Integer(i)]), dtype)

    return ir.Pointwise.create(
        device=x.get_device(),
        dtype=dtype,
        inner_fn=inner,
        ranges=x.get_size(),
    )


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
    # What is not zero has its sign.
    result = ops.bitwise_or(ops.to_dtype_bitcast(rounded, integer, dtype), sign)
    return ops.to_dtype_bitcast(result, dtype, integer)


def _bit_by_bit(x: Any, number: Any, dtype: torch.dtype) -> Any:
    """Rounds as ``tensor_kernels.round_nearest`` does, line by line."""
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


@contextmanager
def vectorised_bitcasts() -> Iterator[None]:
    """While inductor writes C++, a cast of the bits of a vector costs nothing; it goes element by element otherwise."""
    before: Any = CppVecOverrides.to_dtype_bitcast
    width = pick_vec_isa().bit_width() if platform.machine() == "x86_64" else 0

    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> Any:
        if width in (256, 512) and {dtype, src_dtype} == set(_REGISTER_SUFFIX):
            # As GCC's and Clang's vector types, of which a cast keeps the bits.
            registers = [f"__m{width}{_REGISTER_SUFFIX[t]}" for t in (dtype, src_dtype)]
            return f"at::vec::Vectorized<{DTYPE_TO_CPP[dtype]}>(({registers[0]})({registers[1]})({x}))"
        return before(x, dtype, src_dtype)

    # Whatever kind of attribute there was, or none: it is there again afterwards.
    with patch.object(CppVecOverrides, "to_dtype_bitcast", staticmethod(to_dtype_bitcast)):
        yield
