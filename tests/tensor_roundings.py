"""Roundings written once more, by tensor operations: what the compiled loops and the kernels are compared with.

Nothing of roundoff runs this; it is slower than the loops and has their bits. Words of stochastic rounding are int64.
"""

from typing import NamedTuple

import torch
from torch import finfo  # noqa: F401

from roundoff.formats.arithmetic.cutting import check_axis, cut, joined
from roundoff.formats.arithmetic.elements import Element
from roundoff.formats.arithmetic.float_tensors import round_by_mode, round_nearest
from roundoff.formats.arithmetic.patterns import float64_bits, narrowed, power_of_two, significand_and_exponent
from roundoff.formats.arithmetic.tail import round_shifted, rule
from roundoff.formats.base.modes import NEAREST, Overflow, Rounding
from roundoff.formats.base.names import format_called
from roundoff.formats.base.on_device import table_on, where
from roundoff.formats.base.random_words import random_words
from roundoff.formats.cpu.numbers.tables import HIGH, TIE_HIGH, TIE_LOW
from roundoff.formats.families.fixed import FixedFormat
from roundoff.formats.families.floats import FloatFormat
from roundoff.formats.families.integer import IntegerFormat
from roundoff.formats.families.logarithmic import LogarithmicFormat, _borders, _powers
from roundoff.formats.families.nvfp4 import _ELEMENT, _SCALE, NVFP4Format, _tensor_scale
from roundoff.formats.families.posit import PositFormat
from roundoff.formats.families.power_of_two import PowerOfTwoFormat
from roundoff.formats.families.qtorch import QtorchFormat
from roundoff.formats.families.quarl import QuarlFormat
from roundoff.formats.families.scaled_float import ScaledFloatFormat
from roundoff.formats.families.table import TableFormat
from roundoff.formats.scales.shared_scale import SharedScaleFormat

_BIAS = 1023 << 52
_FIELD = 1023 - 127
_FRACTION = (1 << 52) - 1
_INFINITY = 0x7FF << 52
_LARGEST, _NAN = 254, 255
_MAGNITUDE = (1 << 63) - 1
_MOST_STEPS = 1 << 20  # more than any code
_NAN_SCALE, _SCALE_BIAS = 255, 127
_WORD = 0xFFFFFFFF


class RoundingOptions(NamedTuple):
    rounding: Rounding
    policy: Overflow
    words: torch.Tensor | None


def by_operations(fmt, x, rounding=Rounding.NEAREST_EVEN, overflow=None, random=None):
    """``x``, of any shape and strides, in a new tensor, rounded by tensor operations."""
    policy = fmt._policy(overflow)
    fmt._check_shape(x)
    words = None if random is None else random_words(random, x)
    x = x.clone()
    if not x.numel():
        return x
    family = next(family for family in _ROUNDS if isinstance(fmt, family))
    return _ROUNDS[family](fmt, x, RoundingOptions(Rounding(rounding), policy, words))


# Floats


