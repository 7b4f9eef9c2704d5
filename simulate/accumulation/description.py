"""Describe an accumulator, the format and order of additions in contractions and sums; parse and print it."""

from __future__ import annotations

from dataclasses import dataclass

from ...formats import FixedFormat, FloatFormat, Format, FormatError, Overflow
from ...formats.families.floats import FP64

QUIRE = "quire"
"""The name of the accumulator that rounds nothing. ``exact`` refers to operations that a simulation does not round."""

AccumulatorFormat = FloatFormat | FixedFormat

# Rounding to odd in float64 needs two bits more than the format has.
_LARGEST_M = 50


@dataclass(frozen=True)
class Accumulation:
    """The arithmetic used by contractions (matrix products, convolutions) and sums to add up.

    With a_k b_k the products of one output element, k ascending, and acc = +0 at first,

        every = 1, product None    acc <- round(acc + a_k b_k)            a fused multiply-add: rounded once
        every = 1                  acc <- round(acc + product(a_k b_k))
        every = L                  acc <- round(acc + sum of the next L products)

    Within a block of L > 1 the sum is taken in the carrier or wider, in no specified order; the last block may be
    shorter. A sum adds its elements as if they were exact products. Other summands (bias, ``beta *
    input``) are added after the contraction, by one addition rounded to ``format``; scaling by ``alpha`` and ``beta``,
    and a mean's division, are done in the carrier before and after. Zeros that pad a convolution's input, and those
    that a transposed convolution puts between elements, are summands like any others.

    Rounding is to nearest-even, in whatever mode results are rounded: once, of the exact sum, with the format's own
    overflow and underflow. NaN and infinities go their usual way, and -0 comes only from what rounds to it.

    In fixed point (``q6.6``) each sum saturates, or wraps around (``q6.6_wrap``): that is exact for sums below
    2^(50 - f) with f fraction bits, and an infinity that would wrap becomes NaN. There is no -0.

    ``"quire"`` is an accumulator as wide as it takes, for any format (Kulisch's; named after the quire of posits, Posit
    Standard 2022, section 5.11): the exact sum of exact products is rounded once, to the format and in the mode of the
    operation's results.
    Other summands of an operation are part of the sum, unless there is an ``alpha``: then, and in a mean, the exact sum
    is rounded to the carrier, scaled there, and rounded to the format. An exact zero is +0. It takes some 10 ns for
    each product, on the CPU, where tensors of other devices are copied to.

    Args:
        format: Format of the accumulator: a float format of at most 50 significand bits, fp64, or fixed point of at
            most 50 integer and fraction bits; or its name. Or ``"quire"``, which takes nothing else.
        every: the block length L, at least 1.
        product: each product is rounded to this format first, float or fixed point like ``format``; None: exact.
        compensated: Kahan's summation for each output element, its four additions rounded to ``format`` each: y =
            x - c, t = sum + y, c = (t - sum) - y, sum = t, with x the product (or block); y is fused where a product
            is exact. Once the sum is infinite it becomes NaN, as c = infinity - infinity does.

    Raises:
        FormatError: no such format, neither a float format nor fixed point, one too wide, formats of two kinds, or
            ``every`` is not a positive integer.
    """

    format: AccumulatorFormat | str
    every: int = 1
    product: AccumulatorFormat | str | None = None
    compensated: bool = False

    def __post_init__(self) -> None:
        if self.format == "exact":
            raise FormatError("the accumulator that rounds nothing is called quire, got 'exact'")
        if self.format == QUIRE:
            if (self.every, self.product, self.compensated) != (1, None, False):
                raise FormatError("a quire has neither blocks nor rounded products nor compensation")
            return
        object.__setattr__(self, "format", _parse_format("format", self.format))
        if self.product is not None:
            object.__setattr__(self, "product", _parse_format("product", self.product))
            if type(self.product) is not type(self.format):
                raise FormatError(
                    "products and sums of an accumulation must both be floats or both be fixed point, got"
                    f" {self.product} and {self.format}"
                )
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise FormatError(
                f"every (the block length) of an accumulation must be an integer of at least 1, got {self.every!r};"
                " 1 rounds after every product"
            )
        if not isinstance(self.compensated, bool):
            raise FormatError(f"compensated of an accumulation must be True or False, got {self.compensated!r}")

    @property
    def is_exact(self) -> bool:
        """Whether nothing is rounded but results."""
        return self.format == QUIRE

    def __str__(self) -> str:
        """The canonical text, such as ``e5m10``, ``e5m10/32``, ``e5m10*e4m3`` (format*product), ``e8m23+kahan``.

        The accumulator that rounds nothing is ``quire``.
        """
        product = "" if self.product is None else f"*{self.product}"
        every = "" if self.every == 1 else f"/{self.every}"
        return f"{self.format}{product}{every}{'+kahan' if self.compensated else ''}"

    @staticmethod
    def parse(text: Accumulation | str) -> Accumulation:
        """The accumulation that ``text`` describes; ``Accumulation.parse(str(how)) == how``.

        Args:
            text: ``FORMAT[*PRODUCT][/L][+kahan]``, or ``quire``; or an accumulation, returned as it is.

        Raises:
            FormatError: the text does not describe one.
        """
        if isinstance(text, Accumulation):
            return text
        if not isinstance(text, str):
            raise FormatError(f"an accumulation is text like 'e5m10/32', got {text!r}")
        rest, plus, last = text.partition("+")
        rest, slash, every = rest.partition("/")
        name, star, product = rest.partition("*")
        digits = every if slash else "1"
        if (plus and last != "kahan") or not (digits.isascii() and digits.isdigit()):
            raise FormatError(
                f"an accumulation is FORMAT[*PRODUCT][/L][+kahan], such as 'e5m10', 'e5m10*e5m10' or 'e5m10/32+kahan',"
                f" or quire; got {text!r}"
            )
        return Accumulation(name, int(digits), product if star else None, bool(plus))


def _parse_format(place: str, value: AccumulatorFormat | str) -> AccumulatorFormat:
    fmt = Format.parse(value)
    if isinstance(fmt, FixedFormat):
        if fmt.integer_bits + fmt.fraction_bits > _LARGEST_M:
            raise FormatError(
                f"{place} of an accumulation must have at most {_LARGEST_M} integer and fraction bits, got {fmt}"
            )
        return fmt
    if not isinstance(fmt, FloatFormat):
        raise FormatError(
            f"{place} of an accumulation must be a float format such as e5m10 or fp32, or fixed point such as q8.8,"
            f" got {fmt}"
        )
    if fmt.significand_bits > _LARGEST_M and fmt != FP64:
        raise FormatError(
            f"{place} of an accumulation must have at most {_LARGEST_M} significand bits, or be fp64; got {fmt}"
        )
    if not fmt.signed or fmt.overflow_policy is Overflow.PROPAGATE:
        raise FormatError(f"{place} of an accumulation must have a sign, and overflow as infinities do; got {fmt}")
    return fmt
