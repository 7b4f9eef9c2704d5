import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from block_exact import exact_block
from comparing import same_bits
from families_exact import DETERMINISTIC, around, random_patterns, rounded
from hypothesis import given
from hypothesis import strategies as st
from tensor_roundings import by_operations

from roundoff.formats import FormatError
from roundoff.formats.arithmetic.elements import ScaleRule
from roundoff.formats.base.modes import Overflow, RandomBits, Rounding
from roundoff.formats.families.mx import ELEMENTS, MXFormat
from roundoff.formats.scales.shared_scale import Blocks

TYPES = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
}


def blocks_of_all_magnitudes(dtype, blocks=24, length=32):
    """Blocks whose numbers lie within a few binades of each other, at scales from subnormal to the largest."""
    generator = torch.Generator().manual_seed(5)
    spread = torch.randn(blocks, length, generator=generator, dtype=torch.float64) * 2.0 ** torch.randint(
        -12, 1, (blocks, length), generator=generator
    )
    scales = torch.linspace(-150, 126, blocks, dtype=torch.float64).round()
    x = (spread.clamp(-1.99, 1.99) * 2.0 ** scales[:, None]).to(dtype)
    x[1] = 0.0
    x[2] = -0.0
    x[3, 4] = torch.nan
    x[4, 5] = -torch.inf
    x[-1, 0] = 2.0**127 * 1.999999
    return x


@pytest.mark.parametrize("rule", ScaleRule)
@pytest.mark.parametrize("name", ELEMENTS)
def test_equals_rational_arithmetic(name, rule):
    fmt = MXFormat(name, scale_rule=rule)
    for dtype, rounding in itertools.product((torch.float32, torch.float64), DETERMINISTIC):
        x = blocks_of_all_magnitudes(dtype)
        exact = [exact_block(row, fmt.element, rule, rounding) for row in x.tolist()]
        expected = torch.tensor([numbers for numbers, _ in exact], dtype=torch.float64).to(dtype)
        assert same_bits(rounded(fmt, x, rounding=rounding), expected)
        assert same_bits(by_operations(fmt, x, rounding=rounding), expected)
        stored = fmt.encode(x, rounding)
        assert stored.scales.flatten().tolist() == [255 if e is None else e + 127 for _, e in exact]
        assert same_bits(fmt.decode(stored, torch.float64).to(dtype), expected)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_element_every_midpoint_and_their_neighbours(name):
    element = ELEMENTS[name]
    points = around(MXFormat(name).values(), torch.float32)
    x = torch.cat([torch.tensor([2.0**element.emax]), points[points.abs() < 2.0 ** (element.emax + 1)]])[None]
    fmt = MXFormat(name, block=x.numel())
    for rounding in DETERMINISTIC:
        expected, _ = exact_block(x[0].tolist(), element, ScaleRule.FLOOR, rounding)
        assert rounded(fmt, x, rounding=rounding)[0].tolist() == expected
        assert by_operations(fmt, x, rounding=rounding)[0].tolist() == expected


@pytest.mark.parametrize("name", TYPES)
def test_codes_and_values_are_those_of_ml_dtypes(name):
    fmt = MXFormat(name)
    codes = torch.arange(2**fmt.bits, dtype=torch.uint8)[None]
    fmt = MXFormat(name, block=codes.numel())
    theirs = torch.from_numpy(codes.numpy().view(TYPES[name]).astype(np.float32))
    for scale in (127, 100, 150):
        stored = Blocks(codes, torch.tensor([[scale]], dtype=torch.uint8))
        assert same_bits(fmt.decode(stored), theirs * 2.0 ** (scale - 127))
    e8m0 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    one = MXFormat(name, block=1)
    code_of_one = (-fmt.element.emin + 1) << fmt.element.significand_bits
    stored = Blocks(torch.full((256,), code_of_one, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8))
    assert same_bits(one.decode(stored), torch.from_numpy(e8m0))


@pytest.mark.parametrize("name", TYPES)
def test_elements_are_rounded_as_ml_dtypes_rounds_them(name):
    fmt = MXFormat(name)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    scale = 2.0 ** (x.abs().amax(1, keepdim=True).log2().floor() - fmt.element.emax)
    theirs = (x / scale).clamp(-fmt.element.max, fmt.element.max).numpy().astype(TYPES[name]).astype(np.float32)
    assert same_bits(rounded(fmt, x), torch.from_numpy(theirs) * scale)


def test_int8_is_twos_complement_with_an_implied_scale():
    fmt = MXFormat("mxint8", block=6)
    stored = fmt.encode(torch.tensor([1.0, -1.0, 1 / 64, -1 / 64, -0.0, 1.999]))
    assert stored.codes.tolist() == [0x40, 0xC0, 0x01, 0xFF, 0x00, 0x7F]
    assert stored.scales.tolist() == [127]
    assert fmt.decode(Blocks(torch.full((6,), 0x80, dtype=torch.uint8), stored.scales)).tolist() == [-2.0] * 6