def _float(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    parameters = fmt.parameters(source.dtype, how.rounding, how.policy)
    if not fmt.signed:
        source = where(source.signbit() & ~source.isnan(), 0.0, source)
    if how.rounding is Rounding.NEAREST_EVEN:
        return round_nearest(source, parameters)
    return round_by_mode(source, parameters, how.words)


# Fixed point


def _fixed(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    codes = _integers_of_fixed(fmt, source, how)
    lost = source.isnan() if how.policy == Overflow.SATURATE else ~source.isfinite()
    return where(lost, torch.nan, codes.to(torch.float64) * fmt.eps).to(source.dtype)


def _integers_of_fixed(fmt, x: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    """The integers k, int64; anything for NaN."""
    significand, exponent = significand_and_exponent(x)
    drop = -(exponent + fmt.fraction_bits)
    negative = x < 0
    magnitude = round_shifted(significand, drop.clamp(min=0), rule(how.rounding), negative, words=how.words)
    if how.policy == Overflow.SATURATE:
        # A significand that must be shifted up is 2^52 or more already (or zero): beyond either end.
        low, high = fmt._codes
        k = where(negative, -magnitude, magnitude).clamp(low, high)
        return where((drop < 0) & (significand > 0), where(negative, low, high), k)
    up = (-drop).clamp(min=0)
    magnitude = where(up < 64, magnitude << up.clamp(max=63), 0)  # modulo 2^64, a multiple of 2^bits
    k = where(negative, -magnitude, magnitude) & ((1 << fmt.bits) - 1)
    return where(k > fmt._codes[1], k - (1 << fmt.bits), k)


# Integers


def _integer(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    pieces, scale, zero = fmt._in_pieces(source, *fmt._parameters(source))
    codes = _integer_codes(fmt, pieces, scale, zero, how)
    return fmt._joined((codes - zero) * scale, source)


def _integer_codes(fmt, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    """The codes of pieces as floats; NaN where ``x`` or the scale is."""
    if how.rounding == Rounding.NEAREST_EVEN:
        whole = (x * (1 / scale)).round()
    else:
        words = None if how.words is None else fmt._in_pieces(how.words)[0]
        whole = _whole_steps(x, scale, zero, how.rounding, words)
    # -0 must become +0; adding 0 does so, but torch.compile drops it where it knows the zero point.
    return where(whole == 0, zero, whole + zero).clamp(fmt.code_min, fmt.code_max)


def _whole_steps(
    x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, rounding: Rounding, words: torch.Tensor | None
) -> torch.Tensor:
    """Returns the whole steps that tensors stand for, as ``tail.between_steps32`` does; NaN stays."""
    magnitude = x.abs()
    k = (magnitude * (1 / scale)).floor().clamp(max=_MOST_STEPS)
    k = where(k * scale > magnitude, k - 1, k)
    k = where((k + 1) * scale <= magnitude, k + 1, k)
    lower = k * scale
    rest, step = magnitude - lower, (k + 1) * scale - lower
    part = rest.to(torch.float64) / step.to(torch.float64)
    # One bit below the fraction says that it is not zero, however small. NaN must not become an integer.
    fraction = where(part < 1, part * 2.0**32, 0.0).to(torch.int64)
    significand = (fraction << 1) | ((rest > 0) & (rest + rest != step)).to(torch.int64)
    odd = where(k.isnan(), 0.0, k + zero).to(torch.int64) & 1
    up = round_shifted(significand, 33, rule(rounding), x < 0, odd=odd, words=words)
    k = k + up.to(k.dtype)
    return where(x.signbit(), -k, k)


# Logarithmic numbers


def _logarithmic(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    k = _logarithms(fmt, source, how)
    result = where(k == fmt._zero, 0.0, torch.copysign(fmt._powers_of(k, source.dtype), source))
    return where(source.isnan(), torch.nan, result)


def _logarithms(fmt, x: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    """K of |x| rounded; the lowest one for zero, anything for NaN."""
    bits = float64_bits(x) & ((1 << 63) - 1)
    octave = (bits >> 52) - 1023
    within = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(torch.float64).contiguous()  # 1 up to 2
    table = _powers(fmt.fraction_bits, x.dtype)
    if how.rounding in NEAREST:
        k = (octave << fmt.fraction_bits) + torch.bucketize(within, table_on(_borders(fmt.fraction_bits), x.device))
    else:
        table = table_on(table, x.device).to(torch.float64)
        step = torch.bucketize(within, table, right=True) - 1
        lower, upper = table[step], torch.cat([table[1:], table.new_full((1,), 2.0)])[step]
        k = (octave << fmt.fraction_bits) + step
        # Below the smallest number lies zero.
        smallest = float(fmt._powers_of(torch.tensor(fmt._zero + 1, device="cpu"), x.dtype))
        vanishing = k <= fmt._zero
        k = k.clamp(fmt._zero, -fmt._zero - 1)
        fraction = where(vanishing, bits.view(torch.float64) / smallest, (within - lower) / (upper - lower))
        # One bit below the fraction says that it is not zero, however small.
        inexact = where(vanishing, bits > 0, within > lower).to(torch.int64)
        significand = ((fraction * 2.0**32).to(torch.int64) << 1) | inexact
        k = k + round_shifted(significand, 33, rule(how.rounding), x < 0, odd=k & 1, words=how.words)
    return where(bits == 0, fmt._zero, k.clamp(fmt._zero, -fmt._zero - 1))


# Posits


def _posit(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    bits = float64_bits(source)
    magnitude = (_rounded_posit(fmt, bits, how) + _BIAS).view(torch.float64)
    result = where((bits & _MAGNITUDE) == 0, 0.0, where(bits < 0, -magnitude, magnitude))
    return where(source.isfinite(), result, torch.nan).to(source.dtype)


def _rounded_posit(fmt, bits: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    """The magnitudes of float64 patterns rounded, as patterns less the bias; anything for 0, infinity and NaN."""
    negative = bits < 0
    largest, smallest = fmt._ends
    clamped = (bits & _MAGNITUDE).clamp(smallest, largest)
    pattern, x = clamped - _BIAS, clamped.view(torch.float64)
    k = pattern >> fmt._below_regime
    kept = fmt._tail_bits(k).clamp(min=0)
    drop = (fmt._below_regime - kept).clamp(min=0)
    lower = (pattern >> drop) << drop
    if how.words is None:
        # Where nothing is kept below the regime, its last bit is the code's last: 0 after ones, 1 after zeros.
        odd = where(kept > 0, (pattern >> drop) & 1, (k < 0).to(torch.int64))
        rest = pattern - lower
        up = round_shifted(rest, drop, rule(how.rounding), negative, odd=odd)
    else:
        below, above = ((p + _BIAS).view(torch.float64) for p in (lower, lower + (1 << drop)))
        fraction = ((x - below) / (above - below) * 2.0**32).to(torch.int64)
        up = round_shifted(fraction, 32, rule(how.rounding), negative, words=how.words)
    return lower + (up << drop)


# Powers of two


def _power_of_two(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    return fmt.decode(_codes_of_powers(fmt, source, how), source.dtype)


def _codes_of_powers(fmt, x: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    over, infinite = fmt._beyond(how)
    bits = float64_bits(x)
    code = (bits >> 52) - _FIELD
    up = round_shifted(bits & _FRACTION, 52, rule(how.rounding), bits < 0, odd=code & 1, words=how.words)
    code = where(code < 0, 0, code + up)
    code = where(code > _LARGEST, over, code)
    code = where(bits == _INFINITY, infinite, code)
    return where((bits <= 0) | (bits > _INFINITY), _NAN, code)


# Blocks that share a power of two


def _shared_scale(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    axis = check_axis(fmt, fmt.axis, source)
    k, quantum, scale = _integers_in_blocks(fmt, source, axis, how)
    blocks = _in_float64(fmt, k, quantum, scale, cut(source, axis, fmt.block))
    return narrowed(joined(blocks, source, axis), source.dtype)


def _integers_in_blocks(
    fmt, x: torch.Tensor, axis: int, how: RoundingOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per element an integer k and the exponent of its unit, relative to the scale; per block the scale's code."""
    blocks = cut(x, axis, fmt.block)
    # The largest magnitude is the largest pattern without the sign; NaN lies beyond infinity.
    top = (float64_bits(blocks) & _MAGNITUDE).amax(-1, keepdim=True)
    shared = ((top + fmt._addend) >> 52) - 1023 - fmt.element.emax
    shared = shared.clamp(-_SCALE_BIAS, _SCALE_BIAS)
    significand, exponent = significand_and_exponent(blocks)
    m, lowest = fmt.element.significand_bits, fmt.element.emin - fmt.element.significand_bits
    # A subnormal float64 lies below every quantum there is, wherever its leading bit.
    quantum = (exponent + 52 - shared - m).clamp(min=lowest)
    pieces = None if how.words is None else cut(how.words, axis, fmt.block)
    shift = (quantum + shared - exponent).clamp(min=0)
    k = round_shifted(significand, shift, rule(how.rounding), blocks < 0, words=pieces)
    # Saturate: the largest element is an integer times its own quantum.
    top_quantum = fmt.element.emax - m
    too_large = (quantum > top_quantum) | (k.to(torch.float64) * power_of_two(quantum) > fmt.element.max)
    k = where(too_large, int(fmt.element.max * 2.0**-top_quantum), k)
    quantum = where(too_large, top_quantum, quantum)
    return k, quantum, where(top < _INFINITY, shared + _SCALE_BIAS, _NAN_SCALE)


def _in_float64(fmt, k: torch.Tensor, quantum: torch.Tensor, scale: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """The float64 numbers that integers stand for, with the signs of ``signs``."""
    numbers = k.to(torch.float64) * power_of_two(quantum + scale - _SCALE_BIAS)
    numbers = where(signs.signbit(), -numbers, numbers)
    if not fmt.element.signed_zero:
        numbers = where(numbers == 0, 0.0, numbers)  # torch.compile would drop adding 0
    return where(scale == _NAN_SCALE, torch.nan, numbers)


# NVFP4


def _nvfp4(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    axis = check_axis(fmt, fmt.axis, source)
    codes, scales, tensor_scale = _codes_in_two_levels(fmt, source, axis, how)
    return fmt._joined(fmt._scaled(codes, scales, tensor_scale), source, axis)


def _codes_in_two_levels(
    fmt, x: torch.Tensor, axis: int, how: RoundingOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Element codes and scale codes (int64) of the blocks, and the scale of the tensor."""
    blocks = fmt._cut(x, axis)
    tops = blocks.abs().amax(-1, keepdim=True)
    top = tops.amax()
    tensor_scale = _tensor_scale(top)
    scales = _element_codes(tops / (_ELEMENT.max * tensor_scale), _SCALE, Rounding.NEAREST_EVEN, None)
    total = table_on(_SCALE.table, x.device)[scales].to(x.dtype) * tensor_scale
    quotients = where(total == 0, torch.copysign(torch.zeros_like(blocks), blocks), blocks / total)
    pieces = None if how.words is None else fmt._cut(how.words, axis)
    return _element_codes(quotients, _ELEMENT, how.rounding, pieces), scales, tensor_scale


def _element_codes(x: torch.Tensor, element: Element, rounding: Rounding, words: torch.Tensor | None) -> torch.Tensor:
    """The codes (int64) of numbers rounded to a float element, saturating; 0 for NaN."""
    significand, exponent = significand_and_exponent(x)
    m, lowest = element.significand_bits, element.emin - element.significand_bits
    quantum = (exponent + 52 - m).clamp(min=lowest)
    k = round_shifted(significand, (quantum - exponent).clamp(min=0), rule(rounding), x < 0, words=words)
    codes = ((quantum - lowest) << m) + k  # the implicit bit counts the exponent field up; so does a carry
    top_quantum = element.emax - m
    largest = ((top_quantum - lowest) << m) + int(element.max * 2.0**-top_quantum)
    codes = where(quantum > top_quantum, largest, codes.clamp(max=largest))
    codes = codes | (x.signbit().to(torch.int64) << (element.bits - 1))
    return where(x.isnan(), 0, codes)


# Tables


def _table(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    values = table_on(fmt._tables[source.dtype].values, source.device)
    places, tops = _places(fmt, source, how)
    if tops is None:
        return where(source.isnan(), source, values[places])
    return joined(_scaled(fmt, values[places], tops), source, check_axis(fmt, fmt.axis, source))


def _places(fmt, x: torch.Tensor, how: RoundingOptions) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Places in ascending order of what ``x`` rounds to; with scales cut into blocks, and their largest numbers."""
    table, rounding, words = fmt._tables[x.dtype], how.rounding, how.words
    if fmt.block is None:
        numbers = float64_bits(x).view(torch.float64).contiguous()
        if words is None:
            return torch.bucketize(numbers, table_on(table.thresholds[rounding], x.device)), None
        return between(numbers, table_on(table.values, x.device).to(torch.float64), None, words), None
    axis = check_axis(fmt, fmt.axis, x)
    blocks = cut(x, axis, fmt.block)
    tops = blocks.abs().amax(-1, keepdim=True)
    tops = where(tops.isfinite(), tops, torch.nan)
    if rounding is Rounding.NEAREST_EVEN:
        steps = (blocks * (1 / fmt._scale(tops))).to(torch.float64).contiguous()
        return torch.bucketize(steps, table_on(table.thresholds[rounding], x.device)), tops
    grid = _scaled(fmt, table_on(table.values, x.device), tops).to(torch.float64)
    pieces = None if words is None else cut(words, axis, fmt.block)
    choices = None if words is not None else table_on(table.choices[rounding], x.device)
    return between(blocks.to(torch.float64), grid, choices, pieces), tops


def _scaled(fmt, numbers: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """Numbers of the table times the scale of their block, whose largest magnitude is ``tops``."""
    scaled = where(tops == 0, 0.0, numbers * fmt._scale(tops))
    return where(scaled == 0, 0.0, scaled)


def between(
    x: torch.Tensor, grid: torch.Tensor, choices: torch.Tensor | None, words: torch.Tensor | None
) -> torch.Tensor:
    """The places of what float64 numbers round to, in a table, or in one for each block along the last axis but one."""
    last = grid.shape[-1] - 1
    lower = (torch.searchsorted(grid, x.contiguous(), right=True) - 1).clamp(0, last - 1)

    def number(place: torch.Tensor) -> torch.Tensor:
        return grid[place] if grid.dim() == 1 else grid.gather(-1, place)

    below, above = x - number(lower), number(lower + 1) - x
    negative = x < 0
    if words is not None:
        fraction = where(negative, above, below) / (number(lower + 1) - number(lower))
        up = ((fraction.nan_to_num(0.0, 0.0, 0.0) * 2.0**32).to(torch.int64) + words) >> 32
        place = where(negative, lower + 1 - up, lower + up)
    else:
        assert choices is not None
        choice = choices[lower]
        nearer = (above < below) | ((above == below) & (choice == TIE_HIGH))
        place = lower + where(choice >= TIE_LOW, nearer, (choice == HIGH) & (below > 0)).to(torch.int64)
    place = where(x <= grid[..., :1], 0, place)
    return where(x >= grid[..., -1:], last, place)


# Floats with a scale, QuaRL, qtorch


def _scaled_float(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    target = torch.empty_like(source)
    scales = fmt._scale_up(source, target)
    target = _float(fmt._saturating, target, how._replace(policy=Overflow.SATURATE))
    for piece, scale in zip(fmt._pieces(target), scales, strict=True):
        piece.div_(scale)
    return target


def _quarl(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    if fmt._half:
        return _float(format_called("e5m10"), source, how)
    step = fmt._step(source)
    if how.rounding is Rounding.NEAREST_EVEN:
        whole = (source / step).round()
    else:
        whole = _whole_steps(source, step, torch.zeros_like(step), how.rounding, how.words)
    return where(whole == 0, 0.0, whole) * step


def _qtorch(fmt, source: torch.Tensor, how: RoundingOptions) -> torch.Tensor:
    fmt._check_mode(how.rounding)
    drop = 23 - fmt.significand_bits
    half, keep = 1 << (drop - 1), _WORD & -(1 << drop)

    def cut(word: torch.Tensor) -> torch.Tensor:
        return (word + half) & keep  # the sum wraps at 2^32, which `keep` sees to

    word = source.view(torch.int32).to(torch.int64) & _WORD
    sign = word & 0x80000000
    below = ((word >> 23) & 0xFF) < 127 + fmt.emin
    rounded = cut(word)
    last_field = (1 << (fmt.exponent_bits - 1)) + 127
    largest = sign | (last_field << 23) | (keep & 0x7FFFFF)
    beyond = ((rounded >> 23) & 0xFF) > last_field
    normal = _float_of(where(beyond, largest, rounded))
    anchor = where(sign != 0, -fmt.smallest_normal, fmt.smallest_normal).to(torch.float32)
    shifted = (source + anchor).view(torch.int32).to(torch.int64) & _WORD
    return where(below, _float_of(cut(shifted)) - anchor, normal)


def _float_of(word: torch.Tensor) -> torch.Tensor:
    """float32 numbers of 32-bit words held as int64."""
    return where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32).view(torch.float32)


_ROUNDS = {
    FloatFormat: _float,
    FixedFormat: _fixed,
    IntegerFormat: _integer,
    LogarithmicFormat: _logarithmic,
    PositFormat: _posit,
    PowerOfTwoFormat: _power_of_two,
    SharedScaleFormat: _shared_scale,
    NVFP4Format: _nvfp4,
    TableFormat: _table,
    ScaledFloatFormat: _scaled_float,
    QuarlFormat: _quarl,
    QtorchFormat: _qtorch,
}
