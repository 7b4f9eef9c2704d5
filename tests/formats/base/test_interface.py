"""What every format declares, asked of every family; formats of one's own; and the names that families register."""

import pickle
from dataclasses import dataclass, field

import pytest
import torch
from each import each

import roundoff
from roundoff.formats import Format, FormatError, IntegerFormat, Rounding, TableFormat, register
from roundoff.formats.base import names
from roundoff.formats.tools.plot import plot_formats
from roundoff.formats.tools.table import describe, format_table, neighbours
from roundoff.formats.tools.verify import verify
from roundoff.testing import edge_values, formats

FORMATS = [
    *("fp64", "fp32", "fp16", "e5m2_ftz", "e1m3fn", "binary8p4uf", "fp6_e2m3", "bfp8_16", "bfp20_8", "bfp8_16_ax0"),
    *("q3.4", "uq4.4_wrap", "q30.20", "int8", "uint4_g32", "int4_g8_ax0", "int8_s0.1", "lns8_3", "lns20_9"),
    *("mxfp8_e4m3", "mxint8", "nvfp4", "nvfp4_ax0", "posit2", "posit16", "posit32", "fp8_e8m0", "qtorch_e5m10"),
    *("nf4", "ternary", "ternary_b8", "table[-1,-0.5]", "fp8_e4m3_tensor", "fp8_e5m2_b16", "fp8_e4m3_b16_ax0"),
    *("quarl4", "quarl16"),
]
WITHOUT_CODES = ["qtorch_e5m10", "quarl4", "quarl16"]


def test_every_family_is_here():
    assert {type(Format.parse(name)) for name in FORMATS} >= {
        family.kind for family in names.FAMILIES.values() if family.kind.__module__.startswith("roundoff.")
    }


@each("name", FORMATS)
def test_every_fact_is_what_it_says(name):
    fmt = Format.parse(name)
    assert isinstance(fmt.bits, int)
    assert fmt.carrier in (torch.float32, torch.float64)
    assert fmt.fits_in(fmt.carrier)
    assert fmt.native is (name in ("fp32", "fp64"))
    for flag in (fmt.elementwise, fmt.has_nan, fmt.has_infinity):
        assert isinstance(flag, bool)
    assert fmt.bits_per_number >= fmt.bits
    assert fmt.open_block is None or (fmt.open_block > 0 and not fmt.elementwise)
    assert fmt.open_block == {"bfp8_16": 16, "bfp20_8": 8, "uint4_g32": 32, "mxfp8_e4m3": 32, "mxint8": 32,
                              "nvfp4": 16, "nf4": 64, "ternary_b8": 8, "fp8_e5m2_b16": 16}.get(name)  # fmt: skip
    facts = {"max": fmt.max, "min": fmt.min, "smallest": fmt.smallest, "normal": fmt.smallest_normal, "eps": fmt.eps}
    assert all(value is None or isinstance(value, float) for value in facts.values())
    assert (fmt.max is None) == (fmt.min is None)
    if fmt.max is not None:
        assert fmt.min < fmt.max
        assert fmt.smallest is None or 0 < fmt.smallest <= fmt.max
    if fmt.smallest_normal is not None:
        assert fmt.smallest <= fmt.smallest_normal
    bounds = fmt.bounds(fmt.carrier)
    assert bounds is None or bounds[0] < bounds[1]


