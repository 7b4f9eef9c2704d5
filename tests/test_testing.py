"""What ``roundoff.testing`` offers to the tests of others: values of formats, their edges, and the worked example."""

import math
import re
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import roundoff
from roundoff.formats import FloatFormat, Format, FormatError
from roundoff.testing import NotEquivalentError, edge_values, formats, tensors

FAMILIES = ["float", "fixed", "integer", "posit", "lns", "block", "mx", "nvfp4", "scaled", "quarl"]
PAGE = Path(__file__).parents[1] / "docs" / "testing.md"


def is_of(x, fmt):
    again = roundoff.round(x, fmt)
    return torch.equal(again.nan_to_num(1.5), x.nan_to_num(1.5)) and torch.equal(again.signbit(), x.signbit())


@given(formats(exponent_bits=(3, 6), significand_bits=(2, 7)))
def test_formats_stay_within_bounds(fmt):
    assert isinstance(fmt, FloatFormat)
    assert 3 <= fmt.exponent_bits <= 6
    assert 2 <= fmt.significand_bits <= 7
    assert str(fmt) == f"e{fmt.exponent_bits}m{fmt.significand_bits}"


@given(formats())
def test_the_usual_formats_run_in_float32(fmt):
    assert fmt.carrier is torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_drawn_and_read_back(family):
    @given(formats(families=[family]))
    def check(fmt):
        assert Format.parse(str(fmt)) == fmt

    check()


def test_variants_are_drawn():
    for wanted in (
        lambda fmt: not fmt.subnormals,
        lambda fmt: fmt.bias is not None,
        lambda fmt: not fmt.has_infinity,
        lambda fmt: fmt.overflow is not None,
        lambda fmt: fmt.exponent_bits == 1,
    ):
        find(formats(exponent_bits=(1, 8), significand_bits=(0, 23), variants=True), wanted)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.booleans())
def test_tensors_hold_values_of_their_format(data, finite):
    fmt = data.draw(
        formats(families=["float", "fixed", "posit", "lns", "float"], significand_bits=(0, 23), variants=True)
    )
    x = data.draw(tensors(fmt, finite=finite))
    assert x.dtype is fmt.carrier
    assert x.dim() == 1
    assert is_of(x, fmt)
    assert x.isfinite().all() or not finite


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(st.data())
def test_values_that_share_a_scale_are_rounded_together(data):
    fmt = data.draw(formats(families=["block", "mx"]))
    x = data.draw(tensors(fmt, (3, 7)))
    assert is_of(x, fmt)


@given(tensors("e5m10", (2, 100), min_value=0.3, max_value=2))
def test_shapes_and_bounds(x):
    assert x.shape == (2, 100)
    assert x.min() >= 0.3
    assert x.max() <= 2


@given(tensors("e3m1", 8, min_value=0.3, max_value=0.9))
def test_bounds_hold_after_rounding(x):
    assert set(x.tolist()) <= {0.375, 0.5, 0.75}


@given(tensors("e4m3", st.tuples(st.integers(1, 2), st.integers(0, 3))), tensors("e4m3", 5))
def test_shapes_may_be_drawn(x, y):
    assert x.dim() == 2
    assert y.shape == (5,)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda x: (x == 0).any() and x.signbit()[x == 0].any(),
        lambda x: ((x.abs() > 0) & (x.abs() < 2.0**-14)).any(),
        lambda x: (x == 2.0**-24).any(),
        lambda x: (x == 65504).any(),
        lambda x: (x == 1 + 2.0**-10).any(),
        lambda x: (x == 1 - 2.0**-11).any(),
        lambda x: x.isinf().any() and x.isnan().any(),
        lambda x: ((x.abs() > 3) & (x.abs() < 1000) & (x % 1 != 0)).any(),
    ],
)
def test_what_breaks_programs_is_found(wanted):
    find(
        tensors("e5m10", finite=False),
        lambda x: bool(wanted(x)),
        settings=settings(max_examples=500, database=None),
        random=Random(0),  # other seeds find nothing once in thousands of times
    )


def test_edge_values_of_half_precision():
    edges = edge_values("e5m10").tolist()
    expected = [
        2.0**-24, 2.0**-23, 2.0**-14 - 2.0**-24, 2.0**-14, 2.0**-14 + 2.0**-24, 1.0, 1 + 2.0**-10, 1 - 2.0**-11,
        1 + 3 * 2.0**-10, 65504.0, 65472.0, 32752.0, 0.5, 2.0**-12,
    ]  # fmt: skip
    for value in expected:
        assert value in edges
        assert -value in edges
    assert [math.copysign(1, x) for x in edges if x == 0] == [1, -1]
    assert len(edges) == len({(x, math.copysign(1, x)) for x in edges})
    everything = edge_values("e5m10", finite=False)
    assert everything.isnan().sum() == 1
    assert set(everything[everything.isinf()].tolist()) == {math.inf, -math.inf}
    # ties of one bit less: halfway between neighbours
    assert is_of(edge_values("e5m10"), "e5m10")
    assert not is_of(edge_values("e5m10"), "e5m9")


@given(formats(families=FAMILIES, significand_bits=(0, 30), exponent_bits=(1, 11), variants=True))
def test_edges_of_any_format(fmt):
    edges = edge_values(fmt, finite=False)
    assert edges.dtype is fmt.carrier
    assert len(edges) >= 2  # uq0.1 has 0 and 0.5
    if isinstance(fmt, FloatFormat):
        assert is_of(edges, fmt)
        assert {fmt.max, -fmt.max, fmt.smallest_subnormal, fmt.smallest_normal} <= set(edges.tolist())
        assert bool(edges.isnan().any()) == fmt.has_nan
        assert fmt.has_infinity or not edges.isinf().any()  # saturating formats may have one, and not reach it
    else:
        alone = torch.cat([roundoff.round(x.reshape(1), fmt) for x in edges])
        torch.testing.assert_close(alone, edges, rtol=1e-6, atol=0, equal_nan=True)  # nvfp4 is not quite idempotent


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: formats(families=["decimal"]), "decimal"),
        (lambda: formats(families=[]), "families must be"),
        (lambda: formats(exponent_bits=(0, 8)), "exponent_bits"),
        (lambda: formats(significand_bits=(9, 8)), "significand_bits"),
        (lambda: formats(exponent_bits=(1, 1)), "variants=True"),
        (lambda: tensors("e5m99"), "e5m99"),
        (lambda: tensors("e5m10", min_value=2, max_value=1), "widen"),
    ],
)
def test_impossible_wishes_are_refused(make, message):
    with pytest.raises(FormatError, match=message):
        make()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        roundoff.testing.nothing  # noqa: B018


def test_the_worked_example_says_the_truth():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)  # not a path: Hypothesis would read the page as Python
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 4
    for name in tests:
        if name == "test_scaling_changes_nothing":
            with pytest.raises(NotEquivalentError) as failure:
                names[name]()
            assert "a=tensor([0., 0." in " ".join(failure.value.__notes__)  # as the page says
        else:
            names[name]()
