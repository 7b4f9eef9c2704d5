"""E8M0: unsigned powers of two, the scale type of the OCP microscaling formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import gpu
from ..arithmetic.codes import integer_codes
from ..arithmetic.patterns import float64_bits, narrowed, power_of_two
from ..base.errors import FormatError
from ..base.family import Family
from ..base.modes import Overflow, Rounding, RoundingOptions
from ..base.names import overflow_suffix, register
from ..base.on_device import where
from ..cpu.numbers.powers_of_two import round_to_powers

_BIAS = 127
_LARGEST, _NAN = 254, 255
_INWARD = (Rounding.TOWARD_ZERO, Rounding.DOWN, Rounding.TO_ODD)

_FIELD = 1023 - _BIAS  # A float64's exponent field minus the code.
_FRACTION = (1 << 52) - 1
_INFINITY, _QUIET = 0x7FF << 52, 0xFFF << 51


@dataclass(frozen=True)
class PowerOfTwoFormat(Family):
    """The numbers 2^(code - 127) for codes 0 to 254; code 255 is NaN (OCP MX v1.0, section 5.4.1).

    Zero, signs and infinities do not exist: zero and negative numbers become NaN, and positive numbers below 2^-127
    become 2^-127. Between two powers of two the modes choose as everywhere; the middle is 1.5 times the lower one
    (ml_dtypes rounds ties up: nearest-away; ONNX's Cast saturates, and rounds up by default). Overflow
    gives NaN, or saturates; so does plus infinity. Toward zero, down and to-odd, finite numbers saturate.

    It is not ``e8m0``, which names a signed IEEE-like float of 8 exponent bits, with infinities, zeros and NaN.

    Args:
        overflow: ``Overflow.NAN`` or ``Overflow.SATURATE``.

    Raises:
        FormatError: another overflow.
    """

    overflow: Overflow = Overflow.NAN

    elementwise = True
    has_nan = True
    bits = 8
    max = 2.0**127
    min = smallest_normal = smallest = 2.0**-_BIAS  # the format lacks subnormal numbers
    eps = 1.0
    carrier = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "overflow", self._checked(Overflow.parse(self.overflow)))

    def _checked(self, policy: Overflow) -> Overflow:
        if policy not in (Overflow.NAN, Overflow.SATURATE):
            raise FormatError(f"e8m0fnu cannot overflow to {str(policy)!r}: allowed are nan, saturate")
        return policy

    def __str__(self) -> str:
        return "e8m0fnu" if self.overflow is Overflow.NAN else "e8m0fnu_saturate"

    def fits_in(self, dtype: torch.dtype) -> bool:
        """float32 and float64 both hold all numbers; in float32 the smallest is subnormal."""
        return dtype in (torch.float32, torch.float64)

    def _values(self) -> torch.Tensor:
        return self.decode(torch.arange(_NAN), torch.float64)

    def _policy(self, overflow: Overflow | None) -> Overflow:
        return self.overflow if overflow is None else self._checked(overflow)

    @staticmethod
    def _beyond(options: RoundingOptions) -> tuple[int, int]:
        """The codes that represent a number beyond the largest, and infinity."""
        infinite = _NAN if options.policy is Overflow.NAN else _LARGEST
        return _LARGEST if options.rounding in _INWARD else infinite, infinite

    def _beyond_patterns(self, options: RoundingOptions) -> tuple[int, int]:
        """Returns the codes of :meth:`_beyond` as patterns of float64."""
        over, infinite = (_QUIET if code == _NAN else (code + _FIELD) << 52 for code in self._beyond(options))
        return over, infinite

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        round_to_powers(source, target, *self._beyond_patterns(options), options)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        gpu.to_powers_of_two(source, target, *self._beyond_patterns(options), options)

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        bits = float64_bits(self._rounded_to_encode(x, options))
        return where(bits > _INFINITY, _NAN, (bits >> 52) - _FIELD).to(torch.uint8)

    def _decoded(self, codes: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Decodes integers, or ``torch.float8_e8m0fnu``."""
        code = integer_codes(self, codes, self.bits, "e8m0fnu")
        number = narrowed(power_of_two(code - _BIAS), dtype or torch.float32)
        return where(code == _NAN, torch.nan, number)


_E8M0 = PowerOfTwoFormat()
register(
    PowerOfTwoFormat,
    suffixes=[overflow_suffix("nan", "saturate")],
    aliases={"fp8_e8m0": _E8M0, "float8_e8m0fnu": _E8M0, "e8m0fnu": _E8M0},
    called="power-of-two",
    verified=["fp8_e8m0"],
)
