"""Every kind of float format in every rounding mode: exact arithmetic, and all paths alike, bit for bit."""

import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import around, random_patterns, rounded, special
from formats_exact import hash_reference, round_float
from hypothesis import given
from hypothesis import strategies as st
from strategies import DETERMINISTIC, float32_tensors, float_formats
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, FormatError, Overflow, RandomBits, Rounding
from roundoff.formats.base.random_words import keys
from roundoff.formats.cpu import float_choice

KINDS = ["e5m10", "bf16", "e4m3", "e4m3fn", "e4m3fn_saturate", "e4m3fnuz", "e4m3b11fnuz", "e2m1_finite", "e3m2_finite",
         "binary8p1", "binary8p3", "binary8p7", "e5m2b20_nosub", "e5m0", "e5m0b16", "e3m0b4_nosub", "e8m0",
         "e5m10_saturate", "e5m10_nan", "e8m7_saturate", "binary6p3_saturate", "e1m3fn", "fp32", "e6m22"]  # fmt: skip


def reference(fmt, x, rounding, overflow=None, words=None):
    pairs = zip(x.tolist(), words or [None] * len(x), strict=True)
    numbers = [round_float(value, fmt, rounding, overflow, word) for value, word in pairs]
    return torch.tensor(numbers, dtype=torch.float64).to(x.dtype)


def trying(fmt, dtype):
    """Numbers of the format, midpoints, neighbours of both, numbers far below and beyond, and special ones."""
    codes = torch.linspace(1, fmt.largest_code, 60, dtype=torch.float64).long().unique()
    codes = torch.cat([codes, codes + 1, torch.arange(5)]).clamp(max=fmt.largest_code)
    values = torch.cat([fmt.decode(codes, torch.float64), torch.tensor([fmt.max * 2, fmt.smallest_subnormal / 8])])
    return torch.cat([around(values, dtype), random_patterns(60, dtype), special(dtype)])


@each("rounding", DETERMINISTIC)
@pytest.mark.parametrize("name", KINDS)
def test_every_mode_is_exact(name, rounding):
    fmt = Format.parse(name)
    for dtype in (torch.float32, torch.float64):
        x = trying(fmt, dtype)
        expected = reference(fmt, x, rounding)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)
        in_place = x.clone()
        fmt.round_into(in_place, in_place, rounding)
        assert same_bits(in_place, expected)


@pytest.mark.parametrize("name", ["e5m10", "bf16", "e4m3fn", "e5m2", "binary8p3"])
@each("rounding", DETERMINISTIC)
@each("overflow", [Overflow.INFINITY, Overflow.SATURATE, Overflow.NAN])
def test_overflow_can_be_overridden(name, rounding, overflow):
    fmt = Format.parse(name)
    if overflow is Overflow.INFINITY and not fmt.has_infinity:
        with pytest.raises(FormatError, match="cannot overflow to 'infinity': allowed are"):
            roundoff.round(torch.ones(1), fmt, overflow=overflow)
        return
    x = trying(fmt, torch.float32)
    expected = reference(fmt, x, rounding, overflow)
    assert same_bits(roundoff.round(x, fmt, rounding=rounding, overflow=overflow), expected)
    assert same_bits(by_operations(fmt, x, rounding=rounding, overflow=overflow), expected)


@each("bits", [32, 5])
@pytest.mark.parametrize("name", KINDS)
def test_stochastic_rounding_is_exact_given_its_words(name, bits):
    fmt, random = Format.parse(name), RandomBits(seed=11, step=2, bits=bits)
    for dtype in (torch.float32, torch.float64):
        x = trying(fmt, dtype)
        words = roundoff.formats.base.random_words.random_words(random, x).tolist()
        expected = reference(fmt, x, Rounding.STOCHASTIC, words=words)
        how = {"rounding": Rounding.STOCHASTIC, "random": random}
        assert same_bits(rounded(fmt, x, **how), expected)
        assert same_bits(by_operations(fmt, x, **how), expected)
        in_place = x.clone()
        fmt.round_into(in_place, in_place, **how)
        assert same_bits(in_place, expected)


