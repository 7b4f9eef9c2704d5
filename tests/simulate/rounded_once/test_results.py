"""Elementwise arithmetic in every mode: the exact result rounded once, whatever kernels of PyTorch round in between."""

import itertools
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from comparing import same_bits
from exact_arithmetic import exact, has_exact, in_carrier, operands, to_odd
from families_exact import DETERMINISTIC
from formats_exact import hash_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import roundoff
from roundoff import RandomBits, Rounding, simulate
from roundoff.formats import Format
from roundoff.formats.base.modes import NEAREST
from roundoff.formats.base.random_words import CHUNK, keys, random_words
from roundoff.simulate.native import stand_ins
from roundoff.simulate.rounded_once import loops as exact_loops
from roundoff.simulate.rounded_once import results as exact_results
from roundoff.simulate.rounded_once.carrier_rounding import CarrierRounding
from roundoff.simulate.rounded_once.operations import carrier_rounding, exact_to_nearest, kernel
from roundoff.simulate.rounded_once.results import FormulaCall, ResultRounding, result

CARRIERS = [torch.float32, torch.float64]
FORMULAS = {
    "sum": (2, (1.0, -1.0)), "product": (2, (1.0,)), "quotient": (2, (1.0,)), "root": (1, (1.0,)),
    "fused": (3, (1.0, -1.0, 0.3)), "divided": (3, (1.0, 0.3)), "interpolation": (3, (1.0,)),
}  # fmt: skip
OTHERS = [mode for mode in Rounding if mode not in NEAREST]
BITS = RandomBits(5, 7)


def cancelling(formula, x):
    """Some operands changed so that little is left of their sum."""
    few = slice(0, len(x[0]) // 4)
    if formula == "sum":
        x[0][few] = -x[1][few] * (1 + 2.0**-20)
    elif formula in ("fused", "divided"):
        x[0][few] = -(x[1] * x[2] if formula == "fused" else x[1] / x[2])[few]
    return x


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
@pytest.mark.parametrize("formula", FORMULAS)
@settings(max_examples=4)
@given(kind=st.sampled_from(["near", "wide", "far"]), seed=st.integers(0, 2**32))
def test_formulas_are_exact(formula, dtype, kind, seed):
    """In the loops and as tensor operations, against rational numbers."""
    count, factors = FORMULAS[formula]
    x = cancelling(formula, [operands(kind, (40,), dtype, seed + i) for i in range(3)])
    rows = list(zip(*(one.tolist() for one in x), strict=True))
    words = random_words(BITS, x[0]).tolist()
    for factor, mode in itertools.product(factors, OTHERS):
        way = ResultRounding(formula, dtype, CarrierRounding(mode))
        call = FormulaCall(formula, tuple(x[:count]), factor)
        found = result(call, {dtype: way}, lambda: BITS)
        on_device = exact_results._on_device(call, x[0], way, BITS if way.draws else None)
        assert same_bits(found, on_device)
        v = torch.tensor(factor, dtype=dtype).item()
        for row, got, word in zip(rows, found.tolist(), words, strict=True):
            if has_exact(formula, row):
                assert got in in_carrier(exact(formula, *row, v), dtype, mode, word), (row, got)


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
@pytest.mark.parametrize("formula", FORMULAS)
def test_special_numbers_are_those_of_pytorch(formula, dtype):
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.5, -3.0], dtype=dtype)
    x, a, b = torch.cartesian_prod(special, special, special).unbind(1)
    calls = {
        "sum": x + a, "product": x * a, "quotient": x / a, "root": x.sqrt(), "fused": torch.addcmul(x, a, b),
        "divided": torch.addcdiv(x, a, b), "interpolation": torch.lerp(x, a, b),
    }  # fmt: skip
    call = FormulaCall(formula, (x, a, b)[: FORMULAS[formula][0]])
    for mode in (Rounding.UP, Rounding.TO_ODD):
        found = result(call, {dtype: ResultRounding(formula, dtype, CarrierRounding(mode))}, lambda: BITS)
        endless = ~calls[formula].isfinite()
        assert same_bits(found[endless], calls[formula][endless])
        zeros = (calls[formula] == 0) & ~endless
        assert same_bits(found[zeros], calls[formula][zeros])


