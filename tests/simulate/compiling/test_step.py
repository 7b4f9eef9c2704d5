"""Compiled steps: the bits of the eager simulation, whatever the operations, formats and modes; and what is refused."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from comparing import numbers, same_bits
from torch._dynamo.utils import counters
from torch._inductor import config, lowering
from torch._inductor.codegen.cpp import CppVecOverrides

import roundoff
from roundoff import CompileWarning, FormatError, Policy, Rule, simulate
from roundoff.simulate import CompiledStep
from roundoff.simulate.compiling import program as program_module
from roundoff.simulate.dispatch.graph_writer import FormatsAsData

N = 1003  # no multiple of a vector


def all_operations(x, y, z):
    """Every operation that is left to the compiler, written as the kernels write it, or called; see exact_lowerings."""
    m = x[:1000].view(8, 125)
    return [
        x * y, x + y, x - y, x / y, x / 0.0316, 1 - x, x**2, -x, x.abs(), torch.hypot(x, y), torch.log1p(x.abs()),
        torch.reciprocal(x), torch.sigmoid(x), torch.relu(x), torch.maximum(x, y), torch.minimum(x, y), x.clamp(-2, 3),
        torch.where(x > y, x, z), torch.sign(x), x.floor(), torch.add(x, y, alpha=0.1234), torch.sub(x, y, alpha=1e4),
        torch.addcmul(x, y, z, value=0.123), torch.addcmul(x, y, z, value=-1), torch.addcmul(x, y, z),
        torch.addcdiv(x, y, z, value=0.123), torch.addcdiv(x, y, z), torch.ops.aten.tanh_backward(x, torch.tanh(y)),
        torch.tanh(x), torch.exp(x), torch.log(x.abs()), torch.sqrt(x.abs()), torch.expm1(x), torch.lerp(x, y, 0.1),
        torch.sin(z), x.nan_to_num(0.0, 3.0, -3.0), torch.cat((x, y)), x[::3] + y[::3], x.flip(0), x.isfinite().float(),
        m.sum(1), m.sum(0, keepdim=True), z.mean(), torch.softmax(m.nan_to_num(), 1), m.amax(0), m.mT @ m, m.var(1),
        torch.nn.functional.layer_norm(m.nan_to_num(), (125,)), torch.nn.functional.softplus(x),
        *torch._foreach_add([x, y], [y, z], alpha=0.3), *torch._foreach_addcdiv([x], [y], [z], [0.1]),
        *torch.aminmax(m, dim=1), torch.add(m.t(), m.t(), alpha=0.3), x.double() * 0.1,
        x * torch.full((N,), 0.3), x.clamp_min(0.0), x.clamp_max(0.0), x.clamp_min(-0.0), x.clamp_max(-0.0),
    ]  # fmt: skip


def test_every_operation_has_the_bits_of_its_kernel():
    operands = [numbers(seed, N) for seed in range(3)]
    expected = all_operations(*operands)
    found = roundoff.compile(all_operations, None)(*operands)
    wrong = [
        i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same_bits(a, b) or a.dtype != b.dtype
    ]
    assert not wrong


def step(w, moment, x, y):
    """Forward, backward, an optimizer, in place."""
    leaf = w.detach().requires_grad_()
    h = torch.nn.functional.softplus(x @ leaf.view(20, 2))
    loss = (h - y).square()
    (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, 0.1))
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    w.addcdiv_(moment, moment.abs() + 0.3, value=-0.1)
    return {"loss": loss.mean(), "parts": [torch.exp(-h).sum(0), h.amax()]}


def arguments(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((40,), (40,), (33, 20), (33, 2))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def assert_same_training(program, simulation, dtype=torch.float32, updates=3):
    mine, theirs = arguments(dtype), arguments(dtype)
    for _ in range(updates):
        found = program(*mine)
        with simulation:
            expected = step(*theirs)
        assert same_bits(found["loss"], expected["loss"])
        assert all(same_bits(a, b) for a, b in zip(found["parts"], expected["parts"], strict=True))
        assert all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True))


def fresh(*args, **settings):
    return simulate(*args, **settings), simulate(*args, **settings)


@pytest.mark.parametrize("names", [("e5m10", "e5m2", "e6m9", "e4m7"), ("bf16", "fp8_e4m3", "e8m3")])
def test_formats_are_data(names):
    counters.clear()
    for name in names:
        eager, mine = fresh(name)
        assert_same_training(roundoff.compile(step, mine), eager)
    # All but the first came from the disk, whether the first did or not.
    assert counters["inductor"]["fxgraph_cache_hit"] >= len(names) - 1


@pytest.mark.parametrize(
    "settings",
    [
        {"rounding": "stochastic", "seed": 3, "random_bits": 6},
        {"rounding": "toward-zero"},
    ],
    ids=str,
)
def test_modes(settings, uncompiled):
    eager, mine = fresh("e5m6", **settings)
    assert_same_training(roundoff.compile(step, mine), eager)


def arithmetic(x, y, z):
    """What is rounded once from the exact result: operations, their variants, and how they lie in memory."""
    m = x[:1000].view(8, 125)
    w = x.clone()
    w.add_(y, alpha=0.3)
    w.mul_(1.1)
    return [
        x + y, x - y, x * y, x / y, x / 0.0316, 1 - x, 3 / x, x**2, x.reciprocal(), x.abs().sqrt(), x.abs() ** 0.5, w,
        torch.add(x, y, alpha=0.123), torch.rsub(x, y, alpha=0.5), torch.addcmul(x, y, z, value=0.123),
        torch.addcdiv(x, y, z), torch.lerp(x, y, 0.1), torch.lerp(x, y, z), m.mT + m.mT, (m.mT + m.mT).sum(0), m + m[0],
        m.mT.sqrt(), x[::3] + y[::3], x.double() * 0.1, x.double().abs().sqrt(), x + y.double()[3],
        *torch._foreach_add([x, y], [y, z], alpha=0.3), *torch._foreach_sqrt([x.abs(), m]), torch.tanh(x) * y,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rounding", "traced"),
    [("e5m6", "nearest-even", False), ("e8m9", "nearest-even", False),
     ("e5m6", "stochastic", True), ("e8m9", "to-odd", True), ("e8m30", "stochastic", True),
     *(pytest.param(*each, False, marks=pytest.mark.slow) for each in (
         ("e5m6", "down"), ("e5m6", "stochastic"), ("e8m9", "to-odd"), ("posit16_3", "nearest-away"),
         ("e8m30", "nearest-even"), ("e8m30", "stochastic")))],
)  # fmt: skip
def test_exact_arithmetic_has_the_bits_of_the_eager_one(name, rounding, traced, request):
    """Inductor writes rounding to nearest into its loops; programs call what rounds otherwise: graphs are compared."""
    if traced:
        request.getfixturevalue("uncompiled")
    dtype = roundoff.Format.parse(name).carrier
    x, y, z = (numbers(seed, N).to(dtype) for seed in range(3))
    eager, mine = fresh(name, rounding=rounding, seed=3)
    eager.step = mine.step = 5
    program = roundoff.compile(arithmetic, mine)
    for _ in range(2):  # the second call goes on drawing
        with eager:
            expected = arithmetic(x, y, z)
        found = program(x, y, z)
        assert all(same_bits(a, b) and a.stride() == b.stride() for a, b in zip(expected, found, strict=True))
        assert eager.draws == mine.draws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_roots_are_correctly_rounded(dtype):
    x = (numbers(0, N).to(dtype) / 3).abs()
    found = roundoff.compile(lambda x: torch.ops.roundoff.sqrt(x) * 1, None)(x)
    assert same_bits(found, torch.from_numpy(np.sqrt(x.numpy())))


def test_a_program_does_not_serve_formats_with_other_arithmetic():
    """Products of e8m8 are not the kernel's: they can be rounded twice."""
    one, other = (
        FormatsAsData([roundoff.Format.parse(n)], torch.float32, torch.device("cpu")) for n in ("e8m7", "e8m8")
    )
    same_kind = FormatsAsData([roundoff.Format.parse("e8m6")], torch.float32, torch.device("cpu"))
    assert one.kind == same_kind.kind != other.kind


