"""Names: suffixes in any order, behind aliases too; messages that say what is allowed."""

import itertools

import pytest
import torch

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError, IntegerFormat, MXFormat, Overflow, ScaledFloatFormat
from roundoff.formats.arithmetic.elements import ScaleRule
from roundoff.formats.base.names import ALIASES
from roundoff.formats.scales.shared_scale import ROW


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        ("fp16_saturate", FloatFormat(5, 10, overflow=Overflow.SATURATE)),
        ("bf16_nosub", FloatFormat(8, 7, subnormals=False)),
        ("fp32_nosub", FloatFormat(8, 23, subnormals=False)),
        ("fp8_e4m3_saturate", FloatFormat(4, 3, "fn", overflow=Overflow.SATURATE)),
        ("float8_e5m2_saturate", FloatFormat(5, 2, overflow=Overflow.SATURATE)),
        ("mxfp4_ceil", MXFormat("mxfp4_e2m1", scale_rule=ScaleRule.CEIL)),
        ("mxfp4_ax0_b16", MXFormat("mxfp4_e2m1", 16, 0)),
        ("uint8_p99_ax0", IntegerFormat(8, False, False, 0, percentile=99.0)),
        ("int8_ax0_g4", IntegerFormat(8, axis=0, group=4)),
        ("int8_row", IntegerFormat(8, group=ROW)),
        ("e2m1_finite_b16", ScaledFloatFormat(FloatFormat(2, 1, "finite"), 16)),
        ("int8_z0_s0.1", IntegerFormat(8, scale=0.1)),
        ("fp8_e8m0_saturate", Format.parse("e8m0fnu_saturate")),
        ("e4m3b7_p3109", FloatFormat(4, 3, "p3109", 7)),
    ],
)
def test_what_stands_behind_a_name(name, fmt):
    assert Format.parse(name) == fmt
    assert Format.parse(str(fmt)) == fmt


@pytest.mark.parametrize(
    ("name", "suffixes"),
    [
        ("e5m10", ["nosub", "saturate"]),
        ("e4m3b5", ["p3109", "nosub", "propagate"]),
        ("uint8", ["sym", "g8", "ax-1", "p99.5"]),
        ("uint4", ["s0.25", "z3"]),
        ("mxfp8_e4m3", ["b16", "ax0", "rceil"]),
        ("bfp8_16", ["even", "ax1"]),
        ("nvfp4", ["b8", "ax0"]),
        ("nf4", ["b8", "ax0"]),
        ("fp8_e4m3_row", ["pow2", "ax0"]),
        ("binary8p4uf", ["nosub", "saturate"]),
    ],
)
def test_suffixes_come_in_any_order(name, suffixes):
    found = {Format.parse("_".join([name, *order])) for order in itertools.permutations(suffixes)}
    assert len(found) == 1
    assert Format.parse(str(*found)) in found


def test_every_alias_is_read_and_its_text_is_canonical():
    for alias, fmt in ALIASES.items():
        assert Format.parse(alias.upper()) == fmt
        assert Format.parse(str(fmt)) == fmt


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp16_saturat", "there is no suffix '_saturat' of 'fp16', which takes .*_nosub, _ftz, _daz, .*_saturate"),
        ("fp8_e4m3_rows", "no suffix '_rows' of 'fp8_e4m3', which takes .*_wrap, _tensor, _row, _bBLOCK, each once"),
        ("fp16_nan_saturate", "there is no suffix '_saturate' of 'fp16'"),
        ("e5m10_nosub_nosub", "no suffix '_nosub' a second time of 'e5m10'"),
        ("e4m3fn_finite", "no suffix '_finite' of 'e4m3fn'"),
        ("posit16_saturate", "no suffix '_saturate' of 'posit16', which takes none"),
        ("int8_b16", "no suffix '_b16' of 'int8', which takes _sym, _asym, _gGROUP, _row, _axAXIS.* in any order"),
        ("mxfp4_g16", "no suffix '_g16' of 'mxfp4', which takes _bBLOCK, _axAXIS, _floor, _ceil, _even, _rceil"),
        ("fp16_wrap", "out of range: e5m10_wrap cannot overflow to 'wrap'"),
        ("uint8_s0.1_z256", "out of range: zero_point must be from 0 to 255"),
        ("int8_s1_g4", "out of range: a given scale is for the whole tensor"),
        ("binary8p9", "P from 1 to K - 1"),
    ],
)
def test_what_cannot_stand_there_is_named_with_what_can(name, message):
    with pytest.raises(FormatError, match=message):
        Format.parse(name)


@pytest.mark.parametrize("wrong", [["e5m10"], 5, None, torch.strided])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(FormatError, match="a format is given as text such as 'e5m10', got"):
        Format.parse(wrong)


@pytest.mark.parametrize("name", ["e5m10", "q3.4", "int8", "nf4"])
def test_what_is_no_source_of_random_bits_is_refused(name):
    for wrong in (5, "seed", [1, 2]):
        with pytest.raises(
            FormatError, match=r"random must be RandomBits\(seed, step, bits\) or an integer tensor, got"
        ):
            roundoff.round(torch.ones(2), name, rounding="stochastic", random=wrong)