@each("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_kernels_and_tensor_operations_agree_on_random_patterns(name, dtype):
    fmt = Format.parse(name)
    x = random_patterns(1 << 15, dtype, seed=1)
    x = torch.cat(
        [x, torch.randn(1 << 13, dtype=dtype, generator=torch.Generator().manual_seed(0)) * fmt.smallest_normal]
    )
    for rounding in Rounding:
        how = {"rounding": rounding, "random": RandomBits(5) if rounding is Rounding.STOCHASTIC else None}
        assert same_bits(rounded(fmt, x, **how), by_operations(fmt, x, **how))


@given(float_formats(), float32_tensors(), st.sampled_from(DETERMINISTIC))
def test_any_format_is_exact_and_lawful(fmt, x, rounding):
    x = x.double()
    y = rounded(fmt, x, rounding=rounding)
    assert same_bits(y, reference(fmt, x, rounding))
    assert same_bits(y, by_operations(fmt, x, rounding=rounding))
    if fmt.fits_in(torch.float32):
        assert same_bits(rounded(fmt, x.float(), rounding=rounding), y.float())
    finite = y[y.isfinite()]
    assert same_bits(rounded(fmt, finite, rounding=rounding), finite)  # idempotent
    opposite = {Rounding.UP: Rounding.DOWN, Rounding.DOWN: Rounding.UP}.get(rounding, rounding)
    is_odd = rounding is not Rounding.NEAREST_UP  # whose opposite, ties toward minus infinity, is no mode
    assert not is_odd or torch.equal((-rounded(fmt, -x, rounding=opposite)).nan_to_num(7.0), y.nan_to_num(7.0))  # odd
    ordered = rounded(fmt, x[~x.isnan()].sort().values, rounding=rounding, overflow=Overflow.SATURATE)
    assert (ordered[1:] >= ordered[:-1]).all()  # monotone
    if rounding is Rounding.UP:
        assert (y[y.isfinite()] >= x[y.isfinite()].clamp(max=fmt.max)).all()
    if rounding is Rounding.TOWARD_ZERO:
        assert (finite.abs() <= x[y.isfinite()].abs()).all()


@given(float_formats(11, 52))
def test_names_of_all_kinds_parse_back(fmt):
    assert Format.parse(str(fmt)) == fmt
    assert fmt.carrier in (torch.float32, torch.float64)
    assert fmt.fits_in(fmt.carrier)
    assert fmt.fits_in(torch.float64)


@pytest.mark.parametrize("name", ["e5m10", "bf16", "e4m3fnuz"])
def test_stochastic_rounding_has_the_exact_probability(name):
    fmt = Format.parse(name)
    for low, high in ((1.0, 1.0 + fmt.eps), (0.0, fmt.smallest_subnormal), (-1.0 - fmt.eps, -1.0)):
        for quarter in range(1, 8):
            x = low + (high - low) * quarter / 8
            bits = torch.arange(256, dtype=torch.uint8)  # every value once
            for dtype in (torch.float32, torch.float64):
                y = roundoff.round(torch.full((256,), x, dtype=dtype), fmt, rounding="stochastic", random=bits)
                assert set(y.tolist()) == {low, high}
                assert y.double().mean().item() == x  # no bias at all


def test_to_odd_makes_a_second_rounding_harmless():
    x = random_patterns(1 << 16, torch.float64, finite=True)
    x = torch.cat([x, torch.randn(1 << 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))])
    once = roundoff.round(x, "e5m10")
    assert same_bits(roundoff.round(roundoff.round(x, "e11m12", rounding="to-odd"), "e5m10"), once)
    assert not same_bits(roundoff.round(roundoff.round(x, "e11m12"), "e5m10"), once)


def test_stochastic_rounding_is_the_same_for_any_strides_and_threads():
    x = torch.randn(700, 800, generator=torch.Generator().manual_seed(0))
    how = {"rounding": "stochastic", "random": RandomBits(1, 2)}
    expected = roundoff.round(x, "e5m10", **how)
    assert same_bits(roundoff.round(x.t().contiguous().t(), "e5m10", **how), expected)
    assert same_bits(roundoff.round(torch.stack([x, x], -1)[..., 0], "e5m10", **how), expected)
    assert not same_bits(roundoff.round(x, "e5m10", rounding="stochastic", random=RandomBits(1, 3)), expected)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert same_bits(roundoff.round(x, "e5m10", **how), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["e5m10", "bf16", "e4m3fnuz"])
def test_each_chunk_of_elements_has_random_words_of_its_own(name, monkeypatch):
    monkeypatch.setattr(float_choice, "CHUNK", 100)  # 2^32 elements otherwise
    random, x = RandomBits(3, 1), torch.randn(250, generator=torch.Generator().manual_seed(0))
    words = torch.tensor([hash_reference(i % 100, *keys(random, i // 100)) for i in range(250)])
    found, expected = (roundoff.round(x, name, rounding="stochastic", random=source) for source in (random, words))
    assert same_bits(found, expected)


def test_a_random_word_of_zero_rounds_down_whatever_is_dropped():
    """Found by a search: one word in four billion is 0."""
    random, place = RandomBits(30465), 51203
    assert hash_reference(place, *keys(random)) == 0
    for name, gap in (("e5m10", 2.0**-10), ("bf16", 2.0**-7), ("e4m3", 2.0**-3), ("e8m12", 2.0**-12)):
        x = torch.full((place + 1,), 1 + gap - 2.0**-23)  # all dropped bits are 1
        assert roundoff.round(x, name, rounding="stochastic", random=random)[place] == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rounding": "stochastic"}, r"random=RandomBits\(seed, step\)"),
        ({"random": RandomBits(0)}, "for rounding='stochastic' only"),
        ({"rounding": "stochastic", "random": torch.zeros(3, dtype=torch.int32)}, "shape and device"),
        ({"rounding": "neerest-even"}, "did you mean 'nearest-even'"),
        ({"overflow": "wrap"}, "cannot overflow to 'wrap'"),
        ({"overflow": "clip"}, "allowed are infinity, saturate, nan, wrap"),
        ({"backend": "qtroch"}, "'native' or 'qtorch'"),
        ({"backend": "qtorch", "rounding": "up"}, "leave out rounding"),
    ],
)
def test_bad_choices_are_named(how, message):
    with pytest.raises(FormatError, match=message):
        roundoff.round(torch.ones(2), "e5m10", **how)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("e5m10b2000", "exponents -1022 to 1023"),
        ("e2m1_finite_nan", "cannot overflow to 'nan': allowed are saturate"),
        ("binary8p8", "precision P from 1 to K - 1"),
        ("float8_e4m3fnu", "did you mean 'float8_e4m3fn"),
        ("e1m3", "exponent_bits of a float format must be an integer from 2 to 11"),
    ],
)
def test_bad_names_are_named(name, message):
    with pytest.raises(FormatError, match=message):
        Format.parse(name)
