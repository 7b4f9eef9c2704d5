"""The types that PyTorch and ml_dtypes have, and codes and bytes: equal to ours, bit for bit."""

import ml_dtypes
import numpy as np
import pytest
import torch
from comparing import same_bits
from families_exact import around, random_patterns, special
from hypothesis import given
from hypothesis import strategies as st
from strategies import float_formats
from tensor_roundings import by_operations

import roundoff
from roundoff.formats import Format, FormatError, Overflow, QtorchFormat, pack, unpack

TORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
ML = ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
      "float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "bfloat16"]  # fmt: skip


def cast(x, theirs):
    """float32 numbers converted to a type of ml_dtypes and back."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return torch.from_numpy(x.numpy().astype(theirs).astype(np.float32))


def trying(fmt):
    return torch.cat(
        [around(fmt.values(), torch.float32), random_patterns(1 << 20, torch.float32), special(torch.float32)]
    )


@pytest.mark.parametrize("name", ML)
def test_rounding_equals_ml_dtypes(name):
    fmt, theirs = Format.parse(name), getattr(ml_dtypes, name)
    x = trying(fmt)
    if not fmt.has_nan:
        x = x[~x.isnan()]
    expected = cast(x, theirs)
    assert same_bits(roundoff.round(x, fmt), expected)


@pytest.mark.parametrize("name", TORCH)
def test_rounding_equals_torch(name):
    fmt = Format.parse(name)
    x = trying(fmt)
    # torch's casts to types without infinity: some versions saturate, some give NaN; beyond the range is policy.
    if not fmt.has_infinity:
        x = x[roundoff.round(x, fmt, overflow="nan").isfinite()]
    assert same_bits(roundoff.round(x, fmt), x.to(TORCH[name]).float())


@pytest.mark.parametrize("name", ML)
def test_all_codes_equal_ml_dtypes(name):
    fmt, theirs = Format.parse(name), getattr(ml_dtypes, name)
    unsigned = np.uint16 if fmt.bits == 16 else np.uint8
    codes = np.arange(1 << fmt.bits).astype(unsigned)
    numbers = torch.from_numpy(codes.view(theirs).astype(np.float32))
    assert same_bits(fmt.decode(torch.from_numpy(codes.astype(np.int64))), numbers)
    encoded = fmt.encode(numbers)
    assert encoded.dtype == (torch.uint16 if fmt.bits == 16 else torch.uint8)
    known = ~numbers.isnan()
    assert torch.equal(encoded.long()[known], torch.from_numpy(codes.astype(np.int64))[known])
    assert bool(fmt.decode(encoded.long())[~known].isnan().all())


@pytest.mark.parametrize(
    "name", ["e5m10", "e4m3fn", "binary8p1", "binary8p4", "binary16p6", "e5m9_nosub", "e3m2_finite", "e5m0"]
)
def test_codes_are_exact_and_in_order(name):
    fmt = Format.parse(name)
    codes = torch.arange(fmt.largest_code + 1)
    numbers = fmt.decode(codes, torch.float64)
    steps = numbers.diff()
    assert bool((steps >= 0 if not fmt.subnormals else steps > 0).all())
    assert numbers[-1].item() == fmt.max
    assert numbers[1 << fmt.significand_bits].item() == fmt.smallest_normal
    assert same_bits(roundoff.round(numbers, fmt), numbers)
    first = torch.unique(numbers, return_inverse=True)[1]
    assert torch.equal(fmt.encode(numbers).long()[first > 0], codes[first > 0])
    assert fmt.values().max().item() == fmt.max
    assert len(fmt.values()) == len(numbers.unique()) * 2 - 1
    assert fmt.values()[fmt.values() > 0][0].item() == fmt.smallest_subnormal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_codes(dtype):
    x = random_patterns(4096, dtype, finite=True)
    fmt = Format.parse("fp32" if dtype == torch.float32 else "fp64")
    integer = torch.int32 if dtype == torch.float32 else torch.int64
    codes = fmt.encode(x)
    assert torch.equal(codes.to(torch.int64).to(integer), x.view(integer))
    assert same_bits(fmt.decode(codes.to(torch.int64)), x)


@given(float_formats(11, 52), st.integers(0, 2**31))
def test_every_code_of_every_kind_survives(fmt, seed):
    codes = torch.randint(0, fmt.largest_code + 1, (50,), generator=torch.Generator().manual_seed(seed))
    numbers = fmt.decode(codes, torch.float64)
    assert bool(numbers.isfinite().all())
    again = fmt.decode(fmt.encode(numbers).to(torch.int64), torch.float64)
    assert same_bits(again, numbers)


def test_p3109_binary8p4_is_its_own():
    """Values of the P3109 report: infinity at 0x7F, NaN at 0x80, largest 224, smallest 2^-10; not OCP's E4M3."""
    fmt = Format.parse("binary8p4")
    codes = torch.tensor([0x00, 0x01, 0x08, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFF])
    expected = [0.0, 2.0**-10, 2.0**-7, 1.0, 224.0, torch.inf, torch.nan, -(2.0**-10), -torch.inf]
    assert same_bits(fmt.decode(codes), torch.tensor(expected))
    assert fmt != Format.parse("fp8_e4m3")
    assert Format.parse("binary8p4sf") == Format.parse("float8_e4m3fnuz")


