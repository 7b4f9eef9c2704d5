"""Golden vectors, read as ``$readmemh`` reads them, against exact arithmetic."""

import re
import struct
from fractions import Fraction

import pytest
import torch
from each import each
from typer.testing import CliRunner

from roundoff.cli import app
from roundoff.formats import Format, FormatError, Rounding, golden_vectors
from roundoff.formats.tools.reference import round_float


def words_of(text):
    """The fields of each word: comments are dropped, and nothing is left but hexadecimal digits and underscores."""
    lines = [line for line in text.splitlines() if not line.startswith("//")]
    assert all(re.fullmatch(r"[0-9a-f]+(_[0-9a-f]+)+", line) for line in lines)
    assert len({len(line) for line in lines}) == 1
    return [[int(field, 16) for field in line.split("_")] for line in lines]


def number_of(code):
    return struct.unpack(">f", code.to_bytes(4, "big"))[0]


@each("rounding", list(Rounding))
def test_floats(rounding):
    fmt = Format.parse("e3m2_finite")
    words = words_of(golden_vectors(str(fmt), "fp32", rounding, 5 if rounding == "stochastic" else 32))
    for code, *random, result in words:
        x, word = number_of(code), (random[0] << 27) + (1 << 26) if random else None
        expected = round_float(x, fmt, rounding, word=word)
        got = fmt.decode(fmt.encode(fmt.values())[:0].new_tensor([result])).item()
        assert struct.pack("d", got) == struct.pack("d", expected), (x, random, got, expected)
    assert {result for *_, result in words} == set(range(64))


def test_fixed_point_by_half_up():
    words = words_of(golden_vectors("q3.4", "q8.7", "nearest-up"))
    for code, result in words:
        k = code - (1 << 16 if code >> 15 else 0)  # in steps of 1/128
        assert result == min(max((k + 4) // 8, -128), 127) & 0xFF
    near = {k * 8 + d for k in range(-128, 128) for d in (-5, -4, -3, -1, 0, 1, 3, 4, 5)}
    assert {k & 0xFFFF for k in near} <= {code for code, _ in words}


def test_few_random_bits():
    words = words_of(golden_vectors("q2.3", "q4.12", "stochastic", 3))
    assert {random for _, random, _ in words} == set(range(8))
    for code, random, result in words:
        k = code - (1 << 17 if code >> 16 else 0)
        whole, rest = divmod(abs(k), 1 << 9)
        whole += Fraction(rest, 1 << 9) + Fraction(2 * random + 1, 16) >= 1
        assert result == min(max(whole if k >= 0 else -whole, -32), 31) & 0x3F, (k, random)


def test_special_values_are_left_out_where_they_have_no_code():
    assert 0x7F800000 in {code for code, _ in words_of(golden_vectors("q3.4"))}  # an infinity saturates
    assert 0x7F800000 not in {code for code, _ in words_of(golden_vectors("q3.4_wrap"))}
    assert any(number_of(code) != number_of(code) for code, _ in words_of(golden_vectors("e4m3")))
    assert not any(number_of(code) != number_of(code) for code, _ in words_of(golden_vectors("q3.4")))


@each("name", ["fp64", "e8m23", "q8.16", "posit16", "lns8_3", "uq4.4"])
def test_other_formats_there_and_back(name):
    words = words_of(golden_vectors(name, name))
    assert len(words) > 100
    assert sum(code == result for code, result in words) > len(words) - 8  # all but NaN and the negative zero


@each(("name", "source"), [("e5m10", "fp32"), ("e8m15", "fp64"), ("q4.20", "fp64"), ("posit16", "fp32")])
def test_samples_of_wide_formats_have_ties_and_the_borders_of_overflow(name, source):
    even, away = (dict(words_of(golden_vectors(name, source, f"nearest-{mode}"))) for mode in ("even", "away"))
    assert sum(even[code] != away[code] for code in even) > 500
    fmt = Format.parse(name)
    if name[0] != "p":
        top = fmt.rounded(torch.tensor([fmt.max * (1 - 1e-14)], dtype=torch.float64), "down").item()
        border = torch.tensor([fmt.max + (fmt.max - top) / 2], dtype=torch.float64)
        assert int(Format.parse(source).encode(border)) & (1 << 64) - 1 in {code & (1 << 64) - 1 for code in even}


def test_a_table_as_input():
    assert words_of(golden_vectors("q1.1", "ternary")) == [[0, 6], [1, 0], [2, 2]]


@each("name", ["int8", "mxfp8_e4m3", "nvfp4", "e4m3_tensor"])
def test_formats_without_codes_of_single_elements_are_refused(name):
    for names in ((name,), ("e4m3", name)):
        with pytest.raises(FormatError, match="a code for each element"):
            golden_vectors(*names)


def test_the_command(tmp_path):
    out = tmp_path / "out.hex"
    run = CliRunner().invoke(app, ["formats", "e2m1", "--vectors", str(out), "--input", "e4m3", "--rounding", "up"])
    assert (run.exit_code, run.stdout.strip()) == (0, str(out))
    assert out.read_text() == golden_vectors("e2m1", "e4m3", "up")
    for wrong in (["e2m1", "e4m3"], ["e2m1", "--plot"], ["e2m1", "--json"], []):
        assert CliRunner().invoke(app, ["formats", *wrong, "--vectors", str(out)]).exit_code == 2
    for stray in (["--input", "q2.4"], ["--rounding", "up"], ["--random-bits", "4"]):
        assert CliRunner().invoke(app, ["formats", "e2m1", *stray]).exit_code == 2
    with pytest.raises(FormatError, match="for rounding='stochastic' only"):
        golden_vectors("e2m1", "e4m3", random_bits=4)
