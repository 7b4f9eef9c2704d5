"""Compiled steps in which tensors lie in all sorts of ways: random programs, and results that depend on the order."""

from itertools import product

import pytest
import torch
from comparing import same_bits
from random_programs import Program
from torch._C import _is_view_replay_enabled
from torch.autograd.grad_mode import _force_original_view_tracking
from torch.fx import Interpreter
from torch.nn.functional import dropout, interpolate

import roundoff
from roundoff import CompileWarning, Policy, simulate
from roundoff.simulate.compiling.graphs import tracing

# A policy under which numbers of float32 stay what they are shows every bit; others say what rounding does between.
POLICIES = {
    "products": lambda: simulate(Policy.mixed_precision("e8m7")),
    "stored": lambda: simulate(Policy.storage("e8m10")),
    "stochastic": lambda: simulate("e8m10", rounding="stochastic", seed=3),
    "directed": lambda: simulate("e5m10", rounding="toward-zero"),
    "nearest": lambda: simulate("e8m7"),
    "posit": lambda: simulate("posit8_1"),
}


def policy_of(number):
    """Each of the policies in turn."""
    return list(POLICIES.values())[number % len(POLICIES)]


def programs(seeds):
    """Yields the random programs that run eagerly: PyTorch refuses some orders of writing and differentiating."""
    for seed in seeds:
        program = Program(seed)
        try:
            program(program.given)
        except (RuntimeError, IndexError):
            continue
        yield program


def steps_of(x):
    """The strides of axes along which there is more than one number."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


def differing(drawn, make):
    """The seeds of programs of which the compiled one has other bits, or lays its results otherwise, as one step."""
    drawn = list(drawn)

    def step(given):
        return [program(tensors) for program, tensors in zip(drawn, given, strict=True)]

    given = [program.given for program in drawn]
    with make():
        expected = step(given)
    compiled = roundoff.compile(step, make())
    found = compiled(given)
    assert compiled.reason is None
    return [
        program.seed
        for program, a, b in zip(drawn, expected, found, strict=True)
        if not all(same_bits(x, y) and steps_of(x) == steps_of(y) for x, y in zip(a, b, strict=True))
    ]


class _Checking(Interpreter):
    """Runs a graph by PyTorch's kernels, and looks how they lay their results."""

    def run_node(self, n):
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor) and result.numel():
            assert steps_of(result) == steps_of(n.meta["val"]), n
        return result


@pytest.fixture
def by_kernels(uncompiled, monkeypatch):
    """Runs graphs as they are traced, and checks in each what is said of the layout of its tensors."""

    def run(traced):
        def call(inputs):
            with torch.no_grad():
                return _Checking(traced.graph).run(*inputs)

        return call

    monkeypatch.setattr(tracing, "compile_graph", run)


@pytest.mark.filterwarnings("ignore")
def test_graphs_of_random_programs(by_kernels):
    assert not differing(programs(range(5)), POLICIES["products"])


@pytest.mark.filterwarnings("ignore")
def test_random_programs():
    assert not differing(programs((17,)), POLICIES["products"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, 3000, 100))
def test_graphs_of_thousands_of_random_programs(start, by_kernels):
    make = policy_of(start // 100)
    assert not [seed for p in programs(range(start, start + 100)) for seed in differing([p], make)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, 360, 20))
def test_hundreds_of_random_programs(start):
    assert not differing(programs(range(10_000 + start, 10_000 + start + 20)), policy_of(start // 20))


SPECIAL = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, torch.nan, torch.inf, 1e-40, -1e-40])


def special(*shape, kinds):
    return SPECIAL[torch.randint(0, kinds, shape, generator=torch.Generator().manual_seed(kinds))]


def laid(x):
    """Lays out numbers one behind another, transposed, with gaps, and in rows with gaps between them."""
    gaps, rows = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1]), x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
    gaps[..., ::2], rows[..., :-3] = x, x
    return [x, x.mT.contiguous().mT, gaps[..., ::2], rows[..., :-3]]


ONE = [
    lambda x: x.clamp_min(0.0), lambda x: x.clamp_min(-0.0), lambda x: x.clamp_max(0.0), lambda x: x.clamp(-0.0, 0.0),
    torch.relu, torch.sign, torch.abs, torch.neg, torch.floor, torch.ceil, torch.signbit, torch.logical_not,
    torch.reciprocal, torch.isfinite, lambda x: x.nan_to_num(0.0), lambda x: torch.threshold(x, 0.0, -0.0),
    lambda x: x.amax(-1), lambda x: x.amin(0), lambda x: x.max(-1)[0], lambda x: x.min(0)[0], lambda x: x.argmax(-1),
    torch.argmax, torch.argmin, torch.amax, torch.amin, torch.max, lambda x: torch.stack(torch.aminmax(x)),
    lambda x: x.nan_to_num(0.0, 3.0, -3.0).long(), lambda x: 0.0 - x, lambda x: x + 0.0, lambda x: x * -0.0,
]  # fmt: skip
TWO = [
    torch.maximum, torch.minimum, torch.fmax, lambda x, y: x.clamp(min=y), torch.add, torch.sub, torch.mul, torch.div,
    lambda x, y: torch.where(x > y, x, y), lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.0),
    lambda x, y: torch.add(x, y, alpha=-0.3), lambda x, y: torch.addcmul(x, y, x, value=-0.3), torch.copysign,
    lambda x, y: torch.addcdiv(x, y, x, value=-0.3), torch.ops.aten.tanh_backward, torch.logical_and,
]  # fmt: skip


