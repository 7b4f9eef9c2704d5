import bisect
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, random_patterns, rounded
from formats_exact import goes_up, round_to_integer
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, FormatError
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.families.integer import IntegerFormat, Quantized
from roundoff.formats.scales.shared_scale import ROW

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
GIVEN = [
    IntegerFormat(8, scale=0.03),
    IntegerFormat(8, signed=False, symmetric=False, scale=0.0371, zero_point=100),
    IntegerFormat(2, scale=1.0),
    IntegerFormat(4, symmetric=False, scale=0.3, zero_point=-3),
    IntegerFormat(16, scale=1e-4),
    IntegerFormat(16, signed=False, scale=2.0**-10),
]
FROM_DATA = [
    IntegerFormat(8),
    IntegerFormat(8, signed=False, symmetric=False),
    IntegerFormat(4, axis=0),
    IntegerFormat(5, axis=1, symmetric=False),
    IntegerFormat(3, axis=-1),
    IntegerFormat(4, group=5),
    IntegerFormat(4, group=7, symmetric=False),
    IntegerFormat(4, group=4, axis=1),
    IntegerFormat(8, group=ROW),
    IntegerFormat(5, group=ROW, axis=1, symmetric=False),
    IntegerFormat(6, percentile=95.0),
    IntegerFormat(6, group=7, percentile=80.0, signed=False, symmetric=False),
]


def exact(fmt, x, scale, zero, rounding, dtype, word=None):
    """To nearest-even the documented arithmetic; in the other modes one of the two floats that x lies between."""
    number = NUMPY[dtype]
    if rounding is not Rounding.NEAREST_EVEN:
        return between_neighbours(fmt, x, number(scale), zero, rounding, number, word)
    with np.errstate(over="ignore"):
        steps = float(number(x) * (number(1) / number(scale)))
    if math.isnan(steps):
        return math.nan
    if math.isinf(steps):
        code = fmt.code_max if steps > 0 else fmt.code_min
    else:
        whole = round_to_integer(abs(Fraction(steps)), rounding, negative=steps < 0, word=word)
        code = min(max((-whole if steps < 0 else whole) + zero, fmt.code_min), fmt.code_max)
    return float(number(code - zero) * number(scale))


@cache
def numbers_and_one_beyond(fmt, scale, zero, number):
    with np.errstate(over="ignore"):
        return [float(number(code - zero) * scale) for code in range(fmt.code_min - 1, fmt.code_max + 2)]


def between_neighbours(fmt, x, scale, zero, rounding, number, word):
    """Found by looking at all numbers of the format and of one step beyond either end."""
    if math.isnan(x):
        return math.nan
    codes, grid = range(fmt.code_min - 1, fmt.code_max + 2), numbers_and_one_beyond(fmt, scale, zero, number)
    if not grid[0] <= x < grid[-1]:
        return grid[1] if x < 0 else grid[-2]
    lower = bisect.bisect_right(grid, x) - 1
    a, b, v = Fraction(grid[lower]), Fraction(grid[lower + 1]), Fraction(x)
    away = v < 0  # the tail rounds magnitudes
    fraction = (b - v) / (b - a) if away else (v - a) / (b - a)
    near = codes[lower + 1] if away and fraction < 1 else codes[lower]
    fraction %= 1
    up = goes_up(fraction, rounding, negative=away, odd=near % 2 == 1, word=word)
    code = near + (up if not away else -up)
    code = min(max(code, fmt.code_min), fmt.code_max)
    return float(number(code - zero) * scale)


def numbers_near_steps(fmt, dtype):
    codes = torch.linspace(fmt.code_min - 3, fmt.code_max + 3, 60).round().unique().to(torch.float64)
    points = torch.cat([codes, codes + 0.5, codes + 0.25]) - fmt.zero_point
    points = (points * fmt.scale).to(dtype)
    up, down = (torch.nextafter(points, torch.tensor(end, dtype=dtype)) for end in (torch.inf, -torch.inf))
    return torch.cat([points, up, down, random_patterns(100, dtype), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("fmt", GIVEN, ids=str)
def test_equals_the_documented_arithmetic(fmt, dtype):
    x = numbers_near_steps(fmt, dtype)
    for rounding in DETERMINISTIC:
        numbers = [exact(fmt, v, fmt.scale, fmt.zero_point, rounding, dtype) for v in x.tolist()]
        expected = torch.tensor(numbers, dtype=dtype)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)


@pytest.mark.parametrize("fmt", GIVEN, ids=str)
def test_equals_fake_quantize_per_tensor(fmt):
    x = torch.cat([numbers_near_steps(fmt, torch.float32), torch.randn(100_000) * fmt.scale * fmt.code_max])
    x = x[x.abs() < fmt.scale * 2.0**40]  # torch converts codes to int64, which must hold them
    theirs = torch.fake_quantize_per_tensor_affine(x, fmt.scale, fmt.zero_point, fmt.code_min, fmt.code_max)
    assert same_bits(rounded(fmt, x), theirs)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_equals_fake_quantize_per_channel(axis, symmetric):
    fmt = IntegerFormat(8, axis=axis, symmetric=symmetric)
    x = torch.randn(6, 8, 10, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 11)
    codes, scale, zero = fmt.quantize(x)
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero, axis % 3, fmt.code_min, fmt.code_max)
    assert same_bits(rounded(fmt, x), theirs)
    assert same_bits(fmt.dequantize(Quantized(codes, scale, zero)), theirs)