def test_zero_from_a_difference_is_negative_when_rounding_down():
    x = torch.tensor([1.5, 0.0, -0.0, 0.0])
    y = torch.tensor([-1.5, -0.0, -0.0, 0.0])
    with simulate("e5m10", rounding="down"):
        assert (x + y).signbit().tolist() == [True, True, True, False]  # IEEE 754-2019, 6.3
        assert torch.addcmul(x, y, torch.ones(4)).signbit().tolist() == [True, True, True, False]
        assert (x - x).signbit().all()
    with simulate("e5m10", rounding="up"):
        assert (x + y).signbit().tolist() == [False, False, True, False]


OPERATIONS = {
    "sum": lambda x, a, b: x + a,
    "product": lambda x, a, b: x * a,
    "quotient": lambda x, a, b: x / a,
    "root": lambda x, a, b: x.sqrt(),
    "fused": torch.addcmul,
    "divided": torch.addcdiv,
    "interpolation": torch.lerp,
}
FORMATS = [
    "e8m7", "e5m10", "e4m3", "e8m8", "e8m10", "e4m3fn", "e5m2_saturate", "e5m10_nosub", "posit8", "posit16_3", "q3.4",
    "posit16", "posit28", "q9.9", "e8m12", "e11m17", "e8m24", "e11m30", "e8m50",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=5)
@given(
    formula=st.sampled_from(list(OPERATIONS)), kind=st.sampled_from(["near", "wide", "far"]), seed=st.integers(0, 2**32)
)
def test_results_are_the_exact_ones_rounded_once(name, formula, kind, seed):
    """Operands are numbers of the format, in every mode; the oracle rounds to odd in float64, which has room for it."""
    fmt = Format.parse(name)
    dtype = fmt.carrier
    x = cancelling(formula, [operands(kind, (50,), dtype, seed + i) for i in range(3)])
    x = [roundoff.round(one, fmt) for one in x]
    rows = [row for row in zip(*(one.tolist() for one in x), strict=True) if has_exact(formula, row)]
    x = list(torch.tensor(rows, dtype=torch.float64).view(-1, 3).to(dtype).unbind(1))
    values = torch.tensor([to_odd(exact(formula, *row, 1)) for row in rows], dtype=torch.float64)
    for mode in DETERMINISTIC:
        if (
            mode is Rounding.NEAREST_EVEN
            and formula in ("fused", "divided", "interpolation")
            and dtype == torch.float32
        ):
            continue  # as PyTorch's kernels for half precision
        with simulate(fmt, rounding=mode):
            found = OPERATIONS[formula](*x)
        expected = roundoff.round(values, fmt, rounding=mode).to(dtype)
        assert torch.equal(found.nan_to_num(7.5), expected.nan_to_num(7.5)), [
            (mode, row, f, e) for row, f, e in zip(rows, found.tolist(), expected.tolist(), strict=True) if f != e
        ][:3]


@pytest.mark.parametrize("mode", [m for m in DETERMINISTIC if m not in NEAREST])
def test_logarithmic_numbers_and_integers_are_their_neighbours(mode):
    """A product is the number next to the exact one on the side that the mode says."""
    fmt = Format.parse("lns10_4")
    values = fmt.values().float()
    x, a = (values[torch.randint(len(values), (400,), generator=torch.Generator().manual_seed(i))] for i in range(2))
    with simulate(fmt, rounding=mode):
        found = x * a
    products = x.double() * a.double()
    inside = (products.abs() < fmt.max) & (products != 0)
    at = torch.bucketize(products, values.double())
    below, above = values[(at - 1).clamp(min=0)], values[at.clamp(max=len(values) - 1)]
    representable = values[at.clamp(max=len(values) - 1)].double() == products
    expected = {
        Rounding.UP: above,
        Rounding.DOWN: torch.where(representable, above, below),
        Rounding.TOWARD_ZERO: torch.where(representable | (products < 0), above, below),
    }.get(mode)
    if expected is not None:
        assert torch.equal(found[inside], expected[inside])
    assert ((found == above) | (found == below))[inside].all()


