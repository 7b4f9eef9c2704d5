"""What there is to look at: the table, the description of one format, and the plot."""

import math
import warnings

import matplotlib.image
import pytest
import torch

import roundoff
from roundoff.cli.formats import KEPT
from roundoff.formats import FloatFormat, Format, FormatError
from roundoff.formats.base.names import FAMILIES
from roundoff.formats.tools.plot import plot_formats
from roundoff.formats.tools.table import describe, format_table, neighbours

EVERY_FAMILY = [
    *("fp64", "fp32", "fp16", "e4m3", "q3.4", "uq4.4_wrap", "int8", "uint4_g32", "int8_s0.1", "mxfp8_e4m3"),
    *("mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4", "bfp8_16", "bfp20_8", "posit2", "posit8_0", "posit16", "posit32"),
    *("lns8_3", "lns20_9", "fp8_e4m3_row", "fp8_e4m3_b128_pow2"),
]


def cells(line):
    return [cell for cell in line.split("  ") if cell.strip()]


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_text_parses_back_and_every_format_can_be_shown(name):
    fmt = Format.parse(name)
    assert Format.parse(str(fmt)) == fmt
    assert Format.parse(f" {name.upper()} ") == fmt
    assert hash(Format.parse(str(fmt))) == hash(fmt)
    head, row = format_table([name]).splitlines()
    assert head.startswith("format")
    assert row.split()[0] == str(fmt)
    text = describe(name)
    assert text.startswith(str(fmt))
    assert "`" not in text
    for other in neighbours(fmt):
        assert f"\n{other} " in text
        if not isinstance(other, FloatFormat):  # whose names have tests of their own
            assert Format.parse(str(other)) == other


def test_the_table_has_the_facts():
    lines = format_table(["q3.4", "posit8_1", "int8", "fp16"]).splitlines()
    assert [cell.strip() for cell in cells(lines[1])] == ["q3.4", "8", "7.9375", "0.0625", "0.0625", "float32"]
    assert [cell.strip() for cell in cells(lines[2])] == ["posit8_1", "8", "4096", "0.000244141", "0.0625", "float32"]
    assert [cell.strip() for cell in cells(lines[3])] == ["int8", "8", "float32"]
    assert "65504" in lines[4]
    assert "6.10352e-05" in lines[4]
    assert len(format_table().splitlines()) > 20


def test_the_table_that_the_command_has_kept_is_this_one():
    """The command reads it, since it then needs no PyTorch; families that other tests have registered are left out."""
    ours = [name for family in FAMILIES.values() if family.__module__.startswith("roundoff.") for name in family.shown]
    again = (
        "python -c 'from roundoff.formats.tools.table import *; print(format_table())' > src/roundoff/cli/formats.txt"
    )
    assert KEPT.read_text(encoding="utf-8") == format_table(ours) + "\n", again


def test_a_description_lists_few_numbers_and_compares_neighbours():
    text = describe("mxfp4")
    assert text.splitlines()[0] == "mxfp4_e2m1 (also called mxfp4)"
    assert "4 (4.25 with the share of the block's scale)" in text
    assert "Numbers above zero at a scale of 1 (the same below it):" in text
    listed = text.split("the same below it):")[1].split("\n\n")[0]
    assert [float(number) for number in listed.split()] == [0.5, 1, 1.5, 2, 3, 4, 6]
    rows = {line.split()[0]: cells(line)[1:] for line in describe("q3.4").split("compared with it:\n")[1].splitlines()}
    assert [cell.strip() for cell in rows["q4.3"]] == ["same", "x 2", "x 2", "x 2"]
    assert [cell.strip() for cell in rows["q3.5"]] == ["+1", "x 1.004", "/ 2", "/ 2"]
    assert "none below it" in describe("uq2.2")
    assert "others below it" in describe("q2.2")
    assert "Numbers above zero" not in describe("fp16")