@each("name", FORMATS)
def test_numbers_facts_and_codes_agree(name):
    fmt = Format.parse(name)
    if fmt.bits > 16:
        with pytest.raises(FormatError, match=r"too many to list|does not list"):
            fmt.values()
        return
    if name in WITHOUT_CODES:
        with pytest.raises(FormatError, match="does not list its numbers"):
            fmt.values()
        with pytest.raises(FormatError, match="has no codes"):
            fmt.encode(torch.ones(3))
        with pytest.raises(FormatError, match="has no codes"):
            fmt.decode(torch.ones(3, dtype=torch.uint8))
        return
    values = fmt.values()
    assert values.dtype == torch.float64
    assert values.isfinite().all()
    assert (values.diff() > 0).all()
    if fmt.elementwise and fmt.max is not None:
        assert (values[0].item(), values[-1].item()) == (fmt.min, fmt.max)
        assert (values[values > 0][0].item() if fmt.max > 0 else None) == fmt.smallest
    if fmt.elementwise and not isinstance(fmt, (IntegerFormat, TableFormat)):  # where every integer is a code
        numbers = fmt.decode(torch.arange(1 << fmt.bits), torch.float64)
        assert (numbers.isnan().any().item(), numbers.isinf().any().item()) == (fmt.has_nan, fmt.has_infinity)
        assert set(numbers[numbers.isfinite()].tolist()) == set(values.tolist())
    positive = torch.rand(4, 64, generator=torch.Generator().manual_seed(0), dtype=fmt.carrier) + 0.1
    rounded = roundoff.round(positive, fmt)
    for dtype in (None, fmt.carrier):
        assert torch.equal(fmt.decode(fmt.encode(positive), dtype).to(fmt.carrier), rounded)
    assert fmt.decode(fmt.encode(positive, "up", None, None)).shape == positive.shape
    with pytest.raises(FormatError, match="random bits"):
        fmt.encode(positive, "stochastic")
    with pytest.raises(FormatError, match="unknown overflow"):
        fmt.encode(positive, overflow="sideways")


@each("name", FORMATS)
def test_edges_are_numbers_around_one_and_the_ends(name):
    fmt = Format.parse(name)
    edges = fmt.edges()
    assert all(isinstance(x, float) for x in edges)
    assert 1.0 in edges
    assert min(x for x in edges if x > 0) <= (fmt.smallest or 2.0**-100)


def test_specials_are_as_declared():
    for name in FORMATS:
        fmt = Format.parse(name)
        edges = edge_values(fmt, finite=False)
        assert edges.isnan().any().item() == fmt.has_nan, name
        assert edges.isinf().any().item() == fmt.has_infinity, name


@dataclass(frozen=True)
class Least(Format):
    """A format with as few methods as one can do with: integers from -limit to limit."""

    name: str
    limit: int

    carrier = torch.float32
    bits = 8

    def __str__(self):
        return self.name

    def fits_in(self, dtype):
        return True

    def round_into(self, source, target, rounding=Rounding.NEAREST_EVEN, overflow=None, random=None):
        target.copy_(source.round().clamp(-self.limit, self.limit))


@dataclass(frozen=True)
class WithFields(Least):
    """Fields of the names of what is declared, with defaults and without."""

    max: float
    axis: int
    block: int
    scale: float
    eps: float | None = None
    smallest: float = 1.0
    open_block: int | None = field(default=None, kw_only=True)


@pytest.mark.parametrize("take", [roundoff.Policy, lambda fmt: roundoff.Rule("mm", format=fmt)])
def test_a_format_without_a_hash_is_refused_where_a_policy_is_made(take):
    with pytest.raises(FormatError, match=r"format listed has no hash .*'list'.*frozen.*a tuple, not a list"):
        take(Least("listed", [3]))


@pytest.fixture
def registry():
    """What is registered in a test is forgotten after it."""
    kept = [(known, dict(known)) for known in (names.FAMILIES, names.ALIASES)]
    yield
    for known, before in kept:
        known.clear()
        known.update(before)
    names.format_called.cache_clear()


def test_the_least_format_has_every_fact():
    fmt = Least("least", 3)
    assert (fmt.native, fmt.elementwise, fmt.open_block, fmt.bits_per_number) == (False, False, None, 8.0)
    assert (fmt.max, fmt.min, fmt.smallest, fmt.smallest_normal, fmt.eps) == (None,) * 5
    assert (fmt.has_nan, fmt.has_infinity, fmt.bounds(torch.float32)) == (False, False, None)
    for asked, message in ((fmt.values, "does not list"), (lambda: fmt.encode(torch.ones(1)), "has no codes")):
        with pytest.raises(FormatError, match=f"least {message}"):
            asked()
    assert neighbours(fmt) == []
    assert format_table([fmt]).splitlines()[1].split() == ["least", "8", "float32"]
    assert describe(fmt).startswith("least\n=====\n")
    assert verify([fmt], quick=True).passed
    assert set(edge_values(fmt).tolist()) == {float(k) for k in range(-3, 4)}
    with pytest.raises(FormatError, match="cannot be plotted"):
        plot_formats([fmt], "never.png")