def test_all_pairs_of_a_small_format():
    fmt = Format.parse("e4m3")
    values = fmt.values()
    x, a = (grid.reshape(-1) for grid in torch.meshgrid(values, values, indexing="ij"))
    for mode in DETERMINISTIC:
        with simulate(fmt, rounding=mode):
            found = x.float() + a.float(), x.float() - a.float(), x.float() * a.float(), x.float() / a.float()
        # Exact in float64, or a quotient that is far enough from all borders.
        for one, wide in zip(found, (x + a, x - a, x * a, x / a), strict=True):
            expected = roundoff.round(wide, fmt, rounding=mode).float()
            assert torch.equal(one.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["e5m10", "e8m7", "e5m9", "posit16_3"])
def test_roots_of_all_numbers(name):
    fmt = Format.parse(name)
    values = fmt.values()
    values = values[values > 0]
    exactly = torch.from_numpy(np.sqrt(values.numpy()))  # correctly rounded, and far enough from all borders
    for mode in DETERMINISTIC:
        with simulate(fmt, rounding=mode):
            found = values.float().sqrt()
        assert torch.equal(found, roundoff.round(exactly, fmt, rounding=mode).float())


def test_roots_are_the_same_alone_and_in_any_memory():
    """PyTorch's library takes other steps for the ends of a vector."""
    x = roundoff.round(torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 100, "e5m10")
    with simulate("e5m10"):
        expected = x.sqrt()
        assert torch.equal(torch.stack([one.sqrt() for one in x]), expected)
        assert torch.equal(x.view(50, 20).T.sqrt().T.reshape(-1), expected)
        assert torch.equal(x[::3].sqrt(), expected[::3])
        assert torch.equal(x**0.5, expected)
        assert torch.equal(torch._foreach_sqrt([x, x[5:]])[1], expected[5:])
        assert torch.equal(x.clone().sqrt_(), expected)
        torch._foreach_sqrt_(copies := [x.clone(), x[::2].clone()])
        assert torch.equal(copies[1], expected[::2])
        assert torch.equal(torch.sqrt(x, out=torch.empty(1000)), expected)
        assert torch.equal(torch.arange(9).sqrt(), roundoff.round(torch.arange(9.0).double().sqrt().float(), "e5m10"))