@pytest.mark.parametrize("fmt", FROM_DATA, ids=str)
def test_both_paths_and_the_codes_agree(fmt):
    x = torch.randn(6, 9, 20, generator=torch.Generator().manual_seed(1)) * 3 + 1
    for dtype in NUMPY:
        y = x.to(dtype)
        result = rounded(fmt, y)
        assert same_bits(result, by_operations(fmt, y))
        assert same_bits(fmt.dequantize(fmt.quantize(y)), result)
        other_order = y.transpose(0, 2).contiguous().transpose(0, 2)
        assert same_bits(rounded(fmt, other_order).contiguous(), result)
        fmt.round_into(y, y)
        assert same_bits(y, result)


def slices_of(fmt, x):
    """What shares a scale, by indexing."""
    if fmt.group is not None:
        rows = x.movedim(-1 if fmt.axis is None else fmt.axis, -1)
        return [part for row in rows.reshape(-1, rows.shape[-1]) for part in row.split(fmt.group)]
    return [x.flatten()] if fmt.axis is None else [part.flatten() for part in x.unbind(fmt.axis)]


@pytest.mark.parametrize("fmt", FROM_DATA, ids=str)
def test_scales_follow_their_definition(fmt):
    x = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(2)) + 0.5
    _, scale, zero = fmt.quantize(x)
    if fmt.group is not None:
        axis = -1 if fmt.axis is None else fmt.axis
        scale, zero = scale.movedim(axis, -1), zero.movedim(axis, -1)
    for part, s, z in zip(slices_of(fmt, x), scale.flatten().tolist(), zero.flatten().tolist(), strict=True):
        numbers = sorted(part.abs().tolist() if fmt.symmetric else part.tolist())
        rank = max(1, math.ceil(len(numbers) * (fmt.percentile or 100) / 100))
        low, high = numbers[len(numbers) - rank], numbers[rank - 1]
        if fmt.symmetric:
            assert (s, z) == (float(np.float32(high / fmt.code_max)), 0)
        else:
            low, high = min(low, 0.0), max(high, 0.0)
            assert s == float(np.float32((high - low) / (fmt.code_max - fmt.code_min)))
            assert z == min(max(fmt.code_min - round(low / s), fmt.code_min), fmt.code_max)


def test_codes_are_the_smallest_integers_that_hold_them():
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    symmetric = IntegerFormat(8).quantize(x)
    assert (symmetric.codes.tolist(), symmetric.codes.dtype) == ([-127, 0, 64, 127], torch.int8)
    codes, scale, zero = IntegerFormat(8, signed=False, symmetric=False).quantize(x)
    assert (codes.tolist(), codes.dtype, zero.item()) == ([0, 127, 191, 254], torch.uint8, 127)
    assert scale.item() == np.float32(2 / 255)
    assert IntegerFormat(16).quantize(x).codes.dtype == torch.int16
    assert IntegerFormat(12, signed=False).quantize(x.abs()).codes.dtype == torch.uint16


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_slice_with_nan_or_infinity_is_lost_and_no_other(symmetric):
    x = torch.randn(4, 8)
    x[1, 2], x[2, 3], x[3, 4] = torch.nan, torch.inf, -torch.inf
    for fmt in (IntegerFormat(8, symmetric=symmetric, axis=0), IntegerFormat(8, symmetric=symmetric, group=8),
                IntegerFormat(8, symmetric=symmetric, group=8, percentile=60.0)):  # fmt: skip
        for result in (rounded(fmt, x), by_operations(fmt, x), rounded(fmt, x.double())):
            assert result.isnan().all(1).tolist() == [False, True, True, True]
            assert result[0].isfinite().all()
        with pytest.raises(FormatError, match="no code for NaN or infinity"):
            fmt.quantize(x)
    given_scale = IntegerFormat(8, scale=0.1)
    assert same_bits(rounded(given_scale, torch.tensor([torch.nan, torch.inf])), torch.tensor([torch.nan, 12.7]))
    with pytest.raises(FormatError, match="no code for NaN,"):
        given_scale.quantize(torch.tensor([torch.nan]))


