"""Hypothesis strategies: number formats, and tensors of their values with the edges more often than chance has them."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from ...formats import FloatFormat, Format, FormatError, Overflow, round
from ...formats.arithmetic.float_layout import Specials
from ...formats.base.names import FAMILIES
from .edge_values import edge_values

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise FormatError(
        "the strategies of roundoff.testing need the package hypothesis, which is not installed: pip install hypothesis"
    ) from error
from collections.abc import Callable, Mapping, Sequence

from hypothesis.strategies import DrawFn, SearchStrategy

# Larger tensors repeat this many numbers in a drawn order: drawing each by itself would take Hypothesis seconds.
_MOST_DRAWN = 64

# Half of the numbers that are no edges are drawn from this size down, where most programs live.
_MODERATE = 16.0


def formats(
    *,
    families: Sequence[str] = ("float",),
    exponent_bits: tuple[int, int] = (2, 8),
    significand_bits: tuple[int, int] = (1, 10),
    variants: bool = False,
) -> SearchStrategy[Format]:
    """Number formats; by default the formats that can simulate a float32 program.

    Args:
        families: ``float``, ``fixed``, ``integer``, ``posit``, ``lns``, ``block``, ``mx``, ``nvfp4``, ``scaled``,
            and the ones that are registered with a strategy; see :func:`roundoff.register`.
        exponent_bits: least and most, of floats: 1 to 11.
        significand_bits: least and most stored significand bits, of floats: 0 to 52. Of the other families, formats
            are drawn from 3 to 16 bits whatever these bounds.
        variants: floats with other special values, biases, overflow policies and without subnormals as well.

    Returns:
        A strategy, which shrinks towards few bits and IEEE's rules.

    Raises:
        FormatError: the family does not exist, or lacks a format within the bounds.
    """
    strategies = {"float": (_any_floats if variants else _ieee_floats)(exponent_bits, significand_bits)}
    strategies |= {f.called: _from_fields(f.kind, f.drawn) for f in FAMILIES.values() if f.drawn}
    if not families or not strategies.keys() >= set(families):
        raise FormatError(f"families must be some of {', '.join(strategies)}, got {list(families)!r}")
    # The bounds of `FloatFormat` itself; Hypothesis would only find out while it draws.
    for name, bounds, most in (("exponent_bits", exponent_bits, 11), ("significand_bits", significand_bits, 52)):
        least = 1 if name == "exponent_bits" else 0
        if not least <= bounds[0] <= bounds[1] <= most:
            raise FormatError(f"{name} must be (least, most) between {least} and {most}, got {bounds!r}")
    if exponent_bits[1] == 1 and (not variants or significand_bits[1] == 0):
        raise FormatError("a float format with 1 exponent bit needs variants=True and a significand bit")
    return st.one_of([strategies[name] for name in families])


def tensors(
    fmt: Format | str,
    shape: int | Sequence[int] | SearchStrategy[tuple[int, ...]] | None = None,
    *,
    finite: bool = True,
    min_value: float = -math.inf,
    max_value: float = math.inf,
) -> SearchStrategy[torch.Tensor]:
    """Tensors of values of a format, with :func:`edge_values` among them more often than by chance.

    Args:
        fmt: a format or its name.
        shape: tensor shape: a length, a shape, or a strategy of shapes; None for one dimension of up to 20. Tensors of
            more than 64 elements repeat 64 values in a drawn order.
        finite: False: also infinities and NaN, where the format has them.
        min_value: smallest finite element; where numbers share a scale, before they are rounded together.
        max_value: largest finite element, before it is rounded in the same way.

    Returns:
        A strategy of dense tensors in the format's carrier, float32 or float64, that need no gradient.

    Raises:
        FormatError: the format does not exist, or lacks a value between the two.
    """
    fmt = Format.parse(fmt)
    edges = edge_values(fmt, finite=finite).tolist()
    # Sorted, so that shrinking goes towards zero
    numbers = sorted(
        (x for x in edges if math.isfinite(x) and min_value <= x <= max_value), key=lambda x: (abs(x), x < 0)
    )
    if not numbers:
        raise FormatError(f"no edge value of {fmt} is from {min_value} to {max_value}; widen these bounds")
    specials = [x for x in edges if not math.isfinite(x)]
    element = st.one_of(
        st.sampled_from(numbers),
        _values_between(fmt, min_value, max_value),
        st.sampled_from(specials) if specials else st.nothing(),
    )
    if shape is None:
        shapes: SearchStrategy[tuple[int, ...]] = st.tuples(st.integers(0, 20))
    elif isinstance(shape, int):
        shapes = st.just((shape,))
    elif isinstance(shape, st.SearchStrategy):
        shapes = shape
    else:
        shapes = st.just(tuple(shape))
    return _tensor_of(fmt, shapes, element)


@st.composite
def _tensor_of(
    draw: DrawFn, fmt: Format, shapes: SearchStrategy[tuple[int, ...]], element: SearchStrategy[float]
) -> torch.Tensor:
    shape = draw(shapes)
    count = math.prod(shape)
    few = min(count, _MOST_DRAWN)
    values = torch.tensor(draw(st.lists(element, min_size=few, max_size=few)), dtype=fmt.carrier)
    if count > few:
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
        values = values[torch.randint(few, (count,), generator=generator)]
    return round(values.reshape(shape), fmt)  # numbers that share a scale are of the format only together


def _values_between(fmt: Format, low: float, high: float) -> SearchStrategy[float]:
    """Numbers of the format from ``low`` to ``high``, of moderate size and of any."""
    largest = min(math.inf if fmt.max is None else fmt.max, torch.finfo(fmt.carrier).max)
    width: Literal[32, 64] = 32 if fmt.carrier is torch.float32 else 64

    def between(least: float, most: float) -> SearchStrategy[float]:
        ends = torch.tensor([max(least, low), min(most, high)], dtype=fmt.carrier).tolist()
        return st.floats(*ends, width=width) if ends[0] <= ends[1] else st.nothing()

    def rounded(x: float) -> float:
        return round(torch.tensor([x], dtype=fmt.carrier), fmt).item()

    moderate = min(_MODERATE, largest)
    drawn = st.one_of(between(-moderate, moderate), between(-largest, largest))
    return drawn.map(rounded).filter(lambda x: math.isfinite(x) and low <= x <= high)


@st.composite
def _ieee_floats(draw: DrawFn, exponent_bits: tuple[int, int], significand_bits: tuple[int, int]) -> Format:
    least, most = exponent_bits
    return FloatFormat(draw(st.integers(max(least, 2), most)), draw(st.integers(*significand_bits)))


@st.composite
def _any_floats(draw: DrawFn, exponent_bits: tuple[int, int], significand_bits: tuple[int, int]) -> Format:
    least, most = exponent_bits
    exponent = draw(st.integers(least, most))
    least_significand = max(significand_bits[0], 1) if exponent == 1 else significand_bits[0]
    significand = draw(st.integers(least_significand, significand_bits[1]))
    specials = draw(st.sampled_from([Specials.IEEE, *Specials] if exponent > 1 else [Specials.FN, *_WITHOUT_IEEE]))
    usual = 1 << (exponent - 1)  # near IEEE's bias, which is less by 1
    bias = draw(st.one_of(st.none(), st.integers(usual - 8, usual + 8)))
    subnormals = draw(st.sampled_from([True, False]))
    overflow = draw(st.sampled_from([None, Overflow.SATURATE, Overflow.NAN, Overflow.INFINITY]))
    try:
        return FloatFormat(exponent, significand, specials, bias, subnormals, overflow)
    except FormatError:  # it cannot overflow so, or leaves the range of float64
        return FloatFormat(min(exponent, 10), significand, specials, None, subnormals)


def _from_fields(kind: Callable[..., Format], fields: Mapping[str, Sequence[Any]]) -> SearchStrategy[Format]:
    """Formats of a class with fields drawn from these, as far as it accepts them together."""

    def attempt(values: dict[str, Any]) -> Format | None:
        try:
            return kind(**values)
        except FormatError:
            return None

    drawn = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in fields.items()})
    return drawn.map(attempt).filter(lambda fmt: fmt is not None)  # type: ignore[return-value]


_WITHOUT_IEEE = [specials for specials in Specials if specials is not Specials.IEEE]