def of_special_numbers(operands):
    return [f(x * 1.0) for x in operands for f in ONE] + [f(x * 1.0, x.flip(0)) for x in operands for f in TWO]


@pytest.mark.parametrize(
    ("shapes", "ways"),
    [([(9, 17)], [0]), pytest.param([(3, 5), (16, 8), (4, 33)], [0, 1, 2, 3], marks=pytest.mark.slow)],
)
def test_signs_of_zero_ties_and_nan_are_those_of_the_kernels(shapes, ways):
    """The order of two equal numbers in memory decides which of them is the larger one."""
    drawn = [special(*shape, kinds=kinds) for shape, kinds in product(shapes, (6, 10))]
    operands = [laid(x)[way] for x in drawn for way in ways]
    expected, found = of_special_numbers(operands), roundoff.compile(of_special_numbers, None)(operands)
    names = [*product(range(len(operands)), range(len(ONE))), *product(range(len(operands)), range(len(TWO)))]
    assert not [name for name, a, b in zip(names, expected, found, strict=True) if not same_bits(a, b)]


def of_layouts(x, y, z, wide, ways):
    """What kernels compute by other instructions where numbers have gaps, or one stands for many."""
    results = []
    for a in [laid(x * 1.0)[way] for way in ways]:
        results += [
            torch.sigmoid(a), torch.hypot(a, y), torch.remainder(a * 1e5, y), torch.log1p(a.abs()), a.exp(),
            torch.ops.aten.tanh_backward(a, y[:, :1]), torch.ops.aten.tanh_backward(a, y), torch.nn.functional.gelu(a),
            torch.add(a, y[0, 0], alpha=0.3), torch.add(a, y, alpha=0.3), torch.add(a, 1.1, alpha=0.3),
            torch.addcmul(a, y[:1], z), torch.addcdiv(a, y, z[:, :1], value=0.3), a / 3,
            torch.div(a, y, rounding_mode="floor"), torch.div(a, y, rounding_mode="trunc"),
            a.sum(), a.mean(0), a.var(1), torch.softmax(a, 0),
        ]  # fmt: skip
    for a in [laid(wide * 1.0)[way] for way in ways]:
        results += [torch.add(a, wide[0, 0], alpha=0.3), torch.sub(a, wide[:, :1], alpha=0.3), torch.sigmoid(a)]
    return [*results, torch.arange(0.0, 1.0, 0.0137)]


@pytest.mark.parametrize("ways", [[2], pytest.param([0, 1, 3], marks=pytest.mark.slow)], ids=str)
def test_functions_have_the_bits_of_kernels_however_numbers_lie(ways):
    generator = torch.Generator().manual_seed(0)
    given = [3 * torch.randn(67, 35, generator=generator) for _ in range(3)]
    given.append(torch.randn(67, 35, generator=generator, dtype=torch.float64))
    expected, found = of_layouts(*given, ways), roundoff.compile(of_layouts, None)(*given, ways)
    assert not [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b)]


def test_losses_that_transforms_have_other_formulas_for():
    def losses(x, y):
        f = torch.nn.functional.binary_cross_entropy_with_logits
        return f(x, y), f(x, y, reduction="none"), f(x.t() * 1.5, y.t(), pos_weight=y[0, 0], reduction="none")

    x, y = torch.randn(64, 48), torch.rand(64, 48)
    expected, found = losses(x, y), roundoff.compile(losses, None)(x, y)
    assert all(map(same_bits, expected, found))


def writing(x, y):
    """Functions in place, where a function that is not would lay its result otherwise."""
    gaps = x[:, ::2]
    gaps.mul_(1.1)
    total = gaps.exp_().sum()
    turned = y.t() * 1.0
    turned.masked_fill_(x.t() > 0.5, 0.25)
    turned[1:, ::2].sigmoid_()
    return total, turned.sum(), turned.mean(0), (x.t() * y.t()).mean()


