"""A float format as data: the few numbers a rounding kernel needs, as bit patterns of the carrier."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..base.modes import Overflow, Rounding
from .float_layout import FloatLayout
from .patterns import INFINITY, LARGEST_EXPONENT, STORED_BITS, pattern
from .tail import rule

# The modes to nearest that treat numbers of both signs alike.
_SYMMETRIC = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)

_QUIET_NAN = {torch.float32: 0x7FC00000, torch.float64: 0x7FF8000000000000}


class FloatParameters(NamedTuple):
    """The parameters of a format, a mode and an overflow policy for rounding a carrier's bit pattern.

    With them as arguments one compiled kernel serves every format: a float format is data, not code. All but ``magic``
    and ``quantum`` are integers, most of them bit patterns of the carrier.
    """

    shift: int
    """Number of low significand bits of the carrier that the format drops."""
    smallest_normal: int
    """Bit pattern of the format's smallest normal number; of the smallest that rounds to it, to nearest with FTZ."""
    largest: int
    """Bit pattern of the format's largest finite number."""
    magic: float
    """Quantum times 2^s, s the carrier's significand bits: adding and subtracting it rounds to the quantum. To nearest
    only; where numbers are flushed, so large that it makes zero of them."""
    over_positive: int
    """The result for a positive value beyond the largest."""
    over_negative: int
    """The magnitude of the result for a negative value beyond the largest."""
    infinite: int
    """The magnitude of the result for an infinity."""
    zero_sign: int
    """All ones if the format has a negative zero, else 0."""
    flip: int
    """1 if a number's code is odd where the carrier's pattern, cut, is even (no significand bits and an even bias)."""
    subnormal_shift: int
    """``subnormal_shift`` minus the carrier's exponent field is the number of bits that a subnormal number drops."""
    quantum: float
    """Distance of the numbers below the smallest normal one: the smallest subnormal, or the smallest normal itself; 0
    if all become zero."""
    positive: int
    """Addends of the rounding tail; see :class:`.Rule`."""
    negative: int
    parity: int
    sticky: int
    least: int
    """Bit pattern below which results are flushed; 0 if none are. For the modes that are data: see :meth:`packed`."""

    @staticmethod
    def of(
        fmt: FloatLayout,
        dtype: torch.dtype,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
    ) -> FloatParameters:
        """The parameters of ``fmt`` in carrier ``dtype``; ``overflow`` None means the format's own policy."""
        stored, bias = STORED_BITS[dtype], LARGEST_EXPONENT[dtype]
        m, emin = fmt.significand_bits, fmt.emin
        lowest = fmt.lowest_exponent
        smallest, quantum = pattern(2.0**emin, dtype), 2.0**lowest
        least = smallest if fmt.flush else 0
        if fmt.flush == "ftz" and rounding in _SYMMETRIC:
            # Without a lower limit of e, values of 2^emin - 2^(emin - 2 - m) or more become 2^emin. The tie does, as
            # the number below is odd. Where the carrier's normal numbers end, its values below have twice the distance.
            carrier_ends = smallest in (1 << 23, 1 << 52)
            smallest, quantum = smallest - ((1 << stored - m) >> (2 if carrier_ends else 1)), 0.0
        elif fmt.flush == "ftz":
            lowest = emin - 1 - m  # the last place just below the smallest normal number, if exponents had no end
            quantum = 2.0**lowest if lowest >= 1 - bias - stored else 0.0
        elif fmt.flush:
            quantum = 0.0
        largest = pattern(fmt.max, dtype)
        policy = fmt.overflow_policy if overflow is None else overflow
        beyond = {Overflow.INFINITY: INFINITY[dtype], Overflow.NAN: _QUIET_NAN[dtype]}.get(policy, largest)
        # A mode that never rounds away from zero never passes the largest number, nor does to-odd (IEEE 754, 7.4).
        inward = (Rounding.TOWARD_ZERO, Rounding.TO_ODD)
        width = 32 if dtype == torch.float32 else 64
        return FloatParameters(
            shift=stored - m,
            smallest_normal=smallest,
            largest=largest,
            magic=2.0 ** (fmt.lowest_exponent + stored),
            over_positive=largest if rounding in (*inward, Rounding.DOWN) else beyond,
            over_negative=largest if rounding in (*inward, Rounding.UP) else beyond,
            infinite=INFINITY[dtype] if policy is Overflow.PROPAGATE else beyond,
            zero_sign=(1 << width) - 1 if fmt.has_negative_zero else 0,
            flip=int(m == 0 and fmt.exponent_bias % 2 == 0),
            subnormal_shift=stored + bias + lowest,
            quantum=quantum,
            **rule(rounding, width)._asdict(),
            least=least,
        )

    def gradual(self, dtype: torch.dtype) -> bool:
        """Whether there are bits to cut, subnormal numbers, and a signed zero."""
        normal = self.quantum * 2.0 ** (STORED_BITS[dtype] - self.shift)
        return self.shift > 0 and pattern(normal, dtype) == self.smallest_normal and self.zero_sign != 0

    def rounds_by_addition(self, dtype: torch.dtype) -> bool:
        """Whether the carrier's own additions and overflow can round to the format, to nearest-even.

        The format must have a significand bit, and differ from IEEE formats only in its widths and bias. Adding 1.5
        times a power of two pushes the surplus bits out of the carrier's significand. At least two bits must be
        cut, since otherwise the sum leaves its binade, and the sum must not overflow for twice the largest power of
        two, 2^emax. A factor 2^(bias - emax) then brings the largest exponent to the carrier's, and a second factor
        undoes it. Both factors must be normal numbers, so emax is at least 1.
        """
        stored, bias = STORED_BITS[dtype], LARGEST_EXPONENT[dtype]
        m, emax = stored - self.shift, (self.largest >> stored) - bias
        whole = (1 << m) - 1
        ieee = self.infinite == self.over_positive == INFINITY[dtype] and (self.largest >> self.shift) & whole == whole
        return self.gradual(dtype) and ieee and m > 0 and self.shift >= 2 and 1 <= emax < bias - self.shift

    def packed(
        self, dtype: torch.dtype, *, by_mode: bool = False
    ) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
        """Returns all fields except the last as the array of unsigned words, as wide as the carrier, for CPU kernels.

        Kernels that round by mode do not use ``magic``, and get ``least`` in its place.
        """
        unsigned = np.uint32 if dtype == torch.float32 else np.uint64
        fields = self._replace(magic=self.least) if by_mode else self  # a pattern already
        words = [pattern(value, dtype) if isinstance(value, float) else value for value in fields[:-1]]
        return np.array(words, dtype=unsigned)
