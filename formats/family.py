"""What the families other than floats share: numbers as integers and back, codes, and checks of what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from roundoff.formats.errors import FormatError
from roundoff.formats.modes import Overflow, RandomBits
from roundoff.formats.random_words import check_given, random_words
from roundoff.formats.rounding import check_choices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roundoff.formats.format import Format
    from roundoff.formats.modes import Rounding

_STORED = 52  # significand bits of float64
_BIAS = 1023


def significand_and_exponent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The magnitudes of finite numbers as integers: |x| = significand 2^exponent.

    Args:
        x: float32 or float64, any shape and device. Infinity and NaN give an exponent of 972 or more.

    Returns:
        Two int64 tensors: significand in [0, 2^53), exponent from -1074 to 972.
    """
    bits = x.to(torch.float64).view(torch.int64)
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


def check_encodable(fmt: Format, x: torch.Tensor) -> None:
    """Raises FormatError if ``x`` holds a NaN, for formats that have none."""
    if bool(x.isnan().any()):
        raise FormatError(
            f"{fmt} has no NaN, and the tensor to encode holds one; replace it first, see torch.nan_to_num"
        )