@pytest.mark.parametrize(
    ("name", "dtype"), [("int8", torch.float32), ("posit8", torch.float32), ("e8m20", torch.float64)]
)
def test_other_families_and_wide_formats(name, dtype, request):
    if name != "e8m20":  # a program calls what rounds to the others
        request.getfixturevalue("uncompiled")
    eager, mine = fresh(name)
    assert_same_training(roundoff.compile(step, mine), eager, dtype)


@pytest.mark.parametrize("name", ["e8m50", "e8m51", "e5m52", "e11m52"])
def test_formats_nearly_as_wide_as_the_carrier(name):
    x = numbers(0, 99).double() / 3
    eager, mine = fresh(name)
    with eager:
        expected = x * 1.1
    assert same_bits(roundoff.compile(lambda x: x * 1.1, mine)(x), expected)


def test_rules_about_operations():
    policy = Policy("e5m4").with_rules(Rule("mm", format="fp32"), Rule("exp", format="e5m2"))
    eager, mine = fresh(policy)
    assert_same_training(roundoff.compile(step, mine), eager)


def test_a_changed_simulation_changes_the_step():
    """A program has the policy in it: one for each, also after a return to the first; a watcher ends compilation."""

    def scaled(x):
        return x * 3.1, torch.arange(100.0).sum()  # the sum is an integer that e5m3 does not have

    x = torch.linspace(-1, 1, 99)
    eager, mine = fresh("e5m3")
    program = roundoff.compile(scaled, mine)
    policies = [Policy("e5m3", **keys) for keys in ({}, {"rounding": "toward-zero"}, {"whole": "rounded"}, {})]
    results = []
    for policy in policies:
        eager.change(policy)
        mine.change(policy)
        with eager:
            results.append(scaled(x))
        assert all(map(same_bits, program(x), results[-1])), policy
        assert program.reason is None
    assert not same_bits(results[0][0], results[1][0])
    assert (float(results[0][1]), float(results[2][1])) == (4950, 5120)
    counter = mine.count_cost()
    with pytest.warns(CompileWarning, match="observing"):
        program(x)
    assert counter.report().table["calls"].sum() > 0
    # Another simulation inside of the step can also change.
    inner, mine = (fresh(name)[0] for name in ("e5m3", "e5m6"))

    def outer(x):
        with inner:
            return scaled(x)[0]

    program = roundoff.compile(outer, mine)
    for policy, (expected, _) in zip(policies, results, strict=True):
        inner.change(policy)
        assert same_bits(program(x), expected)
    inner.count_cost()
    with pytest.raises(roundoff.FormatError, match="traced cannot observe"):
        program(x)