@pytest.mark.parametrize("rule", ScaleRule)
@pytest.mark.parametrize("name", ELEMENTS)
def test_both_paths_agree_on_random_patterns_also_in_place(name, rule):
    fmt = MXFormat(name, scale_rule=rule)
    wild = random_patterns(40_000, torch.float32)
    finite = random_patterns(40_000, torch.float32, finite=True)
    tame = torch.randn(40_000, generator=torch.Generator().manual_seed(3))
    for x in (wild, finite, tame):
        result = rounded(fmt, x)
        assert same_bits(result, by_operations(fmt, x))
        fmt.round_into(x, x)
        assert same_bits(result, x)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (31,), (33,), (3, 70), (2, 40, 5), (0, 4), (4, 0)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_any_shape_axis_and_order_of_memory(shape, axis):
    fmt = MXFormat("mxfp4_e2m1", axis=axis)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    result = rounded(fmt, x)
    if x.numel() == 0:
        assert result.shape == fmt.decode(fmt.encode(x)).shape == x.shape
        return
    rows = x.reshape(1) if x.dim() == 0 else x.movedim(axis, -1)
    length = rows.shape[-1]
    expected = [
        number
        for row in rows.reshape(-1, length).tolist()
        for start in range(0, length, 32)
        for number in exact_block(row[start : start + 32], fmt.element, ScaleRule.FLOOR, Rounding.NEAREST_EVEN)[0]
    ]  # fmt: skip
    expected = torch.tensor(expected).reshape(rows.shape)
    expected = expected.reshape(()) if x.dim() == 0 else expected.movedim(-1, axis)
    assert same_bits(result.contiguous(), expected.contiguous())
    assert same_bits(fmt.decode(fmt.encode(x)).contiguous(), expected.contiguous())
    if x.dim() == 2:
        other_order = x.t().contiguous().t()
        target = torch.empty_like(other_order)
        fmt.round_into(other_order, target)
        assert same_bits(target.contiguous(), result)
        fmt.round_into(other_order, other_order)
        assert same_bits(other_order.contiguous(), result)


def test_stochastic_is_unbiased_over_all_random_words():
    fmt = MXFormat("mxfp8_e4m3", block=2)
    words = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2).contiguous()
    for value in (1.0 + 1 / 16, -1.0 - 3 / 64, 1.0, 5 / 4096):
        x = torch.tensor([1.5, value]).expand(256, 2).contiguous()
        mean = rounded(fmt, x, rounding=Rounding.STOCHASTIC, random=words)[:, 1].double().mean()
        assert mean.item() == value
    x = torch.randn(4, 70)
    draws = [
        rounded(MXFormat("mxfp4_e2m1"), x, rounding=Rounding.STOCHASTIC, random=RandomBits(1, step))
        for step in (0, 0, 1)
    ]
    assert same_bits(draws[0], draws[1])
    assert not same_bits(draws[0], draws[2])


@given(
    st.sampled_from(sorted(ELEMENTS)),
    st.sampled_from(ScaleRule),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
)
def test_laws(name, rule, numbers):
    fmt = MXFormat(name, block=8, scale_rule=rule)
    x = torch.tensor(numbers)
    y = rounded(fmt, x)
    assert same_bits(rounded(fmt, y), y), "rounding twice is rounding once"
    assert torch.equal(rounded(fmt, -x), -y), "rounding is odd"
    if bool((x.abs() > 2.0**-90).all()):
        assert same_bits(rounded(fmt, x * 2.0**-7) * 2.0**7, y), "a power of two commutes with rounding"


@pytest.mark.parametrize("rule", ScaleRule)
@pytest.mark.parametrize("name", ELEMENTS)
def test_scales_at_their_borders(name, rule):
    """The largest element, powers of two and what rounds to them, and the floats about these, as largest magnitude."""
    fmt = MXFormat(name, block=1, scale_rule=rule)
    element = fmt.element
    for dtype in (torch.float32, torch.float64):
        up_to_two = 2.0 - 2.0 ** -(element.significand_bits + 1)
        x = torch.tensor([element.max, 1.0, up_to_two, 2.0**-126, 2.0**-127, 2.0**-128], dtype=dtype)
        x = torch.cat([x, torch.nextafter(x, x * 2), torch.nextafter(x, x / 2)])
        x = torch.cat([x, x * 2.0**-100, x[:3] * 2.0**100])
        expected = [exact_block([v], element, rule, Rounding.NEAREST_EVEN) for v in x.tolist()]
        assert (fmt.encode(x).scales.int() - 127).tolist() == [scale for _, scale in expected]
        numbers = torch.tensor([block[0] for block, _ in expected], dtype=torch.float64).to(dtype)
        assert same_bits(rounded(fmt, x), numbers)
        assert same_bits(by_operations(fmt, x), numbers)


def test_ceil_and_rceil_do_what_they_promise():
    x = torch.randn(50, 32, generator=torch.Generator().manual_seed(2))
    for name, element in ELEMENTS.items():
        scales = MXFormat(name, scale_rule=ScaleRule.RCEIL).encode(x).scales.int() - 127
        top = x.abs().amax(1, keepdim=True)
        assert bool((top <= element.max * 2.0**scales).all())
        assert bool((top > element.max * 2.0 ** (scales - 1)).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("mxfp5",), "one of mxfp8_e4m3"), (("mxint8", 0), "block .* from 1"), (("mxint8", -32), "got -32"),
     (("mxint8", 32, 9), "axis"), (("mxint8", 32, -1, "round"), "scale_rule must be floor")],
)  # fmt: skip
def test_impossible_formats_are_refused(arguments, message):
    with pytest.raises(FormatError, match=message):
        MXFormat(*arguments)


def test_requests_that_cannot_be_met_are_refused():
    with pytest.raises(FormatError, match="axis 1, and a tensor of shape \\(3,\\)"):
        rounded(MXFormat("mxint8", axis=1), torch.ones(3))
    with pytest.raises(FormatError, match="must be saturate, got 'infinity'"):
        rounded(MXFormat("mxfp8_e5m2"), torch.ones(3), overflow=Overflow.INFINITY)
    with pytest.raises(FormatError, match="need scales \\(2,\\), got \\(1,\\)"):
        MXFormat("mxint8").decode(Blocks(torch.zeros(33, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)))
