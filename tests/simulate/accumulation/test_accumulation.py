"""Low-precision accumulation: bit for bit what exact arithmetic says, for every operation that adds up."""

import itertools
import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from accumulation_exact import accumulated, dot
from each import each
from exact_arithmetic import operands as exact_operands
from hypothesis import given
from hypothesis import strategies as st
from operator_samples import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from roundoff.formats import FloatFormat, FormatError, round
from roundoff.simulate.accumulation import arithmetic
from roundoff.simulate.accumulation.arithmetic import TensorSteps
from roundoff.simulate.accumulation.description import Accumulation
from roundoff.simulate.accumulation.run import accumulate, accumulates
from roundoff.simulate.accumulation.run import arithmetic as arithmetic_of

aten = torch.ops.aten

FORMATS = ["e5m10", "e4m3", "e8m7", "e5m2", "e4m3fn", "e4m3fn_saturate", "e3m2_finite", "e5m10_nosub", "binary8p4"]
FORMATS += ["e4m3fnuz", "e5m10_saturate", "e2m0_finite"]
CARRIERS = [torch.float32, torch.float64]
SPECIALS = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    2.0**-24,
    2.0**-25,
    65504.0,
    -65504.0,
    2.0**-10,
]


def same(result, expected, *, signs=True):
    """Whether two lists of floats agree: NaN with NaN, and zeros by sign."""
    expected = torch.tensor(expected, dtype=torch.float64)
    result = result.double().flatten()
    assert torch.equal(result.isnan(), expected.isnan())
    finite = ~expected.isnan()
    assert torch.equal(result[finite], expected[finite]), (result, expected)
    if signs:
        assert torch.equal(result[finite].signbit(), expected[finite].signbit())


