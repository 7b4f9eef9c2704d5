import itertools
import math
import pickle
from fractions import Fraction

import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import DETERMINISTIC, random_patterns, rounded
from formats_exact import round_float
from hypothesis import given
from hypothesis import strategies as st
from strategies import float32_tensors, float_formats
from tensor_roundings import by_operations

from roundoff.formats import FloatFormat, Format, FormatError, Overflow, RandomBits, Rounding, ScaledFloatFormat
from roundoff.formats.base.random_words import random_words
from roundoff.formats.families.floats import FP32, FP64
from roundoff.formats.scales.shared_scale import ROW

CARRIERS = {torch.float32: FP32, torch.float64: FP64}
NAMES = ["fp8_e4m3_tensor", "fp8_e5m2_tensor_pow2", "fp8_e4m3_row", "fp8_e4m3_row_pow2", "fp8_e5m2_b5", "fp4_e2m1_b16",
         "float8_e4m3fnuz_row", "e3m4_b7_pow2", "fp16_row", "bf16_tensor", "binary8p4_b16"]  # fmt: skip


def exact_scale(top: Fraction, fmt, carrier: FloatFormat) -> Fraction:
    """The class's formula in rational numbers, each operation rounded once to the carrier."""
    tiny = Fraction(carrier.smallest_normal)
    quotient = Fraction(fmt.element.max) / top if top else 1 / tiny
    s = max(Fraction(round_float(min(quotient, 1 / tiny), carrier)), tiny)
    return Fraction(2) ** (math.frexp(float(s))[1] - 1) if fmt.power_of_two else s


def exact(numbers, fmt, carrier: FloatFormat, rounding: Rounding, words) -> list[float]:
    """What the class makes of numbers that share a scale."""
    if not all(map(math.isfinite, numbers)):
        return [math.nan] * len(numbers)
    s = exact_scale(max(abs(Fraction(x)) for x in numbers), fmt, carrier)
    results = []
    for x, word in zip(numbers, words, strict=True):
        scaled = math.copysign(round_float(abs(Fraction(x)) * s, carrier), x)
        element = round_float(scaled, fmt.element, rounding, Overflow.SATURATE, word)
        results.append(math.copysign(round_float(abs(Fraction(element)) / s, carrier), element))
    return results


def expected(x: torch.Tensor, fmt, rounding: Rounding = Rounding.NEAREST_EVEN, random=None) -> torch.Tensor:
    """The reference, piece by piece, along the last axis of two."""
    carrier = CARRIERS[x.dtype]
    words = [[None] * x.shape[1]] * len(x) if random is None else random_words(random, x).tolist()
    length = x.numel() if fmt.block is None else min(fmt.block, x.shape[1])
    rows = list(zip(x.tolist(), words, strict=True))
    if fmt.block is None:
        rows = [tuple([item for line in lines for item in line] for lines in zip(*rows, strict=True))]
    result = []
    for numbers, bits in rows:
        for start in range(0, len(numbers), length):
            part = slice(start, start + length)
            result += exact(numbers[part], fmt, carrier, rounding, bits[part])
    return torch.tensor(result, dtype=torch.float64).view(x.shape).to(x.dtype)