def test_random_bits_go_on_between_compiled_and_eager_parts(uncompiled):
    def part(x):
        return x * 1.1

    x = torch.linspace(0, 1, 500)

    def eagerly(x):
        with eager:
            return part(x)

    eager, mine = fresh("e5m3", rounding="stochastic")
    program = roundoff.compile(part, mine)
    for step_number in (4, 5):
        eager.step = mine.step = step_number
        with eager:
            expected = [part(x), part(x), x + x, part(x)]
        found = [program(x), program(x)]
        with mine:
            found.append(x + x)
            found.append(program(x))  # the simulation around it is its own
        assert all(same_bits(a, b) for a, b in zip(expected, found, strict=True))
    # A thread begins in the same step, and counts for itself.
    with ThreadPoolExecutor() as threads:
        expected, found = (threads.submit(function, x).result() for function in (eagerly, program))
    assert same_bits(expected, found)


def test_its_own_simulation_acts_inside_another(uncompiled):
    x = torch.linspace(0, 1, 100)
    program = roundoff.compile(lambda x: x * 1.1, simulate("e5m6"))
    with simulate("e5m1"):
        found = program(x)
    assert same_bits(found, roundoff.round(x * torch.tensor(1.1), "e5m6"))


def test_a_program_for_each_shape_and_number(uncompiled):
    program = roundoff.compile(lambda x, factor: x * factor, simulate("e5m6"))
    for n, factor in ((5, 2.0), (6, 2.0), (5, 3.0)):
        assert same_bits(program(torch.ones(n), factor), torch.full((n,), factor))


def test_fixed_arguments_are_those_of_every_call(uncompiled):
    programs = {}
    for _ in range(2):
        state = {"sum": torch.zeros(5), "factor": torch.ones(5) / 3}
        program = CompiledStep(
            lambda state, x: state["sum"].add_(state["factor"] * x), simulate("e5m6"), programs, fixed=(state,)
        )
        for x in (torch.ones(5), torch.full((5,), 2.0)):
            program(x)
        program.run_eagerly(torch.full((5,), 3.0))
        assert same_bits(state["sum"], torch.full((5,), 2.0))
    assert len(programs) == 1


def reads_a_number(x):
    return x * 2 if x.sum() > 0 else x


class Hidden:
    """Keeps tensors where no look around a step finds them."""

    __slots__ = ("sum",)

    def __init__(self):
        self.sum = torch.zeros(3)


HIDDEN = Hidden()
SUM = torch.zeros(3)
COUNTS = {"calls": 0}


def writes_where_nothing_is_found(x):
    HIDDEN.sum.add_(x)
    return x


def counts(x):
    SUM.add_(x)
    COUNTS["calls"] += 1
    return x


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reads_a_number, r"test_step.py:\d+: return x \* 2 if"),
        (writes_where_nothing_is_found, r"test_step.py:\d+: HIDDEN.sum.add_.* was not found around it"),
        (counts, r"the step changes COUNTS\['calls'\] from 0 to 1"),
        (lambda x: x.sum().item(), r"reads a number from a tensor"),
        (lambda x: "text", "returns tensors, or nothing"),
    ],
)
def test_what_cannot_be_traced(bad, message):
    simulation = simulate("e5m6", rounding="stochastic")
    simulation.step = 7
    with pytest.raises(FormatError, match=message):
        roundoff.compile(bad, simulation)(torch.ones(3))
    assert (simulation.step, simulation.draws) == (7, 0)
    assert not HIDDEN.sum.any()
    assert not SUM.any()
    assert COUNTS == {"calls": 0}


