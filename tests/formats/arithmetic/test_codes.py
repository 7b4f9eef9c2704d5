"""Codes as they come in: signed, too wide, packed, of torch's own types; and what is none."""

import pytest
import torch
from comparing import same_bits
from each import each
from families_exact import random_patterns, special

from roundoff.formats import Format, FormatError, RandomBits, Rounding, pack, round, unpack
from roundoff.formats.families.integer import Quantized
from roundoff.formats.families.nvfp4 import TwoLevelBlocks
from roundoff.formats.scales.shared_scale import Blocks

ELEMENTWISE = ["e4m3fn", "e4m3fnuz_nosub", "binary8p4ue", "e8m0fnu", "posit8", "posit6_1", "posit16", "q3.4", "uq2.2",
               "q3.4_wrap", "lns8_3", "nf4_unscaled", "e5m10"]  # fmt: skip


@each("name", ELEMENTWISE)
def test_codes_of_another_width_are_refused(name):
    """An integer type of the format's width holds all codes, also if it is signed; two's complement has a sign."""
    fmt = Format.parse(name)
    codes, most = torch.arange(1 << fmt.bits), (1 << fmt.bits) - 1
    expected = fmt.decode(codes)
    has_sign = name.startswith("q")
    for other in (codes + (1 << fmt.bits), codes - (1 << fmt.bits), codes - (5 << fmt.bits), codes | (1 << 40)):
        with pytest.raises(FormatError, match=f"integers from (0|-{1 << fmt.bits - 1}) to {most}, got -?[0-9]+"):
            fmt.decode(other)
    signed = torch.where(codes >= 1 << (fmt.bits - 1), codes - (1 << fmt.bits), codes)
    for held in (signed, signed.to(torch.int8 if fmt.bits <= 8 else torch.int16)):
        if has_sign or torch.iinfo(held.dtype).bits == fmt.bits:
            assert same_bits(fmt.decode(held), expected)
        else:
            with pytest.raises(FormatError, match=f"integers from 0 to {most}, got -"):
                fmt.decode(held)
    assert same_bits(fmt.decode(unpack(pack(codes, fmt.bits), fmt.bits, len(codes))), expected)
    assert fmt.decode(codes[:0]).shape == (0,)
    for other in ([5], "5", None):
        with pytest.raises(
            FormatError, match=f"codes of {fmt} are a tensor of integers.*, got a {type(other).__name__}"
        ):
            fmt.decode(other)


@each(
    ("name", "own"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32), ("fp64", torch.float64)],
)
def test_codes_are_the_bits_of_torchs_own_types(name, own):
    fmt = Format.parse(name)
    x = torch.cat([random_patterns(1 << 14, torch.float32), special(torch.float32), torch.randn(999)])
    x = x.double() if name == "fp64" else x
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[fmt.bits]
    theirs = fmt.rounded(x).to(own)
    one_nan = torch.tensor(torch.nan, dtype=own)
    bits = torch.where(theirs.isnan(), one_nan, theirs).view(integer).long()
    wanted = bits & ((1 << fmt.bits) - 1) if fmt.bits < 64 else bits
    assert torch.equal(fmt.encode(x).long(), wanted)


@each(
    "name", ["fp16", "bf16", "e8m4", "e8m0", "e8m3_nosub", "binary16p9", "fp8_e4m3", "e1m6_finite", "e3m12b-100",
             "e6m9_ftz", "binary8p4ue"],
)  # fmt: skip
def test_codes_do_not_depend_on_the_type_that_holds_the_numbers(name):
    """Codes of float64 are computed in int64, those of float32 in int32; bf16's are the first bits of float32's."""
    fmt = Format.parse(name)
    wide = fmt.decode(torch.arange(1 << fmt.bits), torch.float64)
    narrow = fmt.decode(torch.arange(1 << fmt.bits), torch.float32)
    assert torch.equal(narrow.view(torch.int32), wide.float().view(torch.int32))
    codes = fmt.encode(wide)
    assert torch.equal(fmt.encode(narrow), codes)
    numbers = ~wide.isnan() & ((wide != 0) | (torch.arange(len(wide)) == 0))
    assert torch.equal(codes.long()[numbers], torch.arange(len(wide))[numbers])