def test_a_field_may_state_what_is_declared():
    fmt = WithFields("fields", 3, 3.0, axis=0, block=4, scale=0.5, open_block=2)
    assert (fmt.max, fmt.min, fmt.smallest, fmt.eps, fmt.open_block) == (3.0, -3.0, 1.0, None, 2)
    assert fmt.bounds(torch.float32) == (-3.0, 3.0)
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    with pytest.raises(TypeError, match="'max'"):
        WithFields("fields", 3)
    clipped = roundoff.round(torch.tensor([5.0, 1.2], requires_grad=True), fmt, gradient="clipped")
    assert clipped.tolist() == [3.0, 1.0]
    assert {other.block for other in neighbours(fmt)} == {2, 8}


@pytest.mark.usefixtures("registry")
def test_a_registered_format_goes_wherever_formats_go():
    fmt = Least("up_to_3", 3)
    with pytest.raises(FormatError, match=r"unknown format 'up_to_3'.*--allow-import MODULE"):
        Format.parse("up_to_3")
    register(Least, aliases={"up_to_3": fmt}, called="least", shown=["up_to_3"], verified=["up_to_3"],
             drawn={"name": ["up_to_3"], "limit": [3]})  # fmt: skip
    assert Format.parse(" UP_TO_3 ") is fmt
    assert roundoff.Policy("up_to_3").format is fmt
    assert "\nup_to_3 " in format_table()
    report = verify(["up_to_3"], quick=True)
    assert report.passed
    assert sum(check.cases for check in report.checks) > 1000
    formats(families=["least"]).validate()
    x = torch.tensor([-9.0, 1.4, 2.5])
    compiled = torch.compile(lambda x: roundoff.round(x, fmt) + 0, fullgraph=True, backend="aot_eager")
    assert compiled(x).tolist() == roundoff.round(x, fmt).tolist() == [-3.0, 1.0, 2.0]


def squares(x, w):
    return ((x @ w).square().sum() * w).sum()


@pytest.mark.usefixtures("registry")
def test_a_compiled_step_in_a_registered_format_has_the_bits_of_the_eager_one():
    fmt = Least("up_to_9", 9)
    register(Least, aliases={"up_to_9": fmt})
    generator = torch.Generator().manual_seed(0)
    x, w = (2 * torch.randn(4, 4, generator=generator) for _ in range(2))
    simulation = roundoff.simulate(fmt)
    with simulation:
        eager = squares(x, w)
    assert torch.equal(roundoff.compile(squares, roundoff.simulate(fmt))(x, w), eager)
    assert eager != squares(x, w)


@pytest.mark.usefixtures("registry")
def test_registering_again_replaces_what_the_class_had():
    register(Least, aliases={"first": Least("first", 1)})
    register(Least, aliases={"second": Least("second", 2), "first": Least("first", 3)})
    assert Format.parse("first").limit == 3
    register(Least, aliases={"second": Least("second", 4)})
    assert Format.parse("second").limit == 4
    with pytest.raises(FormatError, match="unknown format 'first'"):
        Format.parse("first")


@pytest.mark.usefixtures("registry")
def test_a_class_of_the_same_name_elsewhere_is_another():
    register(Least, aliases={"mine": Least("mine", 1)})
    theirs = dataclass(frozen=True)(type("Least", (Least,), {"__module__": "elsewhere"}))
    register(theirs, aliases={"theirs": theirs("theirs", 1)})
    assert type(Format.parse("mine")) is Least
    with pytest.raises(FormatError, match="the name 'mine' is taken by Least"):
        register(theirs, aliases={"mine": theirs("mine", 1)})


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["ternary", "fp16", "e5m10", "posit16", "q3.4", "mxfp4_e2m1_b16", "table[-1,0.5]"])
def test_a_taken_name_is_refused(name):
    before = Format.parse(name)
    with pytest.raises(FormatError, match=r"the name .* is taken by"):
        register(Least, aliases={name: Least(name, 1)})
    assert Format.parse(name) == before


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"short": Least("long_name", 1)}, "is passed as its text, 'long_name', .*also register it by that name"),
        ({"Upper": Least("Upper", 1)}, "in lower case"),
        ({"half": Format.parse("fp16")}, "must name a format of the class Least"),
    ],
)
def test_a_name_by_which_nobody_would_find_the_format_is_refused(aliases, message):
    with pytest.raises(FormatError, match=message):
        register(Least, aliases=aliases)