def data(dtype) -> torch.Tensor:
    """Rows of all magnitudes, with zeros of both signs, subnormal numbers, NaN and infinities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 37, generator=generator, dtype=torch.float64)
    x *= 2.0 ** torch.randint(-12, 1, x.shape, generator=generator)
    x *= 2.0 ** torch.linspace(-150, 125, 16, dtype=torch.float64).round()[:, None]
    x = x.to(dtype)
    x[5], x[6], x[7, ::2], x[8, 3:] = 0.0, -0.0, -0.0, 1e-44
    x[9, 3], x[10, 4], x[11, 5] = torch.nan, torch.inf, -torch.inf
    x[-1, 0] = torch.finfo(dtype).max
    return x


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equals_rational_arithmetic_in_every_mode(name, dtype):
    fmt, x = Format.parse(name), data(dtype)
    tensors = [x] if fmt.block is not None else [*x.split(5), x[:5] * 1e-30]
    for y, rounding in itertools.product(tensors, Rounding):
        random = RandomBits(3, 4) if rounding is Rounding.STOCHASTIC else None
        right = expected(y, fmt, rounding, random)
        how = {"rounding": rounding, "random": random}
        assert same_bits(rounded(fmt, y, **how), right), rounding
        assert same_bits(by_operations(fmt, y, **how), right), rounding
        assert same_bits(fmt.decode(fmt.encode(y, rounding, random=random)), right), rounding


@given(st.sampled_from(NAMES), float32_tensors(), st.sampled_from(DETERMINISTIC))
def test_any_tensor_is_rounded_as_rational_arithmetic_says(name, x, rounding):
    fmt = Format.parse(name)
    if x.numel():
        right = expected(x[None], fmt, rounding)[0]
        assert same_bits(rounded(fmt, x, rounding=rounding), right)
        assert same_bits(by_operations(fmt, x, rounding=rounding), right)


@pytest.mark.parametrize("name", NAMES)
def test_both_paths_agree_on_random_patterns_also_in_place(name):
    fmt = Format.parse(name)
    for finite in (False, True):
        x = random_patterns(40_000, torch.float32, finite=finite)
        x = x[: len(x) // 50 * 50].view(-1, 50)
        result = rounded(fmt, x)
        assert same_bits(result, by_operations(fmt, x))
        fmt.round_into(x, x)
        assert same_bits(result, x)


@each("shape", [(), (1,), (0,), (31,), (3, 70), (2, 40, 5), (0, 4), (4, 0)])
@pytest.mark.parametrize(
    "name", ["fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_e4m3_row_ax0", "fp8_e4m3_b8_ax0", "fp8_e5m2_b8"]
)
def test_any_shape_axis_and_order_of_memory(name, shape):
    fmt = Format.parse(name)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    result = rounded(fmt, x)
    if x.numel() == 0:
        assert result.shape == x.shape
        with pytest.raises(FormatError, match="empty"):
            fmt.encode(x)
        return
    rows = x.reshape(1) if x.dim() == 0 else x.movedim(fmt.axis, -1)
    right = expected(rows.reshape(-1, rows.shape[-1]), fmt).view(rows.shape)
    right = right.reshape(()) if x.dim() == 0 else right.movedim(-1, fmt.axis)
    stored = fmt.encode(x)
    for y in (result, by_operations(fmt, x), fmt.decode(stored)):
        assert same_bits(y.contiguous(), right.contiguous())
    if fmt.block is None or x.dim() == 0:
        assert stored.scales.shape == ()
    else:
        scales = list(x.shape)
        scales[fmt.axis] = -(-x.shape[fmt.axis] // fmt.block)
        assert list(stored.scales.shape) == scales
    if x.dim() == 2:
        other_order = x.t().contiguous().t()
        assert same_bits(rounded(fmt, other_order).contiguous(), result)
        random = {"rounding": Rounding.STOCHASTIC, "random": RandomBits(1)}
        assert same_bits(rounded(fmt, other_order, **random).contiguous(), rounded(fmt, x, **random))
        fmt.round_into(other_order, other_order)
        assert same_bits(other_order.contiguous(), result)


@pytest.mark.parametrize("name", ["fp8_e4m3_b3_ax1", "fp8_e5m2_row_ax1_pow2"])
def test_columns_of_more_than_one_strip(name):
    x = torch.randn(2, 7, 1100, generator=torch.Generator().manual_seed(1)) * torch.linspace(1e-3, 1e3, 1100)
    assert same_bits(rounded(Format.parse(name), x), by_operations(Format.parse(name), x))


def test_one_bad_number_costs_its_piece_and_no_other():
    x = torch.ones(3, 8)
    for poison in (torch.nan, torch.inf, -torch.inf):
        x[1, 2] = poison
        assert rounded(Format.parse("fp8_e4m3_tensor"), x).isnan().all()
        assert rounded(Format.parse("fp8_e4m3_row"), x).isnan().all(1).tolist() == [False, True, False]
        assert rounded(Format.parse("fp8_e4m3_b4"), x).isnan().sum() == 4
        stored = Format.parse("fp8_e4m3_row").encode(x)
        assert stored.scales.isnan().flatten().tolist() == [False, True, False]
        assert stored.codes[1].tolist() == [0] * 8


def test_zeros_small_and_large_tensors():
    fmt = Format.parse("fp8_e4m3_tensor")
    assert same_bits(rounded(fmt, torch.tensor([0.0, -0.0])), torch.tensor([0.0, -0.0]))
    fnuz = Format.parse("float8_e4m3fnuz_tensor")
    assert same_bits(rounded(fnuz, torch.tensor([1.0, -0.0])), torch.tensor([1.0, 0.0]))
    tiny = torch.tensor([2.0**-149, 2.0**-130])  # below 448 x 2^-126: the scale ends at 2^126
    assert rounded(fmt, tiny).tolist() == [0.0, 2.0**-130]
    largest = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    assert rounded(fmt, largest)[0].isfinite()
    for name in ("fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_e4m3_b4"):
        up = rounded(Format.parse(name), torch.randn(8, 8), rounding=Rounding.UP)
        assert up.isfinite().all(), "A s may lie above M, and saturates"


def test_a_power_of_two_is_exact_and_idempotent():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 1e-6
    for name in ("fp8_e4m3_tensor_pow2", "fp8_e5m2_row_pow2", "fp4_e2m1_b16_pow2"):
        fmt = Format.parse(name)
        stored = fmt.encode(x)
        assert set(stored.scales.frexp().mantissa.flatten().tolist()) == {0.5}
        y = rounded(fmt, x)
        assert same_bits(rounded(fmt, y), y)
        assert same_bits(rounded(fmt, x * 2.0**-20), y * 2.0**-20)
    plain = Format.parse("fp8_e4m3_tensor")
    y = rounded(plain, x)
    torch.testing.assert_close(rounded(plain, y), y, rtol=2.0**-22, atol=0)


def test_rows_with_power_of_two_scales_are_mx_blocks_by_rceil():
    x = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    for name in ("e4m3", "e5m2"):
        mx = rounded(Format.parse(f"mxfp8_{name}_b50_rceil"), x)
        assert same_bits(rounded(Format.parse(f"fp8_{name}_row_pow2"), x), mx)


def test_stochastic_is_unbiased_over_all_random_words():
    words = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2).contiguous()
    fmt = Format.parse("fp8_e4m3_row")
    for value in (1.0 + 1 / 16, -1.0 - 3 / 64, 5 / 4096):
        x = torch.tensor([448.0, value]).expand(256, 2).contiguous()
        assert rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=words)[:, 1].double().mean().item() == value


@given(float_formats(), st.sampled_from([None, ROW, 1, 128]), st.sampled_from([-1, 0]), st.booleans())
def test_text_and_pickle_go_there_and_back(element, block, axis, power_of_two):
    try:
        fmt = ScaledFloatFormat(element, block, axis, power_of_two)
    except FormatError:
        return
    assert Format.parse(str(fmt)) == fmt == pickle.loads(pickle.dumps(fmt))


def test_names_and_facts():
    fmt = Format.parse("FP8_E4M3_ROW")
    assert fmt == ScaledFloatFormat(FloatFormat(4, 3, "fn"), ROW)
    assert str(fmt) == "e4m3fn_row"
    assert str(Format.parse("fp8_e5m2_b128_pow2_ax0")) == "e5m2_b128_ax0_pow2"
    assert (fmt.bits, fmt.bits_per_number, fmt.max, fmt.eps) == (8, 8.0, None, 0.125)
    assert Format.parse("fp8_e4m3_b128").bits_per_number == 8.25
    assert torch.equal(fmt.values(), Format.parse("fp8_e4m3").values())
    assert str(Format.parse("mxfp4_b16")) == "mxfp4_e2m1_b16"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp8_e4m3_tensor_ax0", "leave out axis"),
        ("fp8_e4m3_b0", "block .* got 0"),
        ("fp8_e4m3_row_ax9", "axis"),
        ("fp32_tensor", "at most 16 bits .* got fp32"),
        ("e11m2_row", "fits in float32"),
        ("fp8_e4m3_row_row", "no suffix '_row'"),
        ("fp8_e4m3_column", "no suffix '_column'"),
    ],
)
def test_what_cannot_be_is_refused(name, message):
    with pytest.raises(FormatError, match=message):
        Format.parse(name)


def test_requests_that_cannot_be_met_are_refused():
    with pytest.raises(FormatError, match="must be saturate"):
        rounded(Format.parse("fp8_e4m3_row"), torch.ones(2), overflow=Overflow.INFINITY)
    with pytest.raises(FormatError, match="no such axis"):
        rounded(Format.parse("fp8_e4m3_row_ax1"), torch.ones(2))
    for element in ("fp8_e4m3", FloatFormat(4, 3, overflow="saturate"), FloatFormat(4, 3, subnormals=False)):
        with pytest.raises(FormatError, match="float element"):
            ScaledFloatFormat(element)


@pytest.mark.parametrize("ends", ["", "_pow2"])
@pytest.mark.parametrize("shape", [(300, 200), (5, 7), (128, 129), (2, 130, 9)])
def test_squares_are_tensors_by_themselves(shape, ends):
    """In either orientation, in codes and scales, too; with a NaN one square is lost."""
    fmt, of_tensor = (Format.parse(f"fp8_e4m3_{of}") for of in (f"b128{ends}_square", f"tensor{ends}"))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).mul(3).exp()
    found = fmt.rounded(x)
    for matrix, whole in zip(x.view(-1, *shape[-2:]), found.view(-1, *shape[-2:]), strict=True):
        lines = [[of_tensor.rounded(s.contiguous()) for s in line.split(128, 1)] for line in matrix.split(128)]
        assert same_bits(whole, torch.cat([torch.cat(line, 1) for line in lines]))
    assert same_bits(fmt.rounded(x.mT).mT, found)
    stored = fmt.encode(x)
    assert stored.codes.shape == x.shape
    assert stored.scales.numel() * (128**2 * 8 + 32) == fmt.stored_bits(shape)
    assert same_bits(fmt.decode(stored), found)
    x.view(-1)[0] = torch.nan
    assert fmt.rounded(x).isnan().sum() == min(shape[-1], 128) * min(shape[-2], 128)


def test_squares_have_a_side():
    for name in ("fp8_e4m3_tensor_square", "fp8_e4m3_row_square", "fp8_e4m3_b1025_square"):
        with pytest.raises(FormatError):
            Format.parse(name)
