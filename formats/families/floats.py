"""Binary floating-point formats with any exponent and significand width, bias, special values and overflow policy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from roundoff.locks import cached_property

from .. import gpu
from ..arithmetic import float_codes
from ..arithmetic.codes import integer_codes
from ..arithmetic.float_layout import FloatLayout, Flush, Specials
from ..arithmetic.float_parameters import FloatParameters
from ..arithmetic.patterns import STORED_BITS
from ..base.errors import FormatError
from ..base.family import Family, check_random
from ..base.format import around_one, check_roundable
from ..base.modes import Overflow, Random, RandomBits, Rounding, RoundingOptions
from ..base.names import Beginning, Suffix, overflow_suffix, register
from ..cpu import float_choice as cpu_kernels
from ..cpu.addressed import Addressed

# Stored significand bits up to which float32 arithmetic followed by one rounding equals the exactly rounded result of
# +, -, *, / and sqrt, to the nearest: double rounding is harmless if the wider significand has at least 2p + 2 bits,
# p = m + 1 (Figueroa, "When is double rounding innocuous?", 1995): 2 * 11 + 2 <= 24.
_LARGEST_M_IN_FLOAT32 = 10


@dataclass(frozen=True)
class FloatFormat(FloatLayout, Family):
    """A binary float: sign, ``exponent_bits``, and ``significand_bits`` stored bits after an implicit one.

    A code with exponent field E > 0 and significand field F is (1 + F 2^-m) 2^(E - bias); with E = 0 it is the
    subnormal F 2^(1 - bias - m). The defaults follow IEEE 754.

    Args:
        exponent_bits: 2 to 11; 1 also, unless the specials are ``IEEE``.
        significand_bits: stored significand bits m, 0 to 52; the precision is m + 1. fp16 is ``FloatFormat(5, 10)``.
        specials: the codes of infinity and NaN.
        bias: exponent bias; None for the default, 2^(exponent_bits - 1) - 1, one more for ``FNUZ`` and ``P3109``.
        subnormals: False: the codes with E = 0 are all zero, and a value between 0 and the smallest normal
            number is rounded to one of these by the mode.
        overflow: None for infinity where there is one, else NaN where there is one, else saturation.
        flush: the stage of flushing small numbers to zero, for a format without subnormals; None: it rounds them. Such
            a format has at least one significand bit. A simulation rounds results: with ``DAZ`` results that the next
            operation would read as zero are zero already.
        signed: False, for ``FNUZ`` and ``P3109`` only: no sign bit. Negative numbers and -infinity become 0.

    Raises:
        FormatError: a width is out of range, the numbers do not fit in float64, the format has no infinity or no
            NaN to overflow to, or two arguments exclude each other.
    """

    elementwise = True

    @cached_property
    def carrier(self) -> torch.dtype:
        """float32 for fp32, and for m <= 10 if float32 can hold the format; else float64.

        In float32, ``+ - * /`` and sqrt of numbers of the format, each correctly rounded and then rounded to it, in
        a nearest mode both times, equal the exactly rounded results for m <= 10; wider formats would be rounded
        twice, sometimes wrongly (at m = 12 0.016 % of products), hence float64, which serves the same purpose for
        m <= 24. With 8 exponent bits and m = 8, 9, 10 a product below 2^-126 (subnormal in both) can still be rounded
        twice. So can any result in the other modes, directed, to-odd and stochastic. In these cases a simulation
        computes exact results and rounds them once; PyTorch's own kernels do not.
        """
        if self == FP32 or (self.significand_bits <= _LARGEST_M_IN_FLOAT32 and self.fits_in(torch.float32)):
            return torch.float32
        return torch.float64

    @property
    def native(self) -> bool:
        """Whether this is fp32 or fp64."""
        return self in (FP32, FP64)

    @cached_property
    def _kernels(self) -> dict[torch.dtype, Callable[[torch.Tensor, torch.Tensor], None]]:
        return {
            dtype: _pass_on
            if self.native and dtype == self.carrier
            else cpu_kernels.nearest(self.parameters(dtype), dtype)
            for dtype in (torch.float32, torch.float64)
            if self.fits_in(dtype)
        }

    def addressed(self, dtype: torch.dtype, rounding: Rounding, *, strided: bool = False) -> Addressed | None:  # noqa: ARG002
        """See :meth:`.Family.addressed`."""
        if not self.signed or not self.fits_in(dtype):
            return None
        if rounding is Rounding.NEAREST_EVEN:
            loop = self._kernels[dtype]
            return loop.addressed if isinstance(loop, cpu_kernels.FloatLoop) else None
        parameters = self.parameters(dtype, rounding)
        return cpu_kernels.in_mode(parameters, dtype, draws=rounding is Rounding.STOCHASTIC)

    def parameters(
        self, dtype: torch.dtype, rounding: Rounding = Rounding.NEAREST_EVEN, overflow: Overflow | None = None
    ) -> FloatParameters:
        """The format, a mode and an overflow policy as the data that kernels read, for tensors of ``dtype``.

        Raises:
            FormatError: the format lacks this overflow policy.
        """
        return _parameters(self, dtype, rounding, None if overflow is None else self._checked(overflow))

    def _policy(self, overflow: Overflow | None) -> Overflow:
        return self.overflow_policy if overflow is None else self._checked(overflow)

    def _round_plain(
        self, source: torch.Tensor, target: torch.Tensor, rounding: Rounding, overflow: Overflow | None, random: Random
    ) -> None:
        # Without random bits no result depends on an element's position, so the loops take memory in any order.
        if not self.signed:
            source = torch.clamp(source, min=0.0, out=target).abs_()  # of -0; NaN stays
        if rounding is Rounding.NEAREST_EVEN and overflow is None:
            self._kernels[source.dtype](source, target)
            return
        parameters = self.parameters(source.dtype, rounding, overflow)
        check_random(rounding, random, source)
        cpu_kernels.round_by_mode(source, target, parameters, random)

    def _round_memory(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        self._round_plain(source, target, options.rounding, options.policy, options.random)

    def _round_on_device(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        if self.native and source.dtype == self.carrier and options.rounding is Rounding.NEAREST_EVEN:
            _pass_on(source, target)
            return
        kernel, data = self._launch(source, options)
        gpu.run_each(kernel, source, target, options.random, data)

    def round_list_on_device(
        self, tensors: Sequence[torch.Tensor], rounding: Rounding, randoms: Sequence[RandomBits | None]
    ) -> None:
        """Rounds tensors in place, by one launch.

        Args:
            tensors: tensors of one dtype, on one device that has kernels; each contiguous and not empty.
            rounding: the mode.
            randoms: the random bits of stochastic rounding, for each tensor; None for the other modes.
        """
        check_roundable(tensors[0], self)
        options = RoundingOptions(rounding, self.overflow_policy, randoms[0])
        if self._kernel_is_right(tensors[0], options, "listed", self._round_copy_in_list):
            self._run_list(tensors, options, randoms)
        else:
            for x, random in zip(tensors, randoms, strict=True):
                self._round_on_cpu(x, x, options._replace(random=random))

    def _run_list(
        self, tensors: Sequence[torch.Tensor], options: RoundingOptions, randoms: Sequence[RandomBits | None]
    ) -> None:
        kernel, data = self._launch(tensors[0], options, listed=True)
        gpu.run_many(kernel, tensors, randoms, data)

    def _round_copy_in_list(self, source: torch.Tensor, target: torch.Tensor, options: RoundingOptions) -> None:
        """Rounds as :meth:`_round_on_device` does, by the kernel for lists, so that it can be tested."""
        target.copy_(source)
        bits = options.random if isinstance(options.random, RandomBits) else None
        self._run_list([target.new_ones(70), target], options, [bits, bits])  # In a list of several tensors.

    def _launch(
        self, like: torch.Tensor, options: RoundingOptions, *, listed: bool = False
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Returns the kernel that rounds such tensors, and its arguments from the format; made once."""
        key = (like.dtype, like.device, options.rounding, options.policy, type(options.random), listed)
        if key not in self._launches:
            parameters = self.parameters(like.dtype, options.rounding, options.policy)
            self._launches[key] = gpu.float_kernel(
                parameters, like.dtype, like.device, options, signed=self.signed, listed=listed
            )
        return self._launches[key]

    @cached_property
    def _launches(self) -> dict[Any, tuple[Any, tuple[torch.Tensor, ...]]]:
        """Kernels and data for devices."""
        return {}

    def edges(self) -> list[float]:
        """See :meth:`.Format.edges`."""
        small, normal, largest = self.smallest, self.smallest_normal, self.max
        step = math.ldexp(self.eps, self.emax)  # The distance of the largest numbers.
        return [
            *around_one(self.eps),
            *(small, 2 * small, 3 * small, normal - small, normal, normal + small, normal * (1 + self.eps)),
            *(largest, largest - step, largest / 2, math.sqrt(largest), math.sqrt(small), math.sqrt(normal)),
        ]

    def _encoded(self, x: torch.Tensor, options: RoundingOptions) -> torch.Tensor:
        """Sign bit first, every NaN with one code: uint8, uint16 or uint32, the smallest that do, or int64."""
        check_roundable(x, self)
        return float_codes.encode(self, self.rounded(x, options.rounding, options.policy, options.random))

    def _decoded(self, codes: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        # Policies do not change codes, and the names of torch's types contain none.
        codes = integer_codes(self, codes, self.bits, str(replace(self, overflow=None, flush=None)))
        if dtype is None:
            dtype = torch.float32 if self.fits_in(torch.float32) else torch.float64
        if dtype not in STORED_BITS or not self.fits_in(dtype):
            raise FormatError(f"{self} does not fit in {dtype}; leave out dtype, or choose torch.float64")
        return float_codes.decode(self, codes, dtype)

    def _values(self) -> torch.Tensor:
        numbers = self.decode(torch.arange(1 << self.bits), torch.float64)
        ordered = (numbers[numbers.isfinite()] + 0.0).sort().values  # -0 becomes 0.
        return ordered[torch.cat([torch.tensor([True]), ordered.diff() != 0])]  # Zero may have several codes.


def _pass_on(source: torch.Tensor, target: torch.Tensor) -> None:
    """Rounds numbers of a carrier to the carrier itself, which changes none."""
    if target is not source:
        target.copy_(source)


_parameter_cache: dict[tuple[object, ...], FloatParameters] = {}


def _parameters(fmt: FloatFormat, dtype: torch.dtype, rounding: Rounding, overflow: Overflow | None) -> FloatParameters:
    """Returns the parameters of a format, made once for each."""
    key = (fmt, dtype, rounding, overflow)
    if key not in _parameter_cache:
        _parameter_cache[key] = FloatParameters.of(fmt, dtype, rounding, overflow)
    return _parameter_cache[key]


FP32 = FloatFormat(8, 23)
FP64 = FloatFormat(11, 52)


def _from_widths(match: re.Match[str]) -> dict[str, Any]:
    return {
        "exponent_bits": int(match[1]),
        "significand_bits": int(match[2]),
        "bias": None if match[3] is None else int(match[3]),
        "specials": Specials(match[4] or Specials.IEEE),
    }


def _from_p3109(match: re.Match[str]) -> dict[str, Any]:
    """Reads a name of IEEE P3109, binaryKpP: K bits with precision P; a finite domain has the specials of fnuz."""
    width, precision, domain = int(match[1]), int(match[2]), match[3] or "se"
    signed = domain[0] == "s"
    if not 1 <= precision <= width - signed:
        most = "K - 1" if signed else "K"
        raise FormatError(f"binaryKpP has a precision P from 1 to {most}, got K = {width} and P = {precision}")
    return {
        "exponent_bits": width - precision + (not signed),
        "significand_bits": precision - 1,
        "specials": Specials.FNUZ if domain[1] == "f" else Specials.P3109,
        "signed": signed,
    }


_FP16, _BF16 = FloatFormat(5, 10), FloatFormat(8, 7)
_E4M3FN, _E5M2 = FloatFormat(4, 3, Specials.FN), FloatFormat(5, 2)
_E2M3, _E3M2 = FloatFormat(2, 3, Specials.FINITE), FloatFormat(3, 2, Specials.FINITE)
_E2M1 = FloatFormat(2, 1, Specials.FINITE)

register(
    FloatFormat,
    beginnings=[
        Beginning("eXmY", r"e(\d{1,3})m(\d{1,3})(?:b(-?\d{1,5}))?(fnuz|fn)?", _from_widths),
        Beginning("binaryKpP", r"binary(\d{1,2})p(\d{1,2})([su][ef])?", _from_p3109),
    ],
    suffixes=[
        Suffix("_finite, _p3109", "specials", "(finite|p3109)", Specials),
        Suffix("_nosub", "subnormals", "(nosub)", lambda _: False),
        Suffix("_ftz, _daz", "flush", "(ftz|daz)", Flush),
        Suffix("_unsigned", "signed", "(unsigned)", lambda _: False),
        overflow_suffix("infinity", "saturate", "nan", "propagate", "wrap"),
    ],
    aliases={
        "fp64": FP64,
        "float64": FP64,
        "binary64": FP64,
        "fp32": FP32,
        "float32": FP32,
        "binary32": FP32,
        "tf32": FloatFormat(8, 10),
        "fp24": FloatFormat(7, 16),  # 1 sign, 7 exponent and 16 significand bits, as in graphics processors of 2002
        "fp16": _FP16,
        "float16": _FP16,
        "binary16": _FP16,
        "half": _FP16,
        "bf16": _BF16,
        "bfloat16": _BF16,
        # ml_dtypes and ONNX.
        "float8_e3m4": FloatFormat(3, 4),
        "float8_e4m3": FloatFormat(4, 3),
        "float8_e4m3fn": _E4M3FN,
        "float8_e4m3fnuz": FloatFormat(4, 3, Specials.FNUZ),
        "float8_e4m3b11fnuz": FloatFormat(4, 3, Specials.FNUZ, bias=11),
        "float8_e5m2": _E5M2,
        "float8_e5m2fnuz": FloatFormat(5, 2, Specials.FNUZ),
        "float6_e2m3fn": _E2M3,
        "float6_e3m2fn": _E3M2,
        "float4_e2m1fn": _E2M1,
        # OCP OFP8 and MX; their FP6 and FP4 are finite, and their E4M3 is the one with NaN and no infinity.
        "fp8_e4m3": _E4M3FN,
        "fp8_e4m3fn": _E4M3FN,
        "fp8_e5m2": _E5M2,
        "fp6_e2m3": _E2M3,
        "fp6_e3m2": _E3M2,
        "fp4_e2m1": _E2M1,
    },
    called="float",
    shown=["fp64", "fp32", "tf32", "bf16", "fp16", *(f"e5m{m}" for m in range(9, -1, -1)), "e4m3", "fp8_e4m3"],
    verified=[
        *("fp16", "bf16", "tf32", "fp24", "e5m9", "e5m4", "fp8_e4m3", "fp8_e5m2", "float8_e3m4", "float8_e4m3fnuz"),
        *("float8_e5m2fnuz", "float8_e4m3b11fnuz", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1", "binary8p3", "binary8p4"),
        *("e8m23_nosub", "e11m10"),
    ],
)
