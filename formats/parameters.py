"""A float format as data: the few numbers a rounding kernel needs, as bit patterns of the carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from roundoff.formats.modes import Overflow, Rounding
from roundoff.formats.tail import rule

if TYPE_CHECKING:
    from roundoff.formats.floats import FloatFormat

STORED_BITS = {torch.float32: 23, torch.float64: 52}
"""Stored significand bits of the carriers."""
LARGEST_EXPONENT = {torch.float32: 127, torch.float64: 1023}
"""Largest exponent of the carriers; also their bias."""
INFINITY = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}
_QUIET_NAN = {torch.float32: 0x7FC00000, torch.float64: 0x7FF8000000000000}


class FloatParameters(NamedTuple):
    """What rounding a carrier's bit pattern needs to know of the format, the mode and the overflow policy.

    With them as arguments one compiled kernel serves every format: a float format is data, not code. All but ``magic``
    and ``quantum`` are integers, most of them bit patterns of the carrier.
    """

    shift: int
    """How many low significand bits of the carrier the format drops."""
    smallest_normal: int
    """Bit pattern of the format's smallest normal number."""
    largest: int
    """Bit pattern of the format's largest finite number."""
    magic: float
    """Quantum times 2^s, s the carrier's significand bits: adding and subtracting it rounds to the quantum."""
    over_positive: int
    """What stands for a positive number beyond the largest."""
    over_negative: int
    """The magnitude of what stands for a negative one."""
    infinite: int
    """The magnitude of what stands for an infinity."""
    zero_sign: int
    """All ones if the format has a negative zero, else 0."""
    flip: int
    """1 if a number's code is odd where the carrier's pattern, cut, is even (no significand bits and an even bias)."""
    subnormal_shift: int
    """``subnormal_shift`` minus the carrier's exponent field is how many bits a subnormal number drops."""
    quantum: float
    """Distance of the numbers below the smallest normal one: the smallest subnormal, or the smallest normal itself."""
    positive: int
    """Addends of the rounding tail; see :class:`roundoff.formats.tail.Rule`."""
    negative: int
    parity: int
    sticky: int

    @staticmethod
    def of(
        fmt: FloatFormat,
        dtype: torch.dtype,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
    ) -> FloatParameters:
        """The parameters of ``fmt`` in carrier ``dtype``; ``overflow`` None stands for the format's own policy."""
        stored, bias = STORED_BITS[dtype], LARGEST_EXPONENT[dtype]
        m, emin = fmt.significand_bits, fmt.emin
        lowest = emin - m if fmt.subnormals else emin
        largest = pattern(fmt.max, dtype)
        policy = fmt.overflow_policy if overflow is None else overflow
        beyond = {Overflow.INFINITY: INFINITY[dtype], Overflow.NAN: _QUIET_NAN[dtype], Overflow.SATURATE: largest}[
            policy
        ]
        # A mode that never rounds away from zero never passes the largest number, nor does to-odd (IEEE 754, 7.4).
        inward = (Rounding.TOWARD_ZERO, Rounding.TO_ODD)
        width = 32 if dtype == torch.float32 else 64
        return FloatParameters(
            shift=stored - m,
            smallest_normal=pattern(2.0**emin, dtype),
            largest=largest,
            magic=2.0 ** (lowest + stored),
            over_positive=largest if rounding in (*inward, Rounding.DOWN) else beyond,
            over_negative=largest if rounding in (*inward, Rounding.UP) else beyond,
            infinite=beyond,
            zero_sign=(1 << width) - 1 if fmt.has_negative_zero else 0,
            flip=int(m == 0 and fmt.exponent_bias % 2 == 0),
            subnormal_shift=stored + bias + lowest,
            quantum=2.0**lowest,
            **rule(rounding, width)._asdict(),
        )

    def packed(self, dtype: torch.dtype) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
        """The fields, in order, as the array of carrier-wide unsigned words that the CPU kernels read."""
        unsigned = np.uint32 if dtype == torch.float32 else np.uint64
        return np.array(
            [pattern(value, dtype) if isinstance(value, float) else value for value in self], dtype=unsigned
        )


def pattern(value: float, dtype: torch.dtype) -> int:
    """The bit pattern of ``value`` as a float32 or float64."""
    if dtype == torch.float32:
        return int(np.float32(value).view(np.uint32))
    return int(np.float64(value).view(np.uint64))
