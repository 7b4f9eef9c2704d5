"""A float format as data: the few numbers a rounding kernel needs, as bit patterns of the carrier."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch


class FloatParameters(NamedTuple):
    """What rounding a carrier's bit pattern to nearest-even needs to know of the format.

    With them as arguments one compiled kernel serves every format: a float format is data, not code.
    """

    shift: int
    """How many low significand bits of the carrier the format drops."""
    smallest_normal: int
    """Bit pattern of the format's smallest normal number."""
    largest: int
    """Bit pattern of the format's largest finite number."""
    magic: float
    """2^(emin - m + s), s the carrier's significand bits: adding it rounds a subnormal at 2^(emin - m)."""

    @staticmethod
    def of(dtype: torch.dtype, emin: int, emax: int, significand_bits: int) -> FloatParameters:
        """The parameters of a format with these exponents and stored significand bits, in carrier ``dtype``."""
        stored = {torch.float32: 23, torch.float64: 52}[dtype]

        def pattern(value: float) -> int:
            single = dtype == torch.float32
            return int(np.float32(value).view(np.uint32) if single else np.float64(value).view(np.uint64))

        return FloatParameters(
            shift=stored - significand_bits,
            smallest_normal=pattern(2.0**emin),
            largest=pattern((2.0 - 2.0**-significand_bits) * 2.0**emax),
            magic=2.0 ** (emin - significand_bits + stored),
        )