def test_e8m0_equals_ml_dtypes_but_for_its_gaps():
    fmt = Format.parse("float8_e8m0fnu")
    numbers = torch.from_numpy(np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert same_bits(fmt.decode(torch.arange(256)), numbers)
    assert torch.equal(fmt.encode(numbers).long(), torch.arange(256))
    x = torch.cat(
        [random_patterns(1 << 18, torch.float32), around(fmt.values()[:-1], torch.float32), special(torch.float32)]
    )
    x = x[(x >= 2.0**-126) | (x <= 0) | x.isnan()]  # ml_dtypes takes the smallest positive numbers up unevenly
    expected = cast(x, ml_dtypes.float8_e8m0fnu)
    assert same_bits(roundoff.round(x, fmt, rounding="nearest-away"), expected)
    halfway = torch.tensor([1.5, 3.0, 2.0**-149, 1.7e38])
    assert roundoff.round(halfway, fmt).tolist() == [2.0, 2.0, 2.0**-127, 2.0**127]
    assert roundoff.round(torch.tensor([3.3e38, torch.inf]), fmt).isnan().all()
    assert roundoff.round(torch.tensor([3.3e38, torch.inf]), fmt, overflow="saturate").tolist() == [2.0**127] * 2
    with pytest.raises(FormatError, match="allowed are nan, saturate"):
        roundoff.round(torch.ones(1), fmt, overflow="infinity")


@pytest.mark.parametrize(("bits", "size"), [(4, 4), (6, 6), (8, 7), (3, 3), (16, 14), (1, 1), (64, 56)])
def test_bytes(bits, size):
    codes = torch.tensor([1, 0, 5, 2, 7, 7, 3]) & ((1 << min(bits, 62)) - 1)
    packed = pack(codes, bits)
    assert (packed.dtype, packed.numel()) == (torch.uint8, size)
    assert torch.equal(unpack(packed, bits, 7), codes)
    string = sum(int(c) << (i * bits) for i, c in enumerate(codes))
    assert bytes(packed.tolist()) == string.to_bytes(size, "little")


@given(st.integers(1, 64), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_bytes_of_any_width(bits, values):
    codes = torch.tensor(values, dtype=torch.int64)
    mask = (1 << bits) - 1
    packed = pack(codes, bits)
    string = sum((v & mask) << (i * bits) for i, v in enumerate(values))
    assert bytes(packed.tolist()) == string.to_bytes(packed.numel(), "little")
    assert [v & mask for v in unpack(packed, bits, len(values)).tolist()] == [v & mask for v in values]


def test_a_tensor_is_stored_at_its_real_size_and_back():
    x = roundoff.round(torch.randn(33, 7, generator=torch.Generator().manual_seed(0)), "fp6_e3m2")
    fmt = Format.parse("fp6_e3m2")
    packed = pack(fmt.encode(x), fmt.bits)
    assert packed.numel() == -(-33 * 7 * 6 // 8)
    assert torch.equal(fmt.decode(unpack(packed, 6, x.numel())).view(x.shape), x)


def test_bad_codes_are_named():
    with pytest.raises(FormatError, match="has no NaN"):
        Format.parse("fp4_e2m1").encode(torch.tensor([torch.nan]))
    with pytest.raises(FormatError, match="codes are integers"):
        pack(torch.ones(2), 4)
    with pytest.raises(FormatError, match="from 1 to 64 bits"):
        pack(torch.ones(2, dtype=torch.int64), 65)
    with pytest.raises(FormatError, match="3 codes of 4 bits are 2 bytes"):
        unpack(torch.zeros(3, dtype=torch.uint8), 4, 3)
    with pytest.raises(FormatError, match="are integers"):
        Format.parse("e5m10").decode(torch.ones(1))
    with pytest.raises(FormatError, match="does not fit"):
        Format.parse("fp64").decode(torch.ones(1, dtype=torch.int64), torch.float32)
    with pytest.raises(FormatError, match="too many to list"):
        Format.parse("fp32").values()


@pytest.mark.parametrize(("e", "m"), [(5, 10), (4, 3), (5, 2), (8, 7), (2, 0), (6, 9), (8, 22), (3, 12)])
def test_the_legacy_mode_equals_qtorch(e, m):
    x = torch.cat([random_patterns(1 << 18, torch.float32, seed=e * 100 + m), special(torch.float32)])
    scaled = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)) * 2.0 ** (2 - (1 << (e - 1)))
    x = torch.cat([x, scaled, scaled * 2.0**-m])
    theirs = roundoff.round(x, f"e{e}m{m}", backend="qtorch")
    fmt = Format.parse(f"qtorch_e{e}m{m}")
    assert same_bits(roundoff.round(x, fmt), theirs)
    assert same_bits(by_operations(fmt, x), theirs)
    fmt.round_into(x, x)
    assert same_bits(x, theirs)


def test_the_legacy_mode_is_no_other():
    fmt = Format.parse("qtorch_e5m10")
    assert fmt == QtorchFormat(5, 10)
    assert Format.parse(str(fmt)) == fmt
    assert roundoff.round(torch.tensor([1e9, torch.inf, -torch.inf]), fmt).tolist() == [131008.0, 131008.0, -131008.0]
    with pytest.raises(FormatError, match="one way to round"):
        roundoff.round(torch.ones(1), fmt, overflow=Overflow.SATURATE)
    with pytest.raises(FormatError, match="does not fit"):
        roundoff.round(torch.ones(1, dtype=torch.float64), fmt)
