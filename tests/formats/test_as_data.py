"""Gradients, formats as data, and compilation."""

import pytest
import torch
from comparing import same_bits
from families_exact import random_patterns

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError, RandomBits, Rounding
from roundoff.formats.arithmetic.float_tensors import round_by_mode, round_nearest
from roundoff.formats.base.random_words import hash_tensor, keys
from roundoff.formats.rounding import row_parameters

ROWS = ["e5m10", "bf16", "fp8_e4m3", "e4m3fnuz", "binary8p1", "e5m2b20_nosub", "fp32", "e3m0_saturate"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_format_per_row(dtype):
    x = random_patterns(8 * 6000, dtype).view(8, 60, 100)
    expected = torch.stack([roundoff.round(row, name) for row, name in zip(x, ROWS, strict=True)])
    assert same_bits(roundoff.round(x, ROWS), expected)
    assert same_bits(roundoff.round(x, ["e5m10"]), roundoff.round(x, "e5m10"))
    up = torch.stack([roundoff.round(row, name, rounding="up") for row, name in zip(x, ROWS, strict=True)])
    assert same_bits(roundoff.round(x, ROWS, rounding="up"), up)


def test_random_bits_do_not_depend_on_the_other_rows():
    x = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    how = {"rounding": "stochastic", "random": RandomBits(4)}
    for i, name in enumerate(ROWS):
        assert same_bits(roundoff.round(x, ROWS, **how)[i], roundoff.round(x, name, **how)[i])


def test_bad_rows_are_named():
    with pytest.raises(FormatError, match=r"got 2 for a tensor of shape \(3, 4\)"):
        roundoff.round(torch.ones(3, 4), ["e5m10", "bf16"])
    with pytest.raises(FormatError, match="must be float formats, with a sign, got int8"):
        roundoff.round(torch.ones(1, 4), ["int8"])
    with pytest.raises(FormatError, match="does not fit"):
        roundoff.round(torch.ones(1, 4), ["fp64"])


def test_one_compiled_function_serves_every_width():
    torch._dynamo.reset()
    function = torch.compile(round_nearest, dynamic=True)
    x = random_patterns(4 * 1000, torch.float32).view(4, 1000)
    torch._dynamo.utils.counters.clear()
    for m in range(23):
        formats = [FloatFormat(e, m) for e in (4, 5, 7, 8)]
        y = function(x, row_parameters(formats, x))
        assert same_bits(y, torch.stack([roundoff.round(row, fmt) for row, fmt in zip(x, formats, strict=True)]))
    for names in (ROWS[:4], ROWS[4:]):
        y = function(x, row_parameters(names, x))
        assert same_bits(y, torch.stack([roundoff.round(row, fmt) for row, fmt in zip(x, names, strict=True)]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiled_tensor_operations_give_the_same_bits():
    """One program for several formats and both ways of rounding, since compiling is what takes time."""
    torch._dynamo.reset()
    formats, x = [Format.parse(name) for name in ("e5m10", "bf16", "e4m3fnuz")], random_patterns(1 << 16, torch.float32)
    random = RandomBits(1, 2)
    nearest = [fmt.parameters(torch.float32) for fmt in formats]
    stochastic = [fmt.parameters(torch.float32, Rounding.STOCHASTIC) for fmt in formats]

    def rounded(x, first, second):
        words = hash_tensor(torch.arange(x.numel()), first, second)
        return [round_nearest(x, p) for p in nearest], [round_by_mode(x, p, words) for p in stochastic]

    to_nearest, by_words = torch.compile(rounded)(x, *map(torch.tensor, keys(random)))
    for fmt, a, b in zip(formats, to_nearest, by_words, strict=True):
        assert same_bits(a, roundoff.round(x, fmt)), fmt
        assert same_bits(b, roundoff.round(x, fmt, rounding="stochastic", random=random)), fmt


HOW = [{}, {"rounding": "up", "overflow": "saturate"}, {"rounding": "stochastic", "random": RandomBits(1, 2, 8)}]


def test_rounding_inside_a_compiled_function():
    """Formats in every mode, in one program; numbers are also beyond what the formats have."""
    torch._dynamo.reset()
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 6, 1000)

    pairs = [(name, how) for name in ("e5m10", "fp8_e4m3", "q3.4") for how in HOW]

    def rounded(x):
        return [roundoff.round(x * 2, name, **how) + 1 for name, how in pairs]

    found = torch.compile(rounded, fullgraph=True)(x)
    assert not [pair for pair, a, b in zip(pairs, found, rounded(x), strict=True) if not same_bits(a, b)]


def test_gradients_inside_a_compiled_function():
    torch._dynamo.reset()
    x = torch.randn(100, generator=torch.Generator().manual_seed(0), requires_grad=True)
    fmt = Format.parse("fp8_e4m3")
    function = torch.compile(lambda x: (roundoff.round(x, fmt, gradient="clipped") * 3).sum(), fullgraph=True)
    function(x).backward()
    assert x.grad.tolist() == [3.0] * 100


def test_straight_through_gradients():
    x = torch.tensor([0.1, -3.0, 500.0, -1e9, torch.nan], requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    y = roundoff.round(x, "fp8_e4m3", overflow="saturate", gradient="straight-through")
    assert same_bits(y.detach(), roundoff.round(x, "fp8_e4m3", overflow="saturate"))
    (y * weights)[:4].sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 4.0, 0.0]
    x.grad = None
    (roundoff.round(x, "fp8_e4m3", overflow="saturate", gradient="clipped") * weights)[:4].sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 0.0, 0.0, 0.0]
    assert not roundoff.round(x.detach(), "e5m10", gradient="straight-through").requires_grad


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("int8_s0.1", -12.7, 12.7), ("uint8_s0.5_z7", -3.5, 124.0), ("q3.4", -8.0, 7.9375), ("lns8_3", -234.9, 234.9),
     ("binary8p4uf_saturate", 0.0, 57344.0), ("ternary", -1.0, 1.0), ("posit8", -(2.0**24), 2.0**24)],
)  # fmt: skip
def test_clipped_gradients_end_where_the_numbers_do(name, low, high):
    fmt = Format.parse(name)
    ends = roundoff.round(torch.tensor([low * 2 - 1, high * 2]), fmt)
    assert torch.allclose(ends, torch.tensor([low, high]), rtol=1e-3)
    inside = torch.nextafter(ends, torch.zeros(2))
    outside = torch.nextafter(ends, torch.tensor([-torch.inf, torch.inf]))
    x = torch.cat([inside, ends, outside, torch.tensor([-torch.inf, torch.inf, torch.nan])]).requires_grad_()
    roundoff.round(x, fmt, gradient="clipped").sum().backward()
    assert x.grad.tolist() == [1.0] * 4 + [0.0] * 5


def test_training_through_rounding_reaches_a_number_of_the_format():
    target, weight = torch.tensor([0.3, -0.7]), torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(200):
        optimizer.zero_grad()
        rounded = roundoff.round(
            weight, "fp4_e2m1", rounding="stochastic", random=RandomBits(0, step), gradient="straight-through"
        )
        (rounded - target).square().sum().backward()
        optimizer.step()
    assert (weight - target).abs().max() < 0.25


def test_bad_gradients_are_named():
    with pytest.raises(FormatError, match="'straight-through' or 'clipped', got 'ste'"):
        roundoff.round(torch.ones(1), "e5m10", gradient="ste")
    for name in ("int8", "mxfp4", "mxfp8_e5m2", "bfp8_16", "nvfp4"):  # blocks too: the data decide their range
        with pytest.raises(FormatError, match="from the data"):
            roundoff.round(torch.ones(4), name, gradient="clipped")