def test_negative_posits_held_as_bytes():
    posit8 = Format.parse("posit8")
    assert posit8.decode(torch.tensor([-1, 0x40, -128], dtype=torch.int8))[:2].tolist() == [-(2.0**-24), 1.0]
    assert Format.parse("q3.4").decode(torch.tensor([-1])).item() == -0.0625


@each("name", ["int4", "uint4", "int8_g4", "int3_asym", "mxfp4", "mxint8", "bfp5_4", "nvfp4", "nf4"])
def test_formats_with_scales_take_packed_codes(name):
    fmt, x = Format.parse(name), torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    stored = fmt.encode(x)
    again = unpack(pack(stored[0], fmt.bits), fmt.bits, x.numel()).view(x.shape)
    assert same_bits(fmt.decode(type(stored)(again, *stored[1:])), fmt.decode(stored))
    signed = again - (again >> (fmt.bits - 1) << fmt.bits)
    if name in ("int4", "int8_g4", "int3_asym", "mxint8", "bfp5_4"):
        assert same_bits(fmt.decode(type(stored)(signed, *stored[1:])), fmt.decode(stored))
    else:
        with pytest.raises(FormatError, match=rf"codes of {fmt} are integers from 0 to .*, got {signed.min()}"):
            fmt.decode(type(stored)(signed, *stored[1:]))


def test_codes_without_their_scales_are_refused():
    for name in ("int8", "mxint8", "mxfp4", "nvfp4", "bfp5_4", "fp8_e4m3_row"):
        fmt = Format.parse(name)
        for codes in ([5], None, torch.tensor([5])):
            with pytest.raises(FormatError, match=rf"codes of {fmt} are \w+\(codes, .*got a {type(codes).__name__}"):
                fmt.decode(codes)
        stored = fmt.encode(torch.ones(16))
        assert torch.equal(fmt.decode(tuple(stored)), fmt.decode(stored))
    for function in (pack, unpack):
        with pytest.raises(FormatError, match="codes are a tensor of integers, got a list"):
            function([5], 8)


def test_encode_takes_a_seed_as_round_does():
    x = torch.rand(64, generator=torch.Generator().manual_seed(0))
    for name in ("e4m3", "q3.4", "posit8", "int8", "mxfp4"):
        fmt = Format.parse(name)
        rounded = round(x, name, rounding="stochastic", seed=3)
        assert same_bits(fmt.decode(fmt.encode(x, "stochastic", seed=3)), rounded)
        with pytest.raises(FormatError, match="seed or random"):
            fmt.encode(x, "stochastic", random=RandomBits(3), seed=3)
    int8 = Format.parse("int8")
    assert torch.equal(int8.quantize(x, "stochastic", seed=3).codes, int8.encode(x, "stochastic", seed=3).codes)


@each("codes", [torch.tensor([1.0]), torch.tensor([1j]), torch.tensor([True]),
                                   torch.tensor([0], dtype=torch.uint8).view(torch.float8_e4m3fn)])  # fmt: skip
def test_what_is_no_integer_is_refused(codes):
    for name in ELEMENTWISE:
        if name != "e4m3fn" or codes.dtype != torch.float8_e4m3fn:
            with pytest.raises(FormatError, match=f"codes of {name} are integers.*, got {codes.dtype}"):
                Format.parse(name).decode(codes)
    scale = torch.ones(1)
    with pytest.raises(FormatError, match="codes of int8 are integers"):
        Format.parse("int8").decode(Quantized(codes, scale, scale))
    with pytest.raises(FormatError, match="codes of mxfp6_e2m3 are integers"):
        Format.parse("mxfp6_e2m3").decode(Blocks(codes, scale))
    with pytest.raises(FormatError, match=r"codes of nvfp4 are integers or torch\.float4_e2m1fn_x2"):
        Format.parse("nvfp4").decode(TwoLevelBlocks(codes, scale, scale))


