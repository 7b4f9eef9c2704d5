"""Rounding to posits: the compiled loop for CPU.

In a float64's pattern, less the bias, everything above the lowest es exponent bits is the regime k as a number in two's
complement, and below it stand the posit's own exponent and fraction. So rounding a posit's bit string is cutting that
pattern at a place that depends on k, and a carry moves into the regime by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit
from numpy import float64, int64, uint64

from roundoff.formats.native_loops import compiled, in_pieces
from roundoff.formats.reinterpret import bits_of64, float_of64

if TYPE_CHECKING:
    import torch


@njit(inline="always")  # type: ignore[untyped-decorator]
def _nearest_even(x: Any, exponent_bits: Any, room: Any, largest: Any, smallest: Any) -> Any:
    """The float64 ``x`` rounded to the bit string's nearest-even; ``room`` is the width less the sign: n - 1."""
    bits = int64(bits_of64(x))
    sign = int64(bits & int64(-0x8000000000000000))
    magnitude = int64(bits ^ sign)
    clamped = min(max(magnitude, smallest), largest)
    pattern = int64(clamped - int64(1023 << 52))
    below_regime = int64(52) + exponent_bits
    k = int64(pattern >> below_regime)
    # A run of k + 1 ones and a zero, or of -k zeros and a one.
    regime = k + int64(2) if k >= int64(0) else int64(1) - k
    kept = max(room - regime, int64(0))
    drop = max(below_regime - kept, int64(0))
    unit = int64(int64(1) << drop)
    # Where nothing is kept below the regime, the regime's last bit is the code's last: 0 after ones, 1 after zeros.
    regime_odd = int64(1) if k < int64(0) else int64(0)
    odd = int64(int64(pattern >> drop) & int64(1)) if kept > int64(0) else regime_odd
    # Half a unit, less one, plus the parity; with nothing to cut (unit 1) nothing is added.
    add = int64(int64(unit >> int64(1)) - int64(1) + odd) if drop > int64(0) else int64(0)
    pattern = int64(int64(pattern + add) & int64(-unit))
    result = int64(pattern + int64(1023 << 52)) | sign
    result = int64(0) if magnitude == int64(0) else result
    result = int64(0x7FF8000000000000) if magnitude >= int64(0x7FF0000000000000) else result
    return float_of64(uint64(result))


def _copying(
    source: Any, target: Any, first: Any, last: Any, exponent_bits: Any, room: Any, largest: Any, smallest: Any
) -> None:
    for i in range(first, last):
        target[i] = _nearest_even(float64(source[i]), exponent_bits, room, largest, smallest)


def _in_place(data: Any, first: Any, last: Any, exponent_bits: Any, room: Any, largest: Any, smallest: Any) -> None:
    for i in range(first, last):
        data[i] = _nearest_even(float64(data[i]), exponent_bits, room, largest, smallest)


def round_posit(
    source: torch.Tensor, target: torch.Tensor, width: int, exponent_bits: int, largest: int, smallest: int
) -> None:
    """Rounds the elements of ``source`` to posits, nearest-even on the bit string.

    Args:
        source: float32 or float64 on the CPU, its elements filling one gapless piece of memory.
        target: same dtype, shape and strides; may be ``source``, may not otherwise overlap it.
        width: bits of the posit, n.
        exponent_bits: es.
        largest: the float64 pattern of maxpos.
        smallest: the float64 pattern of minpos.
    """
    data = (source.data_ptr(),) if target is source else (source.data_ptr(), target.data_ptr())
    body, signature = (_in_place, "piiiiii") if target is source else (_copying, "ppiiiiii")
    kernel = compiled(body, source.dtype, signature)
    rest = (exponent_bits, width - 1, largest, smallest)
    in_pieces(lambda first, last: kernel(*data, first, last, *rest), source.numel(), source.numel())