def variants(x, y, z, wide, single, many):
    """A list for each result, with the many ways to ask for its arithmetic. 0.3 is there as a number and as tensors."""
    t = x.clone().view(20, 5).T.contiguous().T
    return [
        [x + y, x.clone().add_(y), torch.add(x, y, out=torch.empty_like(x)), torch._foreach_add([x], [y])[0], y + x,
         (t + y.view(20, 5)).reshape(-1), torch.sub(x, y, alpha=-1), x.view(4, 25).add(y.view(4, 25)).view(-1)],
        [x - y, x.clone().sub_(y), torch._foreach_sub([x], [y])[0], torch.rsub(y, x), torch.add(x, y, alpha=-1)],
        [x * 0.3, 0.3 * x, x * wide, x * many, torch._foreach_mul([x], 0.3)[0], x.clone().mul_(0.3),
         torch._foreach_mul([x], [0.3])[0], torch._foreach_mul([x], single)[0],
         x * single.view(1), (x.view(20, 5) * many[:5]).view(-1)],
        [x / y, x.clone().div_(y), torch._foreach_div([x], [y])[0], torch.true_divide(x, y)],
        [x.reciprocal(), x**-1, x.clone().reciprocal_(), torch._foreach_reciprocal([x])[0], torch.ones_like(x) / x],
        [x * x, x**2, x.square(), x.clone().pow_(2), torch._foreach_pow([x], 2)[0]],
        [torch.add(x, y, alpha=0.3), x.clone().add_(y, alpha=0.3), torch._foreach_add([x], [y], alpha=0.3)[0],
         torch.addcmul(x, y, many), torch.sub(x, y, alpha=-0.3), torch.rsub(y, x, alpha=-0.3)],
        [torch.addcmul(x, y, z, value=0.3), x.clone().addcmul_(y, z, value=0.3),
         torch._foreach_addcmul([x], [y], [z], 0.3)[0], torch._foreach_addcmul([x], [y], [z], [0.3])[0],
         torch._foreach_addcmul([x], [y], [z], single.view(1))[0]],
        [torch.addcdiv(x, y, z, value=0.3), x.clone().addcdiv_(y, z, value=0.3),
         torch._foreach_addcdiv([x], [y], [z], [0.3])[0]],
        [torch.lerp(x, y, 0.3), x.clone().lerp_(y, 0.3), torch._foreach_lerp([x], [y], 0.3)[0],
         torch.lerp(x, y, many)],
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["up", "to-odd"])
def test_all_variants_of_an_operation_agree(mode):
    for name, dtype in (("e5m6", torch.float32), ("e8m20", torch.float64)):
        generator = torch.Generator().manual_seed(0)
        x, y, z = (roundoff.round(torch.randn(100, generator=generator).to(dtype), name) for _ in range(3))
        wide, single = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.3, dtype=dtype)
        many = single.repeat(100)
        with simulate(name, rounding=mode):
            for same in variants(x, y, z, wide, single, many):
                for other in same[1:]:
                    assert torch.equal(same[0], other)


def test_numbers_that_are_kept_keep_the_sign_of_zero():
    x = torch.tensor([-0.0], dtype=torch.float64)
    with simulate("e5m10", rounding="toward-zero"):
        assert [bool((x + s).signbit()) for s in (0.0, -0.0, 0.0)] == [False, True, False]


def test_in_place_lists_and_overlapping_memory():
    x = roundoff.round(torch.randn(10, generator=torch.Generator().manual_seed(0)), "e5m6")
    with simulate("e5m6", rounding="up"):
        expected = x + 0.1, x * x
        tensors = [x.clone(), x.clone()]
        torch._foreach_add_(tensors, 0.1)
        assert torch.equal(tensors[1], expected[0])
        y = x.clone()
        y.mul_(y)
        assert torch.equal(y, expected[1])
        memory = torch.cat((x, x))
        memory[:10].add_(memory[10:])
        assert torch.equal(memory[:10], x + x)


def test_booleans_are_added_as_ones_and_zeros():
    x, yes = torch.tensor([1.5, -2.0]), torch.tensor([True, False])
    for mode in ("nearest-even", "stochastic", "toward-zero"):
        with simulate(roundoff.Policy("e5m7", rounding=mode)):
            assert (x + yes).tolist() == (yes + x).tolist() == [2.5, -2.0]
            with pytest.raises(RuntimeError, match="bool tensor is not supported"):
                x - yes


def test_what_is_not_arithmetic_of_floats_is_left_to_pytorch():
    with simulate("e5m6", rounding="up"):
        assert (torch.arange(3) + torch.arange(3)).tolist() == [0, 2, 4]
        assert torch.equal(torch.ones(2) + torch.arange(2), torch.tensor([1.0, 2.0]))
        assert (torch.ones(2, dtype=torch.complex64) * 1j).tolist() == [1j, 1j]
        assert torch.div(torch.tensor([7.0]), 2.0, rounding_mode="floor").item() == 3
        assert torch.ones(0).add(1).shape == (0,)
        with pytest.raises(RuntimeError, match="must match"):
            torch.ones(2) + torch.ones(3)
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(2).add_(torch.ones(3, 2))
        for subnormal in (torch.ones(1) * 2.0**-149, torch.ones(1, dtype=torch.float64) * 2.0**-140):
            assert (subnormal * 0.5).item() == 2.0**-20