def operands(kind, shape, dtype, fmt, seed=0):
    """Matrices of all magnitudes, arbitrary or of a format, or with special values in them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "wide":
        x = x * 2.0 ** torch.randint(-12, 6, shape, generator=generator)
    if kind == "far":  # products whose errors float32 cannot hold
        x = x * 2.0 ** torch.randint(-80, 6, shape, generator=generator)
    if kind in ("wide", "far"):
        return x.to(dtype)
    if kind.startswith("special"):
        x = round(x, "e5m10") if kind == "special" else x * 2.0**120
        chosen = torch.tensor(SPECIALS, dtype=torch.float64)[torch.randint(len(SPECIALS), shape, generator=generator)]
        return torch.where(torch.rand(shape, generator=generator) < 0.15, chosen, x).to(dtype)
    if kind == "tiny":
        x = x * 2.0**-13
    return round(x.to(dtype), fmt)


def by_tensors(how, a, b):
    """The product by tensor operations, as on other devices."""
    steps = TensorSteps(how.product, how.format, a.dtype == torch.float32, how.compensated)
    sums = steps.begin(a, 1, a.shape[0], b.shape[1])
    steps.add(sums, a[None], b[None])
    return sums[0].to(a.dtype)


def expected_product(a, b, how):
    rows, columns = (tuple(float.hex(x) for x in y.double().flatten().tolist()) for y in (a, b.T))
    return _expected(rows, columns, len(a[0]), how)


@cache
def _expected(rows, columns, terms, how):
    """Products are computed once for both carriers, most of whose numbers are the same. As text 0 differs from -0."""
    rows, columns = ([float.fromhex(x) for x in y] for y in (rows, columns))
    rows, columns = ([y[i : i + terms] for i in range(0, len(y), terms)] for y in (rows, columns))
    return [dot(row, column, how) for row in rows for column in columns]


KINDS = ["format", "wide", "special", "special and large", "tiny", "far"]


@each("dtype", CARRIERS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Every day some kinds of every format, and all kinds of some formats.
        pytest.param(name, kind, marks=[] if kind in ("special", "far") or name in FORMATS[:4] else pytest.mark.slow)
        for name, kind in itertools.product(FORMATS, KINDS)
    ],
)
def test_sequential_accumulation_is_exact(name, kind, dtype):
    a, b = operands(kind, (2, 7), dtype, name, 1), operands(kind, (7, 17), dtype, name, 2)
    for product, compensated in itertools.product((None, name, "e4m3" if name == "e5m10" else "e5m10"), (False, True)):
        how = Accumulation(name, 1, product, compensated)
        expected = expected_product(a, b, how)
        same(accumulate(aten.mm.default, (a, b), {}, how), expected)
        same(by_tensors(how, a, b), expected)


@pytest.mark.parametrize("far", [False, True])
@each(
    "text",
    ["e11m50", "e11m30", "e5m10", "e11m9_nosub", "e11m30_saturate", "fp64", "e11m50*e11m50", "e11m20*e11m10",
     "e11m30+kahan", "e11m20*e11m20+kahan"],
)  # fmt: skip
def test_float64_accumulation_is_exact_to_the_ends_of_its_range(text, far):
    how = Accumulation.parse(text)
    a = exact_operands("far", (3, 4), torch.float64, 1)
    b = exact_operands("far", (4, 9), torch.float64, 2)
    if not far:  # products that are sums' size, of numbers that are not
        b[:, :6] = (
            a.flip(1)[0][:, None].reciprocal() * torch.rand(4, 6, generator=torch.Generator().manual_seed(3))
        ).nan_to_num()
    expected = expected_product(a, b, how)
    same(accumulate(aten.mm.default, (a, b), {}, how), expected)
    same(by_tensors(how, a, b), expected)


def test_products_that_overflow_before_the_sum_does():
    a = torch.tensor([[1.0, 2.0**512]], dtype=torch.float64)
    b = torch.tensor([[-1.7e308], [2.0**512]], dtype=torch.float64)
    expected = float(Fraction(2) ** 1024 - Fraction(1.7e308))
    assert accumulate(aten.mm.default, (a, b), {}, Accumulation("fp64")).item() == expected
    a = torch.tensor([[2.0**600, -(2.0**600)]], dtype=torch.float64)
    b = torch.tensor([[2.0**440], [2.0**440]], dtype=torch.float64)
    for text, end in (("e11m30", math.inf), ("fp64", math.inf), ("e11m30_saturate", -FloatFormat(11, 30).max)):
        how = Accumulation.parse(text)
        assert accumulate(aten.mm.default, (a, b), {}, how).item() == end
        assert by_tensors(how, a, b).item() == end


@each("dtype", CARRIERS)
@each("every", [2, 3, 32])
@pytest.mark.parametrize("name", FORMATS)
def test_blocked_accumulation_is_exact(name, every, dtype):
    # Multiples of 1/8 below 16: the sum of a block is exact in the carrier, in whatever order.
    generator = torch.Generator().manual_seed(3)
    depth = 2 * every + every // 2  # the last block is shorter
    a = torch.randint(-127, 128, (2, depth), generator=generator).to(dtype) / 8
    b = torch.randint(-127, 128, (depth, 3), generator=generator).to(dtype) / 8
    for product, compensated in itertools.product((None, name), (False, True)):
        how = Accumulation(name, every, product, compensated)
        same(accumulate(aten.mm.default, (a, b), {}, how), expected_product(a, b, how), signs=False)


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
@pytest.mark.parametrize("name", ["fp32", "e8m22", "e8m21", "e7m20"])
def test_wide_accumulators_are_exact(name, dtype):
    a, b = operands("wide", (3, 33), dtype, name, 4), operands("wide", (33, 18), dtype, name, 5)
    for product, compensated in itertools.product((None, name), (False, True)):
        how = Accumulation(name, 1, product, compensated)
        same(accumulate(aten.mm.default, (a, b), {}, how), expected_product(a, b, how))
    how = Accumulation(name)
    sums = accumulate(aten.sum.dim_IntList, (b, [0]), {}, how)
    same(sums, [accumulated(column, how) for column in b.double().T.tolist()])


@pytest.mark.parametrize("name", ["fp64", "e11m50", "e10m40"])
def test_float64_operands_have_exact_products(name):
    a = operands("wide", (3, 33), torch.float64, name, 4)
    b = operands("wide", (33, 18), torch.float64, name, 5)
    for product, compensated in itertools.product((None, name), (False, True)):
        how = Accumulation(name, 1, product, compensated)
        expected = expected_product(a, b, how)
        same(accumulate(aten.mm.default, (a, b), {}, how), expected)
        same(by_tensors(how, a, b), expected)


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_what_the_carrier_would_lose_still_decides_a_tie(dtype):
    # 2^-100 is far below the last place of a float64 near 1, yet 1 + 2^-8 + 2^-100 is above the tie.
    a = torch.tensor([[2.0**-50, 1.0]], dtype=dtype)
    for sign, expected in ((1.0, 1 + 2.0**-7), (-1.0, 1.0)):
        b = torch.tensor([[sign * 2.0**-50], [1 + 2.0**-8]], dtype=dtype)
        assert accumulate(aten.mm.default, (a, b), {}, Accumulation("e8m7")).item() == expected
        terms = torch.tensor([sign * 2.0**-100, 1 + 2.0**-8], dtype=dtype)
        assert accumulate(aten.sum.default, (terms,), {}, Accumulation("e8m7")).item() == expected
        how = Accumulation("e8m7", product="e8m12")
        assert accumulate(aten.mm.default, (a, b), {}, how).item() == expected


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_what_float32_would_lose_still_decides_a_tie(dtype):
    # 1 + 2^-11 is a tie of e5m10; 2^-24 above it is lost in float32.
    x, y = torch.tensor([[2.0**-12, 1 + 2.0**-11], [2.0**-12, 1]], dtype=dtype)
    for sign, expected in ((1.0, 1 + 2.0**-10), (-1.0, 1.0)):
        signed = y * torch.tensor([sign, 1.0], dtype=dtype)
        assert accumulate(aten.dot.default, (x, signed), {}, Accumulation("e5m10")).item() == expected
        wide = Accumulation("e5m10", product="e5m12")
        assert accumulate(aten.dot.default, (x, signed), {}, wide).item() == expected
    # After 1 and 2^-24 Kahan has lost 2^-24, which makes the tie 4098 go up to 4100; else 1 + 4096 were 4096.
    x = torch.tensor([1, 2.0**-12, 2049], dtype=dtype)
    y = torch.tensor([1, 2.0**-12, 2], dtype=dtype)
    assert accumulate(aten.dot.default, (x, y), {}, Accumulation("e5m10", compensated=True)).item() == 4100


@pytest.mark.parametrize("text", ["e8m7", "e8m7*e8m7", "e8m7*e8m7+kahan"])
def test_products_that_float32_would_round(text):
    # 1.5 (1 - 2^-20) quanta: float32's subnormal numbers have it at the tie, which would go to 2.
    how = Accumulation.parse(text)
    a, b = torch.tensor([[3069 * 2.0**-81]]), torch.tensor([[1025 * 2.0**-73]])
    assert accumulate(aten.mm.default, (a, b), {}, how).item() == 2.0**-133
    # 2^128 is beyond float32, but not what is left of it beside -2^127.
    a, b = torch.tensor([[-(2.0**64), 2.0**64]]), torch.tensor([[2.0**63], [2.0**64]])
    expected = 2.0**127 if text == "e8m7" else math.inf
    same(accumulate(aten.mm.default, (a, b), {}, how), [expected])
    # Operands of 13 significant bits: the last of 25 is above the tie of e5m10, 1 + 2^-11.
    x = torch.tensor([1 + 2.0**-12])
    for narrow in ("e5m10", "e5m10*e5m10", "e5m10+kahan", "e5m10_nosub*e5m10"):
        assert accumulate(aten.dot.default, (x, x), {}, Accumulation.parse(narrow)).item() == 1 + 2.0**-10


def test_a_fused_multiply_add_of_float64_is_exact():
    # (1 - 2^-53)^2 + 3 2^-53 is 2^-106 above the tie 1 + 2^-53; the sum of all that 1 leaves over has 54 bits.
    x = torch.tensor([3 * 2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    y = torch.tensor([1, 1 - 2.0**-53], dtype=torch.float64)
    how = Accumulation("fp64")
    assert accumulate(aten.dot.default, (x, y), {}, how).item() == 1 + 2.0**-52
    assert by_tensors(how, x[None], y[:, None]).item() == 1 + 2.0**-52


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_negative_zero_stays(dtype):
    # Fused, the first product rounds to -0; rounded alone it is a summand of +0, which stays +0.
    x = torch.tensor([1e-10 / 3, 0.0, -0.0], dtype=dtype)
    y = torch.tensor([-1e-10 / 3, -1 / 3, 1 / 3], dtype=dtype)
    for how, expected in ((Accumulation("e5m10"), -0.0), (Accumulation("e5m10", product="e5m10"), 0.0)):
        same(accumulate(aten.dot.default, (x, y), {}, how), [expected])
        same(by_tensors(how, x[None], y[:, None]), [expected])


@each("dtype", CARRIERS)
@each("compensated", [False, True])
@each("kind", ["format", "wide", "special"])
@pytest.mark.parametrize("name", FORMATS)
def test_sums_are_exact(name, kind, compensated, dtype):
    how = Accumulation(name, compensated=compensated)
    x = operands(kind, (2, 23, 5), dtype, name, 6)
    result = accumulate(aten.sum.dim_IntList, (x, [1]), {}, how)
    same(result, [accumulated(terms, how) for terms in x.double().transpose(1, 2).reshape(10, 23).tolist()])
    every = accumulate(aten.sum.default, (x.mT,), {}, how)
    same(every, [accumulated(x.mT.double().flatten().tolist(), how)])


def test_sums_that_float32_would_round_to_the_middle_of_two_numbers_are_not():
    """1 + 2^-11 and a little less than half of an ulp of it: in float32 that is the middle, which is rounded up."""
    x, ones = torch.tensor([1 + 2.0**-11, 2.0**-12 - 2.0**-24]), torch.ones(2)
    assert accumulate(aten.dot.default, (x, ones), {}, Accumulation("e8m11", product="e8m11")) == x[0]


@pytest.mark.parametrize("compensated", [False, True])
def test_sums_of_very_many_numbers_leave_none_out(compensated):
    x = torch.ones(70_000, 2)
    found = accumulate(aten.sum.dim_IntList, (x, [0]), {}, Accumulation("e8m20", compensated=compensated))
    assert found.tolist() == [70_000] * 2


def test_sums_of_blocks_are_exact():
    x = torch.randint(-99, 99, (70, 6), generator=torch.Generator().manual_seed(0)).float() / 4
    for every, compensated in itertools.product((3, 32, 70, 99), (False, True)):
        how = Accumulation("e5m4", every, compensated=compensated)
        expected = [accumulated(terms, how) for terms in x.double().T.tolist()]
        same(accumulate(aten.sum.dim_IntList, (x, [0]), {}, how), expected, signs=False)


@given(
    data=st.data(),
    exponent=st.integers(2, 8),
    significand=st.integers(1, 10),
    product=st.booleans(),
    compensated=st.booleans(),
    dtype=st.sampled_from(CARRIERS),
)
def test_any_format_any_numbers(data, exponent, significand, product, compensated, dtype):
    name = f"e{exponent}m{significand}"
    # Far enough from the ends of float64 that no product is lost.
    numbers = (
        st.floats(width=32) if dtype == torch.float32 else st.floats(-1e100, 1e100).filter(lambda x: abs(x) > 1e-100)
    )
    a = data.draw(st.lists(numbers, min_size=1, max_size=6))
    b = data.draw(st.lists(numbers, min_size=len(a), max_size=len(a)))
    how = Accumulation(name, product=name if product else None, compensated=compensated)
    x, y = torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
    expected = [dot(a, b, how)]
    same(accumulate(aten.dot.default, (x, y), {}, how), expected)
    same(by_tensors(how, x[None], y[:, None]), expected)


@pytest.mark.parametrize("text", ["e5m10*e4m3/3", "e5m10/3", "e5m10/3+kahan", "e4m3fn_saturate*e4m3fn/4+kahan"])
def test_blocks_elsewhere_are_those_of_the_cpu(text, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-127, 128, (2, 5, 40), generator=generator).float() / 8
    b = torch.randint(-127, 128, (2, 40, 7), generator=generator).float() / 8
    how = Accumulation.parse(text)
    on_cpu = accumulate(aten.bmm.default, (a, b), {}, how)
    sums = accumulate(aten.sum.dim_IntList, (a, [0, 2]), {}, how)
    biased = accumulate(aten.baddbmm.default, (a.sum(2, keepdim=True), a, b), {}, how)
    monkeypatch.setattr(arithmetic, "_native", lambda *_: False)
    assert torch.equal(accumulate(aten.bmm.default, (a, b), {}, how), on_cpu)
    assert torch.equal(accumulate(aten.sum.dim_IntList, (a, [0, 2]), {}, how), sums)
    assert torch.equal(accumulate(aten.baddbmm.default, (a.sum(2, keepdim=True), a, b), {}, how), biased)


@pytest.mark.parametrize("text", ["e5m10*e5m10", "e5m10", "e5m10*e5m10+kahan", "e4m3fn*e4m3fn", "e5m10/32"])
def test_threads_slabs_and_chunks_change_nothing(text):
    # Large enough for several slabs of the second matrix, several chunks of rows, and two threads.
    a, b = (
        operands("format", (40, 130), torch.float32, "e5m4", 1),
        operands("format", (130, 2100), torch.float32, "e5m4", 2),
    )
    how = Accumulation.parse(text)
    whole = accumulate(aten.mm.default, (a, b), {}, how)
    apart = [accumulate(aten.mm.default, (a[i : i + 1], b[:, 99:200]), {}, how) for i in range(40)]
    assert torch.equal(whole[:, 99:200], torch.cat(apart))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(accumulate(aten.mm.default, (a, b), {}, how), whole)
        # Batches that differ, so that each must find its own matrices.
        batched = accumulate(aten.bmm.default, (torch.stack([a, a, -a]), torch.stack([b.flip(1), b, b])), {}, how)
        assert torch.equal(batched, torch.stack([whole.flip(1), whole, -whole]))
    finally:
        torch.set_num_threads(threads)


class Accumulating(TorchDispatchMode):
    """Every operation that adds up, by ``how``."""

    def __init__(self, how):
        super().__init__()
        self.how, self.seen = how, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if accumulates(func):
            result = accumulate(func, args, kwargs, self.how)
            if result is not NotImplemented:
                self.seen.append(func)
                return result
        return func(*args, **(kwargs or {}))


OPERATIONS = {
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "sum", "mean", "inner",
    "nn.functional.linear", "nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d", "einsum",
    "nn.functional.conv_transpose1d", "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d",
    "nn.functional.bilinear", "tensordot", "linalg.multi_dot",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("operation", [op for op in op_db if op.name in OPERATIONS], ids=lambda op: op.formatted_name)
def test_every_operation_adds_up_the_right_things(operation):
    # With float64 itself as the accumulator only the order of the sum differs from torch's.
    seen = 0
    samples = list(operation.sample_inputs("cpu", torch.float64, requires_grad=operation.supports_autograd))
    for sample in samples[:60]:
        with Accumulating(Accumulation("fp64")) as mode:
            result = operation(sample.input, *sample.args, **sample.kwargs)
        expected = operation(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(result, expected, equal_nan=True)
        assert result.stride() == expected.stride()
        inputs = [x for x in (sample.input, *sample.args) if isinstance(x, torch.Tensor) and x.requires_grad]
        if inputs and result.requires_grad:
            weights = torch.rand_like(expected)
            wanted = torch.autograd.grad(expected, inputs, weights, allow_unused=True)
            with mode:
                got = torch.autograd.grad(result, inputs, weights, allow_unused=True)
            torch.testing.assert_close(got, wanted, equal_nan=True)
        seen += len(mode.seen)
    assert seen > 0


def test_operations_under_inference_mode():
    x, w, bias = torch.rand(2, 5, 4).double(), torch.rand(3, 4).double(), torch.rand(3).double()
    with torch.inference_mode(), Accumulating(Accumulation("fp64")) as mode:
        result = torch.nn.functional.linear(x, w, bias)
        vector = x @ w[0]
    torch.testing.assert_close(result, torch.nn.functional.linear(x, w, bias))
    torch.testing.assert_close(vector, x @ w[0])
    assert mode.seen == [aten.linear.default, aten.matmul.default]


def test_written_arguments():
    how = Accumulation("e5m10")
    a, b, c = torch.rand(3, 4), torch.rand(4, 5), torch.rand(3, 5)
    expected = accumulate(aten.addmm.default, (c, a, b), {"beta": 0.5, "alpha": 2}, how)
    out = torch.zeros(5, 3).T
    assert accumulate(aten.addmm.out, (c, a, b), {"beta": 0.5, "alpha": 2, "out": out}, how) is out
    assert torch.equal(out, expected)
    assert out.stride() == (1, 3)
    empty = torch.empty(0)
    assert accumulate(aten.mm.out, (a, b), {"out": empty}, how) is empty
    assert empty.shape == (3, 5)
    assert accumulate(aten.addmm_.default, (c, a, b), {"beta": 0.5, "alpha": 2}, how) is c
    assert torch.equal(c, expected)
    total = torch.empty(4)
    accumulate(aten.sum.IntList_out, (a, [0]), {"out": total}, how)
    assert torch.equal(total, accumulate(aten.sum.dim_IntList, (a, [0]), {}, how))


def test_an_addend_is_added_last_by_one_rounding():
    # 4 + 0.5 is a tie in a format of three significant bits: the contraction goes to 4 first.
    a, b, c = torch.tensor([[1.0, 0.5]]), torch.tensor([[4.0], [1.0]]), torch.tensor([[1.0]])
    how = Accumulation("e5m2")
    assert accumulate(aten.mm.default, (a, b), {}, how).item() == 4
    assert accumulate(aten.addmm.default, (c, a, b), {}, how).item() == 5
    assert accumulate(aten.addmm.default, (c, a, b), {"alpha": 1.5, "beta": 0.25}, how).item() == 6
    # beta = 0 leaves the addend out, NaN or not; alpha scales exactly.
    assert accumulate(
        aten.addmm.default, (c * math.nan, a, b), {"alpha": 1.1, "beta": 0}, how
    ).item() == 4 * torch.tensor(1.1)
    # A mean is the rounded sum, 12 of 14 here, divided in the carrier.
    assert accumulate(aten.mean.default, (torch.tensor([4.0, 2.0, 4.0, 4.0]),), {}, Accumulation("e5m1")).item() == 3
    assert accumulate(aten.mean.default, (torch.ones(5),), {}, Accumulation("e5m1")).item() == torch.tensor(4.0) / 5
    bias = accumulate(aten.convolution.default, (a[None], b.view(1, 1, 2), c[0], [1], [0], [1], False, [0], 1), {}, how)
    assert bias.item() == 5


def convolution_terms(x, weight, n, o, y, stride, padding, dilation, groups):
    """The products of one output of a one-dimensional convolution, in the documented order."""
    channels, taps = weight.shape[1:]
    group = o // (weight.shape[0] // groups)
    terms = []
    for c, tap in itertools.product(range(channels), range(taps)):
        at = y * stride - padding + tap * dilation
        if 0 <= at < x.shape[2]:
            terms.append(x[n, group * channels + c, at].item() * weight[o, c, tap].item())
    return terms


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (3, 3, 2, 4)]
)
def test_convolution_in_its_order(stride, padding, dilation, groups):
    how = Accumulation("e4m3", product="e4m3")
    x, weight = (
        operands("format", (2, 4, 11), torch.float32, "e4m3", 1),
        operands("format", (8, 4 // groups, 3), torch.float32, "e4m3", 2),
    )
    call = ([stride], [padding], [dilation], False, [0], groups)
    result = accumulate(aten.convolution.default, (x, weight, None, *call), {}, how)
    places = itertools.product(*(range(size) for size in result.shape))
    same(
        result,
        [
            accumulated(convolution_terms(x, weight, *place, *call[0], *call[1], *call[2], groups), how)
            for place in places
        ],
    )


def test_transposed_convolution_and_gradients_in_their_order():
    how = Accumulation("e4m3", product="e4m3")
    x, weight = (
        operands("format", (2, 3, 5), torch.float32, "e4m3", 1),
        operands("format", (3, 2, 4), torch.float32, "e4m3", 2),
    )
    result = accumulate(aten.convolution.default, (x, weight, None, [2], [1], [1], True, [1], 1), {}, how)
    expected = []
    for n, o, y in itertools.product(*(range(size) for size in result.shape)):
        # By channel, then in the input's order.
        terms = [
            x[n, c, at].item() * weight[c, o, y + 1 - 2 * at].item()
            for c, at in itertools.product(range(3), range(5))
            if 0 <= y + 1 - 2 * at < 4
        ]
        expected.append(accumulated(terms, how))
    same(result, expected)
    # The gradient of a plain convolution of stride 2 and padding 1, by its input, is that transposed convolution.
    shape = torch.empty(2, 2, result.shape[2])
    settings = ([2], [2], [1], [1], False, [0], 1, [True, True, True])
    grads = accumulate(aten.convolution_backward.default, (x, shape, weight[:, :, :], *settings), {}, how)
    assert torch.equal(grads[0], result)
    bias = [accumulated(terms, how_of_sum(how)) for terms in x.transpose(0, 1).flatten(1).tolist()]
    same(grads[2], bias)


def how_of_sum(how):
    """Summands are no products: they are not rounded before they are added."""
    return Accumulation(how.format, how.every, None, how.compensated)


def test_weight_gradient_in_its_order():
    how = Accumulation("e4m3", product="e4m3")
    x, grad = (
        operands("format", (2, 3, 9), torch.float32, "e4m3", 1),
        operands("format", (2, 4, 4), torch.float32, "e4m3", 2),
    )
    settings = (None, [2], [0], [1], False, [0], 1, [False, True, False])
    grads = accumulate(aten.convolution_backward.default, (grad, x, torch.empty(4, 3, 3), *settings), {}, how)
    assert grads[0] is None
    assert grads[2] is None
    expected = [
        accumulated(
            [grad[n, o, y].item() * x[n, c, 2 * y + tap].item() for n, y in itertools.product(range(2), range(4))], how
        )
        for o, c, tap in itertools.product(range(4), range(3), range(3))
    ]
    same(grads[1], expected)


def test_channels_last_stays():
    x = torch.rand(2, 4, 6, 6).to(memory_format=torch.channels_last)
    weight = torch.rand(3, 4, 3, 3)
    call = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert (
        accumulate(aten.convolution.default, call, {}, Accumulation("e5m10")).stride()
        == aten.convolution(*call).stride()
    )


def test_nothing_to_add():
    how = Accumulation("e5m10", product="e5m10")
    for text in ("e5m10", "e5m10*e5m10/4", "e5m10/4", "e5m10+kahan"):
        how = Accumulation.parse(text)
        assert torch.equal(
            accumulate(aten.mm.default, (torch.rand(3, 0), torch.rand(0, 2)), {}, how), torch.zeros(3, 2)
        )
        assert accumulate(aten.mm.default, (torch.rand(0, 3), torch.rand(3, 2)), {}, how).shape == (0, 2)
        assert torch.equal(accumulate(aten.sum.dim_IntList, (torch.rand(3, 0), [1]), {}, how), torch.zeros(3))
        assert accumulate(aten.mean.default, (torch.rand(0),), {}, how).isnan()


def test_dtypes():
    how = Accumulation("e5m10")
    assert accumulate(aten.sum.default, (torch.arange(5000),), {"dtype": torch.float32}, how).dtype == torch.float32
    assert accumulate(aten.sum.default, (torch.ones(3),), {"dtype": torch.float64}, how).dtype == torch.float64
    for args, kwargs in (
        ((torch.arange(5),), {}),
        ((torch.ones(5).half(),), {}),
        ((torch.ones(5),), {"dtype": torch.float16}),
        ((torch.ones(5, dtype=torch.complex64),), {}),
    ):
        assert accumulate(aten.sum.default, args, kwargs, how) is NotImplemented
    assert not accumulates(aten.add.Tensor)
    assert not accumulates(aten.mm.dtype)
    assert accumulate(aten.add.Tensor, (torch.ones(1), torch.ones(1)), {}, how) is NotImplemented


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(2, 3) @ torch.ones(4, 5),
        lambda: torch.mm(torch.ones(3), torch.ones(3, 3)),
        lambda: torch.bmm(torch.ones(2, 3, 3), torch.ones(3, 3, 3)),
        lambda: torch.dot(torch.ones(2), torch.ones(3)),
        lambda: torch.mv(torch.ones(2, 3), torch.ones(2)),
        lambda: torch.addbmm(torch.ones(1, 1), torch.ones(2, 1, 3), torch.ones(3, 2, 1)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 3).double()),
        lambda: aten.linear(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: aten.matmul(torch.ones(()), torch.ones(2)),
        lambda: torch.ones(2, 3).sum(2),
        lambda: torch.ones(2, 3).sum([0, 0]),
        lambda: torch.ones(()).sum(1),
        lambda: aten.convolution(torch.ones(1, 3, 4), torch.ones(2, 2, 1), None, [1], [0], [1], False, [0], 1),
        lambda: aten.convolution(torch.ones(1, 2, 4), torch.ones(2, 2, 5), None, [1], [0], [1], False, [0], 1),
        lambda: aten.convolution(torch.ones(1, 2, 4), torch.ones(2, 2, 2), None, [0], [0], [1], False, [0], 1),
        lambda: aten.convolution(torch.ones(1, 3, 4), torch.ones(3, 1, 2), None, [1], [0], [1], True, [0], 2),
    ],
)
def test_operands_that_do_not_fit_are_left_to_torch(call):
    with torch.inference_mode(), pytest.raises((RuntimeError, IndexError)) as torchs:
        call()
    with torch.inference_mode(), Accumulating(Accumulation("e5m10")) as mode, pytest.raises(torchs.type) as ours:
        call()
    assert str(ours.value) == str(torchs.value)
    assert not mode.seen


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode():
        for text in ("e5m10", "e5m10*e5m10", "e5m10/4", "e5m10*e5m10/4+kahan"):
            x = torch.rand(3, 9)
            assert accumulate(aten.mm.default, (x, x.mT), {}, Accumulation.parse(text)).shape == (3, 3)
            assert accumulate(aten.sum.dim_IntList, (x, [-1]), {}, Accumulation.parse(text)).shape == (3,)


@pytest.mark.parametrize("text", ["e5m10", "e5m10/32", "e5m10*e4m3", "e8m7*fp32/4+kahan", "fp32+kahan"])
def test_text_there_and_back(text):
    how = Accumulation.parse(text)
    assert str(how) == text
    assert Accumulation.parse(str(how)) == how
    assert Accumulation.parse(how) is how


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Accumulation("e5m10", 0), "every .* must be an integer of at least 1, got 0"),
        (lambda: Accumulation("e5m10", True), "every .* got True"),
        (lambda: Accumulation("posit8_1"), "format of an accumulation must be a float format"),
        (lambda: Accumulation("e5m10", 1, "int8"), "product of an accumulation must be a float format"),
        (lambda: Accumulation("e8m52"), "at most 50 significand bits"),
        (lambda: Accumulation("e5m10", compensated=1), "must be True or False, got 1"),
        (lambda: Accumulation.parse("e5m10/x"), "got 'e5m10/x'"),
        (lambda: Accumulation.parse("e5m10+pairwise"), "FORMAT"),
        (lambda: Accumulation.parse(3), "got 3"),
        (lambda: Accumulation.parse("nonsense"), "nonsense"),
        (
            lambda: accumulate(aten.sum.default, (torch.ones(2),), {}, Accumulation("fp64")),
            "does not fit in torch.float32",
        ),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(FormatError, match=message):
        make()


def test_arithmetic_is_made_once():
    assert arithmetic_of(Accumulation("e5m10"), torch.float32) is arithmetic_of(Accumulation("fp16"), torch.float32)


def grouped(dims, ends):
    generator = torch.Generator().manual_seed(sum(dims))
    shapes = {2: (12, 7), 3: (2, 12, 7)}[dims[0]], {2: (7, 10), 3: (2, 7, 10)}[dims[1]]
    return [torch.randn(shape, generator=generator) for shape in shapes], ends and torch.tensor(ends, dtype=torch.int32)


@pytest.mark.parametrize(("dims", "ends"), [((2, 3), [5, 11]), ((3, 2), [4, 10]), ((2, 2), [3, 7]), ((3, 3), None)])
def test_grouped_products_are_products_of_their_groups(dims, ends):
    (a, b), offs = grouped(dims, ends)
    how = Accumulation.parse("e5m4*e5m4")
    found = accumulate(aten._grouped_mm.default, (a, b, offs), {}, how)
    starts = [0, *(ends or [])]
    for i in range(2):
        rows, columns = a, b
        part = slice(starts[i], starts[i + 1]) if ends else slice(None)
        if dims == (2, 2):
            rows, columns, result = a[:, part], b[part], found[i]
        elif dims == (2, 3):
            rows, columns, result = a[part], b[i], found[part]
        elif dims == (3, 2):
            rows, columns, result = a[i], b[:, part], found[:, part]
        else:
            rows, columns, result = a[i], b[i], found[i]
        assert torch.equal(result, accumulate(aten.mm.default, (rows, columns), {}, how))
    near = accumulate(aten._grouped_mm.default, (a.double(), b.double(), offs), {}, Accumulation("fp64"))
    if dims == (2, 3):  # rows after the last group are zeros
        assert torch.equal(near[11:], torch.zeros(1, 10).double())
