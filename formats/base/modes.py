"""Rounding modes and overflow modes of every format family, and the source of random bits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import torch

from roundoff.errors import nearest

from .errors import FormatError

WORD_BITS = 32
"""Width of a random word; also the precision of the probabilities of stochastic rounding."""


_SYNONYMS = {
    "nearest-even": "even half-even ties-even ties-to-even bankers rne rte rn",  # half-even: Python's decimal
    "nearest-away": "away half-away ties-away ties-to-away rna",
    "nearest-away or nearest-up": "half-up",  # decimal's, and hardware's
    "nearest-up": "ties-up ties-to-positive rnu",
    "toward-zero": "zero truncate truncation trunc chop rtz rz",  # rtz, rup, rdn, rne: RISC-V
    "up": "ceil ceiling upward ru rup rtp",
    "down": "floor downward rd rdn rtn",
    "to-odd": "odd rto",
    "stochastic": "random probabilistic sr",
    "saturate": "clip clamp sat",
    "wrap": "modulo modular",
    "": "half-down half-zero",  # no mode does this
}
_NAME_BY_SYNONYM = {word: name or "none" for name, words in _SYNONYMS.items() for word in words.split()}
"""The name of the mode or policy that a word from other libraries and standards means."""


class _Choice(StrEnum):
    """An enumeration that reads its members from text and suggests the nearest one for a misspelt name."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the member with this text; underscores and capitals are accepted.

        Raises:
            FormatError: no member has this text; the message lists all and suggests the nearest.
        """
        if isinstance(text, cls):  # A member is also text, so this comes first.
            return text
        names = [str(member) for member in cls]
        name = str(text).strip().lower().replace("_", "-")
        if name in names:
            return cls(name)
        suggestion = _NAME_BY_SYNONYM.get(name.removeprefix("round-")) or nearest(name, names)  # As in round-half-up.
        # A synonym may belong to the other enumeration: no hint then.
        hint = f"; did you mean {suggestion!r}?" if suggestion and suggestion.split()[0] in names else ""
        raise FormatError(f"unknown {cls.__name__.lower()} {text!r}: allowed are {', '.join(names)}{hint}")


class Rounding(_Choice):
    """The rule that chooses one of two neighbouring numbers of a format for a value between them."""

    NEAREST_EVEN = "nearest-even"
    """The nearer; a tie goes to the one whose code is even (IEEE 754 roundTiesToEven, the default). Two exceptions:
    ties of affine integers go to the even multiple of the scale, whose code is odd if the zero point is; and half of
    the smallest normal number, where there are no subnormal ones, goes to zero: both codes are even."""
    NEAREST_AWAY = "nearest-away"
    """The nearer; a tie goes away from zero (IEEE 754 roundTiesToAway)."""
    NEAREST_UP = "nearest-up"
    """The nearer; a tie goes to the larger one, toward plus infinity: half is added, and the rest cut (hardware's round
    half up)."""
    TOWARD_ZERO = "toward-zero"
    """The neighbour of smaller magnitude."""
    UP = "up"
    """The larger, toward plus infinity."""
    DOWN = "down"
    """The smaller, toward minus infinity."""
    TO_ODD = "to-odd"
    """The one whose code is odd, so that rounding again to a format two bits narrower is exact (Boldo, Melquiond)."""
    STOCHASTIC = "stochastic"
    """The upper one with the probability that makes the expectation exact."""


class Overflow(_Choice):
    """The policy for values that round beyond the largest number."""

    INFINITY = "infinity"
    SATURATE = "saturate"
    """The largest number, of an infinity too (SatFinite of IEEE P3109)."""
    NAN = "nan"
    WRAP = "wrap"
    """Integers and fixed point: the code modulo 2^bits."""
    PROPAGATE = "propagate"
    """The largest number; but an infinity stays one (SatPropagate of IEEE P3109)."""


@dataclass(frozen=True)
class RandomBits:
    """The random bits of one stochastic rounding: a hash of (seed, step, element index), no hidden state.

    The element index is the position in the tensor's logical (row-major) order, so that the results are the same on
    every device, for any thread count and any strides, eager or compiled.

    Args:
        seed: any integer; its lowest 64 bits count.
        step: counts the roundings made with one seed; its lowest 64 bits count.
        bits: the number of random bits of an element, 1 to 32. The probability of rounding up is the dropped fraction
            rounded to the nearest multiple of 2^-bits; 32 bits are exact up to 32 dropped bits, and cut the rest.

    Raises:
        FormatError: ``bits`` is out of range, or an argument is not an integer.
    """

    seed: int
    step: int = 0
    bits: int = WORD_BITS

    def __post_init__(self) -> None:
        for name in ("seed", "step", "bits"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise FormatError(f"{name} of RandomBits must be an integer, got {value!r}")
        if not 1 <= self.bits <= WORD_BITS:
            raise FormatError(f"bits of RandomBits must be from 1 to {WORD_BITS}, got {self.bits}")


Random = RandomBits | torch.Tensor | None
"""The source of a rounding's random bits: a hash, or the caller's integers; None if the rounding is not stochastic."""


def seeded(random: Random, seed: int | None) -> Random:
    """Returns the source of random bits: ``random``, or one made of the seed; None if both are None.

    Raises:
        FormatError: neither is None.
    """
    if seed is None:
        return random
    if random is not None:
        raise FormatError("give seed or random, not both")
    return RandomBits(seed)


NEAREST = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY, Rounding.NEAREST_UP)
"""The modes that choose the nearer number, and differ in ties."""


class RoundingOptions(NamedTuple):
    """The settings of a rounding, checked and with defaults resolved, as passed to a family's hooks and the loops."""

    rounding: Rounding
    policy: Overflow
    random: Random = None


def check_choices(
    rounding: Rounding | str, overflow: Overflow | str | None, random: Random
) -> tuple[Rounding, Overflow | None]:
    """Parses the names of a mode and a policy, and checks that the mode and the random bits suit each other.

    Raises:
        FormatError: a name does not exist; random bits are missing for stochastic rounding, or given to another mode;
            they are neither a RandomBits nor a tensor.
    """
    if not isinstance(rounding, Rounding):
        rounding = Rounding.parse(rounding)
    if (rounding is Rounding.STOCHASTIC) != (random is not None):  # Without bits, or with bits that nothing uses.
        raise FormatError(
            "stochastic rounding needs random bits: pass random=RandomBits(seed, step)"
            if random is None
            else f"random bits are for rounding='stochastic' only, got rounding={str(rounding)!r}"
        )
    if random is not None and not isinstance(random, (RandomBits, torch.Tensor)):
        raise FormatError(f"random must be RandomBits(seed, step, bits) or an integer tensor, got {random!r}")
    if overflow is not None and not isinstance(overflow, Overflow):
        overflow = Overflow.parse(overflow)
    return rounding, overflow