@each("name", ["e4m3fnuz_nosub", "e5m2fnuz_nosub", "binary8p4_nosub", "e4m3fnuz_ftz"])
def test_without_subnormals_there_is_still_one_zero(name):
    fmt = Format.parse(name)
    numbers = fmt.decode(torch.arange(256))
    assert not (numbers == 0)[torch.signbit(numbers)].any()
    kept = numbers[~numbers.isnan()]
    assert same_bits(fmt.decode(fmt.encode(kept)), kept)


@each("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"])
def test_torch_types_of_bytes(name):
    fmt, codes = Format.parse(name), torch.arange(256, dtype=torch.uint8).view(2, 128)
    dtype = getattr(torch, f"float8_{name}")
    theirs = pack(codes, 8, dtype)
    assert (theirs.dtype, theirs.shape) == (dtype, codes.shape)
    assert same_bits(fmt.decode(theirs), theirs.float())
    assert torch.equal(fmt.encode(fmt.decode(codes))[~theirs.float().isnan()], codes[~theirs.float().isnan()])
    assert torch.equal(unpack(theirs), codes.long())
    assert same_bits(Format.parse(f"{name}_saturate").decode(theirs), theirs.float())


def test_pairs_of_four_bits():
    """Two a byte, the first in its low half, as torch's own helpers have them."""
    from torch.onnx._internal.exporter._type_casting import unpack_float4x2_as_uint8

    fmt = Format.parse("float4_e2m1fn")
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)) * 3
    codes = fmt.encode(x)
    pairs = pack(codes, 4, torch.float4_e2m1fn_x2)
    assert (pairs.dtype, pairs.shape) == (torch.float4_e2m1fn_x2, (3, 5))
    assert torch.equal(pairs.view(torch.uint8).flatten(), pack(codes, 4))
    assert unpack_float4x2_as_uint8(pairs).reshape(3, 10).tolist() == codes.tolist()
    assert torch.equal(unpack(pairs), codes.long())
    assert torch.equal(fmt.decode(pairs), fmt.decode(codes))


def test_blocks_in_torch_types():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    for name, dtype in [("mxfp4", torch.float4_e2m1fn_x2), ("mxfp8_e4m3", torch.float8_e4m3fn),
                        ("mxfp8_e5m2", torch.float8_e5m2)]:  # fmt: skip
        fmt = Format.parse(name)
        codes, scales = fmt.encode(x)
        theirs = Blocks(pack(codes, fmt.bits, dtype), pack(scales, 8, torch.float8_e8m0fnu))
        assert same_bits(fmt.decode(theirs), fmt.decode(Blocks(codes, scales)))
    fmt = Format.parse("nvfp4")
    codes, scales, whole = fmt.encode(x)
    theirs = TwoLevelBlocks(pack(codes, 4, torch.float4_e2m1fn_x2), pack(scales, 8, torch.float8_e4m3fn), whole)
    assert same_bits(fmt.decode(theirs), fmt.decode(TwoLevelBlocks(codes, scales, whole)))


def test_refusals():
    codes = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(FormatError, match="its length must be even"):
        pack(codes, 4, torch.float4_e2m1fn_x2)
    with pytest.raises(FormatError, match="codes of 6 bits do not fit"):
        pack(codes, 6, torch.float8_e4m3fn)
    with pytest.raises(FormatError, match="dtype of packed codes must be one of"):
        pack(codes, 8, torch.float16)
    with pytest.raises(FormatError, match="holds 3 8-bit codes"):
        unpack(pack(codes, 8, torch.float8_e4m3fn), 8, 4)
    with pytest.raises(FormatError, match="needs bits and count"):
        unpack(codes)


@each("name", ["posit32", "lns12_1", "q20.20", "q20.20_wrap"])
@each("mode", ["nearest-even", "up"])
def test_numbers_of_a_dtype_that_does_not_hold_the_format_are_encoded(name, mode):
    fmt = Format.parse(name)
    assert not fmt.fits_in(torch.float32)
    x = torch.cat([random_patterns(2000, torch.float32, finite=True), torch.linspace(-3, 3, 999)])
    assert same_bits(fmt.decode(fmt.encode(x, mode)), fmt.rounded(x.double(), Rounding(mode)))