def test_neighbours_differ_in_one_choice():
    assert [str(f) for f in neighbours(Format.parse("posit8_1"))] == ["posit8_0", "posit8", "posit7_1", "posit9_1"]
    assert [str(f) for f in neighbours(Format.parse("posit2_0"))] == ["posit2_1", "posit3_0"]
    assert {"uq3.4", "q3.4_wrap"} <= {str(f) for f in neighbours(Format.parse("q3.4"))}
    assert {"int8_asym", "uint8_sym", "int7"} <= {str(f) for f in neighbours(Format.parse("int8"))}
    around = {str(f) for f in neighbours(Format.parse("fp16"))}
    assert {"e4m10", "e6m10", "e5m9", "e5m11", "e6m9", "e4m11"} <= around
    assert {"mxfp8_e4m3", "mxfp4_e2m1_b16", "mxfp4_e2m1_even"} <= {str(f) for f in neighbours(Format.parse("mxfp4"))}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mxfp5", "did you mean 'mxfp4'"),
        ("mxfp8", "did you mean 'mxfp8_e4m3'"),
        ("fp8", "did you mean 'fp8_e4m3'"),
        ("possit16", "did you mean 'posit16'"),
        ("q3.60", "out of range: fraction_bits"),
        ("int1", "out of range: width"),
        ("int8_s0", "out of range: scale"),
        ("bfp8_0", "out of range: block"),
        ("mxfp4_e2m1_ax9", "out of range: axis"),
        ("posit40", "out of range: width"),
        ("lns8_7", "out of range"),
        ("nvfp4_b0", "out of range: block"),
    ],
)
def test_what_is_no_format_is_named_with_what_is_allowed(name, message):
    for show in (describe, lambda name: format_table([name]), lambda name: plot_formats([name], "never.png")):
        with pytest.raises(FormatError, match=message):
            show(name)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_plot_shows_every_family(tmp_path, suffix):
    path = plot_formats(EVERY_FAMILY, tmp_path / f"formats.{suffix}")
    if suffix == "png":
        image = torch.from_numpy(matplotlib.image.imread(path)[..., :3].copy())
        assert min(image.shape[:2]) > 700
        ink = (image.amin(-1) < 0.9).float().mean().item()
        assert 0.02 < ink < 0.6
    else:
        text = path.read_text(encoding="utf-8")
        assert text.count("<path") > 100


def test_what_the_plot_draws_are_the_distances_of_neighbours(tmp_path, monkeypatch):
    import roundoff.formats.tools.plot as module

    drawn = {}
    draw = module._draw_spacing
    monkeypatch.setattr(module, "_draw_spacing", lambda axes, looks: (draw(axes, looks), drawn.update(axes=axes)))
    plot_formats(["uq2.2", "fp32"], tmp_path / "a.png")
    exact, sampled = drawn["axes"].get_lines()
    numbers = [k / 4 for k in range(1, 15)]
    assert (2 ** exact.get_xdata()).tolist() == pytest.approx(numbers)
    assert (2 ** exact.get_ydata()).tolist() == pytest.approx([0.25 / number for number in numbers])
    for v, spacing in zip(2 ** sampled.get_xdata()[::50], 2 ** sampled.get_ydata()[::50], strict=True):
        ulp = max(2.0 ** (math.frexp(v)[1] - 24), 2.0**-149)
        assert spacing == pytest.approx(ulp / v)


def test_refusals(tmp_path):
    with pytest.raises(FormatError, match="name one or more"):
        plot_formats([], tmp_path / "a.png")
    with pytest.raises(FormatError, match=r"\.png, \.svg, \.pdf, got"):
        plot_formats(["fp16"], tmp_path / "a.jpeg")


def test_a_format_is_described_in_words_of_its_own():
    told = describe("e4m3")
    assert "fields of a" not in told
    assert "compiled loops" not in told
    assert "'fp8_e4m3'" in told
    assert "'fp8_e4m3'" not in describe("e5m10")


@pytest.mark.filterwarnings("default:'e4m3' is the IEEE-like")
def test_who_may_have_meant_another_format_is_told():
    with pytest.warns(UserWarning, match="OCP's E4M3, the FP8 of hardware, whose largest is 448"):
        roundoff.simulate("e4m3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roundoff.simulate("fp8_e4m3")