def test_the_ends_of_the_carrier():
    big, tiny = torch.tensor([3e38]), torch.tensor([1e-30])
    expected = {
        "toward-zero": (3.3895313892515355e38, 0.0),
        "up": (math.inf, 2.0**-133),
        "down": (3.3895313892515355e38, 0.0),
    }
    for mode, (overflow, underflow) in expected.items():
        with simulate("e8m7", rounding=mode):
            assert (big * 2).item() == overflow
            assert (tiny * tiny).item() == underflow
    with simulate("posit16_3"):  # maxpos 2^112
        assert (torch.tensor([2.0**100]) * 2.0**100).item() == 2.0**112
        assert (torch.tensor([2.0**-100]) * 2.0**-100).item() == 2.0**-112
    for mode in ("up", "stochastic"):
        with simulate("posit16_3", rounding=mode):
            assert (torch.tensor([-(2.0**100)]) * 2.0**100).item() == -(2.0**112)


def test_rare_increments_of_stochastic_rounding_come_with_their_probability():
    n = 1 << 23
    with simulate("e8m7", rounding="stochastic", seed=0):
        ups = int((torch.ones(n) + torch.tensor(2.0**-26) > 1).sum())  # the probability is 2^-19
        downs = int((torch.ones(n) - torch.tensor(2.0**-27) < 1).sum())  # of a place half as wide: 2^-19 again
        roots = torch.full((n // 8,), 2.0).sqrt()
    assert 5 <= ups <= 30
    assert 5 <= downs <= 30
    below = 1.4140625
    fraction = (math.sqrt(2) - below) * 2**7
    assert abs(float((roots > below).double().mean()) - fraction) < 4 * math.sqrt(fraction * (1 - fraction) / (n // 8))


_draw, _count = exact_loops._draw_words, exact_loops._block_size


@njit
def drawn(words, first, last, seed, step):
    at = first
    while at < last:
        count = _count(at, last)
        _draw(words[at - first :], at, count, seed, step)
        at += count


def test_random_words_of_elements_beyond_two_to_the_32_have_the_keys_of_the_next_chunk():
    found, first = np.zeros(8, np.uint32), CHUNK - 4
    drawn(found, first, first + 8, BITS.seed, BITS.step)
    assert found.tolist() == [hash_reference(i % CHUNK, *keys(BITS, i // CHUNK)) for i in range(first, first + 8)]


def test_wide_formats_are_rounded_stochastically_from_the_exact_sum():
    """A format nearly as wide as float64 leaves it few bits to see small increments by."""
    n = 1 << 20
    x = torch.ones(n, dtype=torch.float64)
    with simulate("e8m50", rounding="stochastic"):
        ups = int((x + 2.0**-66 > 1).sum())
    assert 5 <= ups <= 30  # 2^-16 of them


@pytest.mark.parametrize("mode", ["down", "stochastic"])
def test_watching_changes_nothing(mode):
    def program():
        x = torch.linspace(-2, 3, 300)
        return torch.addcmul(x.square() + 0.1, x, x / 3, value=0.7).abs().sqrt_() - x.lerp(x.flip(0), 0.2)

    with simulate("e5m6", rounding=mode, seed=2):
        plain = program()
    with simulate("e5m6", rounding=mode, seed=2, observe=True, shadow="fp64") as simulation:
        watched = program()
    assert same_bits(plain, watched)
    assert simulation.report().table["results"].sum() > 0


def test_rounding_twice_is_harmless_where_it_is_left():
    """Products and quotients at the lower end, where subnormal numbers of the carrier are in between."""
    for name, formulas in (("e8m7", "*/"), ("e8m10", "/"), ("e5m10", "*/+"), ("e8m8", "*")):
        fmt = Format.parse(name)
        p = fmt.significand_bits + 1
        significands = torch.arange(1 << (p - 1), 1 << p, 1 + (p > 8) * 13).double() / (1 << (p - 1))
        x, a = (grid.reshape(-1) for grid in torch.meshgrid(significands, significands, indexing="ij"))
        for k in range(12):
            half = fmt.emin // 2
            cases = {
                "*": (x * 2.0**half, a * 2.0 ** (fmt.emin - half - k)),
                "/": (x * 2.0 ** (fmt.emin + 1), a * 2.0**k),
                "+": (x, a * 2.0**-k),
            }
            for formula in formulas:
                one, other = (roundoff.round(operand, fmt) for operand in cases[formula])
                apply = {"*": torch.mul, "/": torch.div, "+": torch.add}[formula]
                with simulate(fmt):
                    found = apply(one.float(), other.float())
                # In float64 products and sums are exact, and quotients far enough from borders.
                assert torch.equal(found, roundoff.round(apply(one, other), fmt).float()), (name, formula, k)


def test_what_takes_the_exact_way_to_nearest_even():
    """PyTorch's kernels stay where rounding twice is harmless, those for roots never."""

    def chosen(name, dtype=torch.float32):
        fmt = Format.parse(name)
        return {f: how.mode.value for f in FORMULAS if (how := carrier_rounding(fmt, dtype, Rounding.NEAREST_EVEN, f))}

    for name in ("e5m10", "e8m7", "e4m3", "q3.4", "posit8"):
        assert chosen(name) == {"root": "nearest-even"}
    assert chosen("e8m8") == {"product": "to-odd", "root": "nearest-even"}
    assert chosen("e5m10", torch.float64) == {"root": "nearest-even"}
    assert chosen("int8") == chosen("mxfp8_e4m3") == chosen("lns8_3") == {"root": "nearest-even"}
    several = dict.fromkeys(("fused", "divided", "interpolation"), "to-odd")
    assert chosen("e8m24", torch.float64) == {"root": "nearest-even", **several}
    assert set(chosen("e8m25", torch.float64)) == set(FORMULAS) - {"product"}
    assert chosen("e8m51", torch.float64) == {"root": "nearest-even"}
    assert chosen("fp64", torch.float64) == {}
    assert set(chosen("posit16_3")) == {"product", "quotient", "root"}
    assert exact_to_nearest(Format.parse("e8m7")) != exact_to_nearest(Format.parse("e8m8"))


def test_carriers_as_formats():
    x, y = torch.rand(50, dtype=torch.float64) + 0.1, torch.rand(50, dtype=torch.float64)
    with simulate("fp64"):
        assert torch.equal((x * y).sqrt(), (x * y).sqrt())
    expected = torch.tensor(
        [
            max(in_carrier(Fraction(a) * Fraction(b), torch.float64, Rounding.UP))
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    with simulate("fp64", rounding="up"):
        assert torch.equal(x * y, expected)


def test_the_audit_tells_what_is_rounded_twice():
    def program():
        x = torch.linspace(0.1, 1, 8)
        y = (x * x + 1).sqrt().exp()
        return torch.relu(y.view(2, 4) @ y.view(4, 2)).floor()

    def kinds(simulation):
        table = simulation.audit().table
        return dict(zip(table["operation"], table["treatment"], strict=True))

    with simulate("e5m6", rounding="up") as simulation:
        program()
    found = kinds(simulation)
    twice = {name for name, kind in found.items() if kind.startswith("rounded twice")}
    assert twice == {"aten.exp.default", "aten.mm.default", "aten.linspace.default"}
    assert found["aten.mul.Tensor"] == found["aten.sqrt.default"] == found["aten.floor.default"] == "rounded"
    with simulate("e5m6") as simulation:
        program()
    assert not any(kind.startswith("rounded twice") for kind in kinds(simulation).values())


def test_tensors_without_numbers():
    with torch._subclasses.FakeTensorMode(), simulate("e8m9", rounding="up"):
        x = torch.rand(3, 5)
        assert (x.T * 2).stride() == (1, 5)
        assert x.sqrt().shape == x.add_(x[0]).shape == (3, 5)
    with simulate("e5m6", rounding="up"):
        assert (torch.ones(2, device="meta") * 2).shape == (2,)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("mode", list(Rounding))
def test_the_same_bits_on_a_gpu(mode):
    for name, dtype in (("e5m6", torch.float32), ("e8m9", torch.float32), ("e8m30", torch.float64)):
        x, y, z = (operands("wide", (400,), dtype, seed) for seed in range(3))
        outcomes = []
        for device in ("cpu", "cuda"):
            with simulate(name, rounding=mode, seed=1):
                args = [one.to(device) for one in (x, y, z)]
                results = [
                    operation(*args)
                    for formula, operation in OPERATIONS.items()
                    if mode is not Rounding.NEAREST_EVEN or formula in ("sum", "product", "quotient", "root")
                ]
                results += [args[0] * 0.3, args[0].clone().add_(args[1], alpha=0.7)] if mode not in NEAREST else []
                outcomes.append([one.cpu() for one in results])
        assert all(itertools.starmap(same_bits, zip(*outcomes, strict=True)))


def test_the_cpp_is_told_of_a_loop_before_while_and_after_it_is_compiled(monkeypatch):
    """Simulations share it, and other threads may make some meanwhile."""
    way = ResultRounding("sum", torch.float32, CarrierRounding(Rounding.TOWARD_ZERO))
    ways, compile_loop = [stand_ins.Way() for _ in range(3)], exact_loops.RoundedOnceLoop

    def compiling(*given):
        way.tell(ways[1])
        return compile_loop(*given)

    monkeypatch.setattr(exact_loops, "RoundedOnceLoop", compiling)
    way.tell(ways[0])
    assert not ways[0].run
    loop = way.loop
    way.tell(ways[2])
    assert [(one.run, one.settings) for one in ways] == [(stand_ins.address(loop.function), loop.settings)] * 3
    assert way.loop is loop


def test_simulations_share_what_the_cpp_is_told():
    def made(fmt, rounding=Rounding.TOWARD_ZERO):
        return kernel(torch.ops.aten.add.Tensor, fmt, rounding, lambda: (BITS, None))

    one, other = (made(Format.parse("e5m7")) for _ in range(2))
    assert one is not other  # which draw for their own simulations
    assert one.stands_for.exact is other.stands_for.exact
    assert one.stands_for.exact is not made(Format.parse("e5m7"), Rounding.UP).stands_for.exact

    class Own(Format):  # equal to itself alone, and kept for good it would be one more for every simulation
        carrier, bits, elementwise, native = torch.float32, 8, True, False

        def __str__(self):
            return "own"

        def fits_in(self, _dtype):
            return True

        def round_into(self, x, target, *_):
            target.copy_(x)

    assert {id(made(Own()).stands_for.exact) for _ in range(3)} == {id(one.stands_for.exact)}


def test_simulations_share_their_loops():
    """Reading one from disk takes 20 ms, which every operation of every simulation took."""
    modes = CarrierRounding(Rounding.UP), CarrierRounding(Rounding.DOWN)
    one, other = (exact_loops.RoundedOnceLoop("sum", torch.float64, mode) for mode in modes)
    assert one.function is other.function


def test_a_number_lives_as_long_as_a_loop_reads_it(monkeypatch):
    """The cache keeps one of the equal numbers that threads make at once; each must live while it is read."""
    numbers, alive, one, run = [], [], exact_results._number_tensor.__wrapped__, exact_loops.RoundedOnceLoop.__call__

    def not_kept(x, sign, dtype):
        made = one(x, sign, dtype)
        numbers.append(weakref.ref(made))
        return made

    def looking(loop, *arguments):
        alive.extend(number() is not None for number in numbers)
        run(loop, *arguments)

    monkeypatch.setattr(exact_results, "_number_tensor", not_kept)
    monkeypatch.setattr(exact_loops.RoundedOnceLoop, "__call__", looking)
    with simulate("e5m6", rounding="up"):
        torch.ones(100) * 0.3
    assert alive == [True]