@pytest.mark.parametrize("fmt", FROM_DATA, ids=str)
def test_zeros_tiny_numbers_and_odd_shapes(fmt):
    for x in (torch.zeros(2, 3, 4), torch.full((2, 3, 4), 1e-44), -torch.full((2, 3, 4), 1e-44)):
        assert rounded(fmt, x).tolist() == torch.zeros(2, 3, 4).tolist()
        assert not rounded(fmt, x).signbit().any()
    assert rounded(fmt, torch.empty(0, 3, 4)).shape == (0, 3, 4)
    if fmt.axis in (None, 0, -1):
        assert rounded(fmt, torch.tensor(1.5)).item() == pytest.approx(1.5)
        assert rounded(fmt, torch.ones(3)).shape == (3,)
    with pytest.raises(FormatError, match="empty"):
        fmt.quantize(torch.empty(0))


def test_stochastic_is_unbiased_over_all_random_words():
    fmt = IntegerFormat(4, scale=0.5)
    words = torch.arange(256, dtype=torch.uint8)
    for value in (0.625, -0.625, 0.5, 1.2578125):
        result = rounded(fmt, torch.full((256,), value), rounding=Rounding.STOCHASTIC, random=words)
        assert result.double().mean().item() == value
    grouped, x, random = IntegerFormat(3, group=5), torch.ones(3, 7) / 3, RandomBits(1, 2)
    draws = [rounded(grouped, x, rounding=Rounding.STOCHASTIC, random=random) for _ in range(2)]
    assert same_bits(*draws)


@given(
    st.builds(IntegerFormat, st.integers(2, 16), st.booleans(), st.booleans()),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
)
def test_laws(fmt, numbers):
    x = torch.tensor(sorted(numbers))
    y = rounded(fmt, x)
    assert bool((y.diff() >= 0).all()), "rounding keeps the order"
    codes, scale, zero = fmt.quantize(x)
    assert int(codes.to(torch.int64).min()) >= fmt.code_min
    assert int(codes.to(torch.int64).max()) <= fmt.code_max
    assert same_bits(fmt.dequantize(Quantized(codes, scale, zero)), y)
    if fmt.signed and fmt.symmetric:
        assert torch.equal(rounded(fmt, -x), -y), "rounding is odd"
    if not fmt.symmetric or fmt.signed:
        # Half a step for rounding, half for the zero point, and the rounding of the carrier.
        assert bool(((y - x).abs().double() <= scale.double() * 1.001 + x.abs() * 1e-6).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 1}, "width .* from 2 to 16, got 1"),
        ({"width": 17}, "got 17"),
        ({"width": 8, "axis": 9}, "axis"),
        ({"width": 8, "group": -4}, "group .* got -4"),
        ({"width": 8, "percentile": 50}, "percentile .* above 50"),
        ({"width": 8, "scale": 0.0}, "scale"),
        ({"width": 8, "scale": math.nan}, "scale"),
        ({"width": 8, "scale": 1.0, "axis": 0}, "leave out axis"),
        ({"width": 8, "zero_point": 3}, "zero_point must be from 0 to 0"),
        ({"width": 8, "scale": 1.0, "symmetric": False, "zero_point": 128}, "from -128 to 127"),
    ],
)
def test_impossible_formats_are_refused(arguments, message):
    with pytest.raises(FormatError, match=message):
        IntegerFormat(**arguments)


def test_requests_that_cannot_be_met_are_refused():
    with pytest.raises(FormatError, match="no such axis"):
        rounded(IntegerFormat(8, axis=2), torch.ones(3, 3))
    with pytest.raises(FormatError, match="must be saturate"):
        rounded(IntegerFormat(8), torch.ones(3), overflow=Overflow.WRAP)


@each("dtype", NUMPY)
@pytest.mark.parametrize("fmt", [*GIVEN, *FROM_DATA], ids=str)
def test_numbers_of_the_format_stay_what_they_are_in_every_mode(fmt, dtype):
    """IEEE 754, 4.3; with x (1/s) rounded before it is rounded up, they went a whole step."""
    x = torch.linspace(-12.7, 12.7, 6 * 9 * 20, dtype=dtype).view(6, 9, 20)
    numbers = rounded(fmt, x)
    parameters = [fmt.quantize(data)[1:] for data in (x, numbers)]
    same_scale = all(map(torch.equal, *parameters))  # not always, where the scale follows from the data
    assert same_scale or not fmt.elementwise
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(0) if rounding is Rounding.STOCHASTIC else None}
        if same_scale:
            assert same_bits(rounded(fmt, numbers, **how), numbers), rounding
            assert same_bits(by_operations(fmt, numbers, **how), numbers), rounding
        else:
            assert same_bits(rounded(fmt, x, **how), by_operations(fmt, x, **how)), rounding


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@pytest.mark.parametrize("fmt", FROM_DATA, ids=str)
def test_other_modes_choose_between_the_two_numbers_around(fmt, dtype):
    x = torch.randn(6, 9, 20, generator=torch.Generator().manual_seed(4)).to(dtype) * 3 + 1
    up, down = (rounded(fmt, x, rounding=mode) for mode in (Rounding.UP, Rounding.DOWN))
    inside = (down <= x) & (x <= up)
    assert inside.sum() > 0.5 * inside.numel()  # what is beyond a percentile saturates
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(0) if rounding is Rounding.STOCHASTIC else None}
        near = rounded(fmt, x, **how)
        if rounding is not Rounding.NEAREST_EVEN:
            assert ((near == up) | (near == down))[inside].all(), rounding
    nearest = rounded(fmt, x, rounding=Rounding.NEAREST_AWAY)
    assert ((x - nearest).abs() <= torch.minimum(x - down, up - x))[inside].all()