def test_what_is_written_in_place_stays_where_it_is():
    mine, theirs = ([torch.randn(9, 22, generator=torch.Generator().manual_seed(i)) for i in (1, 2)] for _ in range(2))
    mine[0], theirs[0] = torch.cat([mine[0]] * 2, 1)[:, ::2], torch.cat([theirs[0]] * 2, 1)[:, ::2]
    expected, found = writing(*theirs), roundoff.compile(writing, None)(*mine)
    assert all(map(same_bits, expected, found))
    assert same_bits(mine[0], theirs[0])


def test_products_written_to_a_transposed_tensor_are_left_to_pytorch():
    def step(x, y):
        total = torch.zeros(5, 7).t()
        total.addmm_(x, y)
        return total

    x, y = torch.randn(7, 40), torch.randn(40, 5)
    program = roundoff.compile(step, None)
    with pytest.warns(CompileWarning, match="other bits: aten.addmm_.default writes to a tensor"):
        found = program(x, y)
    assert same_bits(found, step(x, y))


def through_a_flat_view(x, y):
    flat = (x * y).flatten()
    flat.mul_(1.1)
    return (flat * 0.7).square().sum()


def through_a_transposed_view(x, y):
    turned = (x @ y.t()).t()
    turned.add_(0.3)
    return (turned * turned.detach()).sum()


def through_a_view_of_a_view(x, y):
    part = (x * y)[1:].unflatten(1, (2, -1)).movedim(0, 2)
    part.relu_()
    return (part * 1.7).sum()


@pytest.mark.parametrize("loss", [through_a_flat_view, through_a_transposed_view, through_a_view_of_a_view])
def test_derivatives_of_views_that_were_written_to_draw_the_same_bits(loss, uncompiled):
    def step(x, y):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x, y), x)[0] * 1.3

    x, y = (torch.randn(6, 8, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    with simulate("e8m7", rounding="stochastic"):
        expected = step(x, y)
    found = roundoff.compile(step, simulate("e8m7", rounding="stochastic"))(x, y)
    assert same_bits(found, expected)


def test_autograd_repeats_views_in_stochastic_blocks_alone():
    outer, inner = simulate("e8m7", rounding="stochastic"), simulate("e5m2", rounding="stochastic")
    with simulate("e8m7"):
        assert not _is_view_replay_enabled()
        with outer:
            with inner:
                assert _is_view_replay_enabled()
            for plain in (roundoff.exact(), simulate("e5m2")):
                with plain:
                    assert not _is_view_replay_enabled()
            assert _is_view_replay_enabled()
        assert not _is_view_replay_enabled()
    with _force_original_view_tracking(True):
        with pytest.raises(ZeroDivisionError), outer:
            _ = 1 / 0
        assert _is_view_replay_enabled()
        with simulate("e5m2"):  # the program has asked for it
            assert _is_view_replay_enabled()


def drawing(x):
    return [
        dropout(x * 1.1, 0.4), dropout(x / 3, 0.4, inplace=True), (x + 1).bernoulli_(0.3), torch.bernoulli(x, 0.3),
        x[:, ::2].clone().bernoulli_(0.6), torch.rand_like(x), (x * 2).normal_(), torch.rand(3),
    ]  # fmt: skip


def test_random_numbers_are_those_of_the_eager_step_however_tensors_lie():
    """A mask of dropout lies as its tensor does; it is drawn in the order in which the processor draws it."""
    flat = torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(1))
    tensors = [flat, flat.contiguous(memory_format=torch.channels_last), flat.permute(3, 1, 0, 2)]
    eager, other = (simulate("e8m7", rounding="stochastic") for _ in range(2))
    program = roundoff.compile(drawing, other)
    for x in tensors:
        torch.manual_seed(3)
        with eager:
            expected = drawing(x), drawing(x)
        torch.manual_seed(3)
        found = program(x), program(x)
        for mine, theirs in zip(found, expected, strict=True):
            assert all(map(same_bits, mine, theirs))
            assert [y.stride() for y in mine] == [y.stride() for y in theirs]
    assert program.reason is None


def test_views_have_the_strides_of_pytorch_along_axes_of_one_number(uncompiled):
    """Positions of an image, learned in one row and scaled: a kernel takes the layout of its result from strides."""

    def step(positions):
        image = positions[:, 1:-3].transpose(1, 2).view(1, 8, 6, 6)
        scaled = interpolate(image, size=(4, 4), mode="bicubic", align_corners=False)
        return scaled, scaled.flatten(2).transpose(1, 2).contiguous() * 1.1

    positions = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(1))
    with simulate("e8m7", rounding="stochastic") as eager:
        expected = step(positions)
    program = roundoff.compile(step, simulate("e8m7", rounding="stochastic"))
    found = program(positions)
    assert all(map(same_bits, found, expected))
    assert [y.stride() for y in found] == [y.stride() for y in expected]
    assert program.simulation.draws == eager.draws