def test_tensors_around_a_step(uncompiled):
    """What its code finds in globals and closures it reads and writes, in every call; and others that are put there."""
    kept = {"sum": torch.zeros(3), "latest": torch.zeros(3)}

    def step(x):
        kept["sum"].add_(SUM).add_(x)
        kept["latest"] = x * 1.1
        return SUM.mul_(0.5)

    program, eager = roundoff.compile(step, simulate("e5m6")), simulate("e5m6")
    results = []
    for run in (program, step):
        kept.update({"sum": torch.zeros(3), "latest": torch.zeros(3)})
        SUM.fill_(1.0)
        for i in range(3):
            kept["sum"] = kept["sum"].clone()
            x = torch.full((3,), 0.1 * i)
            with eager if run is step else nullcontext():
                run(x)
        results.append([kept["sum"].clone(), kept["latest"].clone(), SUM.clone()])
    SUM.zero_()
    assert program.reason is None
    assert all(map(same_bits, *results))


def test_other_compiled_programs_are_left_as_they_were():
    x = numbers(0, 33)
    roundoff.compile(lambda x: torch.tanh(x) * 2, simulate("e5m6"))(x)  # inductor, first used, registers lowerings
    before = dict(vars(CppVecOverrides)), dict(lowering.lowerings)
    roundoff.compile(lambda x: torch.tanh(x) * 3, simulate("e5m6"))(x)
    assert (dict(vars(CppVecOverrides)), dict(lowering.lowerings)) == before
    with config.patch({"cpp_cache_precompile_headers": False}):  # of its folder, which this program is alone in
        torch.compile(lambda x: x.view(torch.int32) + 1)(x)


def test_leaves_of_autograd(uncompiled):
    def descend(w, x):
        (gradient,) = torch.autograd.grad((x @ w).square().sum(), w)
        with torch.no_grad():
            w.sub_(gradient, alpha=0.01)

    def backward(w, x):
        (x @ w).square().sum().backward()

    x, w = numbers(0, 40).nan_to_num(1.0, 1.0, 1.0).clamp(-2, 2).view(10, 4), torch.ones(4, requires_grad=True)
    expected = w.detach().clone().requires_grad_()
    with simulate("e5m6"):
        descend(expected, x)
    roundoff.compile(descend, simulate("e5m6"))(w, x)
    assert same_bits(w.detach(), expected.detach())
    with pytest.raises(FormatError, match=r"take them from torch.autograd.grad"):
        roundoff.compile(backward, simulate("e5m6"))(w, x)


def test_arguments_that_are_no_tensors():
    with pytest.raises(FormatError, match=r"tensors, modules, optimizers, numbers and text.*set"):
        roundoff.compile(lambda x, y: x, None)(torch.ones(2), {1})


def test_arguments_that_share_memory():
    def writes(x, y):
        x.add_(y)

    def reads(x, y):
        return x + y

    x = torch.ones(4)
    with pytest.raises(FormatError, match="tensors 0 and 1 of the arguments"):
        roundoff.compile(writes, None)(x, x[:])
    assert same_bits(roundoff.compile(reads, None)(x, x[:]), x + x)
    with pytest.raises(FormatError, match="takes tensors"):
        roundoff.compile(lambda: torch.ones(2), None)()


@pytest.mark.parametrize(
    ("simulation", "reason"),
    [
        (lambda: simulate("e5m6", observe=True), "observing"),
        (lambda: simulate("e5m6", accumulate="e5m6/8"), "accumulation"),
        (lambda: simulate(Policy("e5m6").with_rules(Rule(role="parameters", format="fp32"))), "parameters"),
        (lambda: simulate(Policy.fp8("rowwise", "e5m6")), "operands of products, found only while a program runs"),
        (lambda: simulate("e5m6", scalars="rounded"), "scalars"),
        (lambda: simulate("e5m6", granularity="primitive"), "granularity"),
    ],
)
def test_simulations_that_are_not_traced_run_eagerly(simulation, reason):
    with pytest.warns(CompileWarning, match=reason):
        program = roundoff.compile(step, simulation())
    assert_same_training(program, simulation(), updates=1)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler(compiler, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    program_module._reason_of_this_machine.cache_clear()
    warned = pytest.warns(CompileWarning, match=r"compiler does not work here.*needs g\+\+")
    with config.patch({"cpp.cxx": (compiler,)}), warned:
        program = roundoff.compile(step, simulate("e5m6"))
    program_module._reason_of_this_machine.cache_clear()
    assert_same_training(program, simulate("e5m6"), updates=1)
