"""What the families share: how a rounding finds its way, numbers as integers and back, codes, and checks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from .errors import FormatError
from .format import Format, check_numbers
from .layouts import in_place_of, is_dense
from .memory import in_memory, is_virtual, settled
from .modes import Overflow, RandomBits, Rounding, check_choices
from .operator import as_operator
from .random_words import check_given, random_words

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORED = 52  # significand bits of float64
_BIAS = 1023
_SIGN = -(1 << 63)
_INFINITY = 0x7FF << _STORED


class Family(Format):
    """A format that has compiled loops for the CPU's memory, and tensor operations of the same bits for elsewhere."""

    @property
    def native(self) -> bool:
        """No: rounding changes numbers of every carrier."""
        return False

    def rounded(
        self,
        x: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :meth:`.Format.rounded`."""
        if not _lie_in_memory(x, random):
            if torch.compiler.is_compiling() or is_virtual(x) or _is_virtual(random):
                return self._rounded_elsewhere(x, rounding, overflow, random)
            return super().rounded(x, rounding, overflow, random)
        if is_dense(x):
            result = torch.empty_like(x)
            self._round_plain(x, result, rounding, overflow, random)
            return result
        x = x.clone(memory_format=torch.preserve_format)
        self._round_plain(x, x, rounding, overflow, random)
        return x

    def round_into(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding = Rounding.NEAREST_EVEN,
        overflow: Overflow | None = None,
        random: RandomBits | torch.Tensor | None = None,
    ) -> None:
        """See :func:`roundoff.formats.round`, and the class for NaN, infinity and -0."""
        given = isinstance(random, torch.Tensor) and not in_memory(random)
        if in_memory(source) and (target is source or in_memory(target)) and not given:
            self._round_plain(source, target, rounding, overflow, random)
        else:
            target.copy_(self._rounded_elsewhere(source, rounding, overflow, random))

    def _round_plain(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        rounding: Rounding,
        overflow: Overflow | None,
        random: RandomBits | torch.Tensor | None,
    ) -> None:
        """:meth:`round_into` for tensors in the CPU's memory."""
        policy = self._policy(overflow)
        self._check_shape(source)
        check_random(rounding, random, source)
        if source.numel():
            in_place_of(
                lambda x, y: self._round_memory(x, y, policy, rounding, random),
                source,
                target,
                in_order=random is not None or self._in_order,
            )

    def _rounded_elsewhere(
        self,
        source: torch.Tensor,
        rounding: Rounding,
        overflow: Overflow | None,
        random: RandomBits | torch.Tensor | None,
    ) -> torch.Tensor:
        policy = self._policy(overflow)
        self._check_shape(source)
        if torch.compiler.is_compiling() or is_virtual(source) or _is_virtual(random):
            return as_operator(source, self, rounding, overflow, random)
        source = settled(source)
        if _lie_in_memory(source, random):
            return self.rounded(source, rounding, overflow, random)
        words = words_for(rounding, random, source)
        return self._round_tensor(source, policy, rounding, words) if source.numel() else source.clone()

    @abstractmethod
    def _policy(self, overflow: Overflow | None) -> Overflow:
        """What to do on overflow: what is asked for, or the format's own.

        Raises:
            FormatError: the format cannot do that.
        """

    def _numbers(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers of a tensor to encode, where they can be computed with.

        Raises:
            FormatError: it is no strided tensor of float32 or float64.
        """
        check_numbers(x)
        return x.detach() if torch.compiler.is_compiling() else settled(x.detach())

    def _check_shape(self, x: torch.Tensor) -> None:
        """Raises FormatError if the format has no way to cut up a tensor of the shape of ``x``."""

    @property
    def _in_order(self) -> bool:
        """Whether :meth:`_round_memory` wants memory in row-major order, in every mode."""
        return False

    @abstractmethod
    def _round_memory(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        policy: Overflow,
        rounding: Rounding,
        random: RandomBits | torch.Tensor | None,
    ) -> None:
        """Rounds memory that is gapless, of equal strides and not empty; contiguous if there are random bits."""

    @abstractmethod
    def _round_tensor(
        self, source: torch.Tensor, policy: Overflow, rounding: Rounding, words: torch.Tensor | None
    ) -> torch.Tensor:
        """A new tensor of any device, rounded by tensor operations; ``words`` of :func:`words_for`; not empty."""


def _lie_in_memory(x: torch.Tensor, random: RandomBits | torch.Tensor | None) -> bool:
    return in_memory(x) and (not isinstance(random, torch.Tensor) or in_memory(random))


def _is_virtual(random: RandomBits | torch.Tensor | None) -> bool:
    return isinstance(random, torch.Tensor) and is_virtual(random)


def float64_bits(x: torch.Tensor) -> torch.Tensor:
    """The float64 patterns of float32 or float64 numbers, int64, exactly.

    On the CPU by integer operations: a conversion would lose subnormal numbers where the processor flushes them.
    """
    if x.dtype == torch.float64 or x.device.type != "cpu":
        return x.to(torch.float64).view(torch.int64)
    bits = x.view(torch.int32).to(torch.int64)
    magnitude = bits & 0x7FFFFFFF
    wide = (magnitude << 29) + ((_BIAS - 127) << _STORED)
    wide = torch.where(magnitude >= 0x7F800000, wide | _INFINITY, wide)
    subnormal = magnitude.to(torch.float64).view(torch.int64) - (149 << _STORED)
    wide = torch.where(magnitude < 0x800000, torch.where(magnitude == 0, 0, subnormal), wide)
    return torch.where(bits < 0, wide | _SIGN, wide)


def narrowed(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of float64 in ``dtype``, which holds them; subnormal ones too where the processor flushes them."""
    if dtype == torch.float64 or numbers.device.type != "cpu":
        return numbers.to(dtype)
    bits = numbers.view(torch.int64)
    magnitude = bits & ~_SIGN
    below_normal = magnitude < ((_BIAS - 126) << _STORED)
    quanta = torch.where(below_normal, magnitude, 0).view(torch.float64) * 2.0**149
    subnormal = (quanta.to(torch.int64) | ((bits >> 63) << 31)).to(torch.int32).view(torch.float32)
    return torch.where(below_normal, subnormal, numbers.to(torch.float32))


def significand_and_exponent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The magnitudes of finite numbers as integers: |x| = significand 2^exponent.

    Args:
        x: float32 or float64, any shape and device. Infinity and NaN give an exponent of 972 or more.

    Returns:
        Two int64 tensors: significand in [0, 2^53), exponent from -1074 to 972.
    """
    bits = float64_bits(x)
    biased = (bits >> _STORED) & 0x7FF
    fraction = bits & ((1 << _STORED) - 1)
    return fraction | ((biased > 0).to(torch.int64) << _STORED), biased.clamp(min=1) - (_BIAS + _STORED)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as float64, exactly; ``exponent`` is int64, -1022 to 1023."""
    return ((exponent + _BIAS) << _STORED).view(torch.float64)


def code_dtype(bits: int) -> torch.dtype:
    """The unsigned integer type that codes of so many bits are kept in; int64 above 32 bits."""
    sizes = ((8, torch.uint8), (16, torch.uint16), (32, torch.uint32))
    return next((dtype for most, dtype in sizes if bits <= most), torch.int64)


def check_integer(owner: str, name: str, value: object, allowed: range) -> None:
    """Raises FormatError unless ``value`` is an integer in ``allowed``."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise FormatError(f"{name} of {owner} must be an integer from {allowed[0]} to {allowed[-1]}, got {value!r}")


def overflow_policy(fmt: Format, asked: Overflow | str | None, allowed: Sequence[Overflow]) -> Overflow:
    """What to do on overflow: what was asked for, or the format's own, which comes first in ``allowed``.

    Raises:
        FormatError: the format cannot do that.
    """
    if asked is None:
        return allowed[0]
    policy = Overflow.parse(asked)
    if policy not in allowed:
        raise FormatError(
            f"overflow of {fmt} must be {' or '.join(allowed)}, got {str(policy)!r}: it has no such number"
        )
    return policy


def check_random(rounding: Rounding, random: RandomBits | torch.Tensor | None, like: torch.Tensor) -> None:
    """Raises FormatError unless ``random`` suits the mode and, if it is a tensor, the elements of ``like``."""
    check_choices(rounding, None, random)
    if random is not None and not isinstance(random, RandomBits):
        check_given(random, like)


def words_for(rounding: Rounding, random: RandomBits | torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """The random words of a stochastic rounding of ``like``; None for the other modes.

    Raises:
        FormatError: stochastic rounding without random bits, or random bits for another mode.
    """
    check_choices(rounding, None, random)
    return None if random is None else random_words(random, like)


def check_encodable(fmt: object, x: torch.Tensor) -> None:
    """Raises FormatError if ``x`` holds a NaN, for formats that have none."""
    if bool(x.isnan().any()):
        raise FormatError(
            f"{fmt} has no NaN, and the tensor to encode holds one; replace it first, see torch.nan_to_num"
        )