def test_parity_is_that_of_the_multiple_to_nearest_even_and_of_the_code_to_odd():
    fmt = IntegerFormat(8, signed=False, symmetric=False, scale=0.5, zero_point=7)
    x = torch.tensor([0.25, 0.75, 1.25])
    assert fmt.encode(x).codes.tolist() == [7, 9, 9]  # as torch and ONNX: the even multiple of the scale
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.5, 7, 0, 255)
    assert torch.equal(fmt.decode(fmt.encode(x)), theirs)
    assert fmt.encode(x, rounding="to-odd").codes.tolist() == [7, 9, 9]
    even = IntegerFormat(8, signed=False, symmetric=False, scale=0.5, zero_point=8)
    assert even.encode(x, rounding="to-odd").codes.tolist() == [9, 9, 11]


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@each(
    "name",
    [
        *("int8", "int2", "int3_asym", "int2_asym", "uint8", "int11", "int16", "uint5_sym"),
        *("int8_asym", "int8_ax0", "uint8_ax1", "int4_g2", "uint8_g2_ax0", "int8_p60"),
    ],
)
def test_finite_data_stay_finite(name, dtype):
    fmt, largest = Format.parse(name), torch.finfo(dtype).max
    for pair in ([largest, 1.0], [largest, -largest], [-largest, 1.0], [largest, largest / 3]):
        x = torch.tensor([pair, pair], dtype=dtype)
        for rounding in Rounding:
            how = {"rounding": rounding, "random": RandomBits(0) if rounding is Rounding.STOCHASTIC else None}
            result = rounded(fmt, x, **how)
            assert result.isfinite().all(), (pair, rounding)
            assert same_bits(result, by_operations(fmt, x, **how)), (pair, rounding)
        assert fmt.dequantize(fmt.quantize(x)).isfinite().all()
        if name == "int8":
            assert (rounded(fmt, x) / largest - x / largest).abs().max() < 0.01


def test_a_given_scale_must_leave_numbers_finite():
    fmt = IntegerFormat(8, scale=1e37)
    assert fmt.carrier is torch.float64
    with pytest.raises(FormatError, match=r"does not fit in torch\.float32"):
        roundoff.round(torch.ones(3), fmt)
    assert roundoff.round(torch.tensor([1e300], dtype=torch.float64), fmt).item() == 127e37


@pytest.mark.parametrize(("n", "percentile", "rank"), [(250, 64.4, 161), (1000, 64.4, 644), (10_000, 99.04, 9904)])
def test_the_rank_of_a_percentile_is_exact(n, percentile, rank):
    """In binary fractions n p / 100 can be a little more than the integer it is."""
    assert math.ceil(n * percentile / 100) == rank + 1
    x = torch.arange(1, n + 1, dtype=torch.float64)
    for fmt in (f"uint8_sym_p{percentile}", f"uint8_sym_p{percentile}_g{n}"):
        assert roundoff.round(x, fmt).max().item() == rank


def test_values_are_those_of_the_carrier():
    for fmt in GIVEN:
        numbers = fmt.values()
        assert same_bits(rounded(fmt, numbers.float()), numbers.float())
        assert torch.equal(numbers.float().double(), numbers)
        wide = fmt.values(torch.float64)
        assert same_bits(rounded(fmt, wide), wide)
    assert (IntegerFormat(8, scale=0.1).values() != IntegerFormat(8, scale=0.1).values(torch.float64)).any()


def test_a_row_longer_than_a_piece_has_the_scales_of_all_its_columns():
    """The loops take 1024 numbers at a time."""
    x = torch.randn(3, 2500, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 2501)
    fmt = IntegerFormat(6, axis=1, symmetric=False)
    for mode in (Rounding.NEAREST_EVEN, Rounding.UP):
        assert same_bits(rounded(fmt, x, rounding=mode), by_operations(fmt, x, rounding=mode))
