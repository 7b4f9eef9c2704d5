"""Tensors in float16 and bfloat16 inside a simulation: the bits of the same program in float32, rounded once."""

import copy
import math
import re

import pytest
import torch
from comparing import same_bits
from each import each
from hypothesis import given
from hypothesis import strategies as st
from networks import Convolutional, Draw, Graph, Mixture, Recurrent, UNet
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff
from roundoff import FormatError, Policy, PolicyWarning, Rule, simulate
from roundoff.formats import Format
from roundoff.simulate.policy.carriers import holds

HALF, BRAIN = torch.float16, torch.bfloat16
HELD = {HALF: ["e5m10", "e5m7", "e4m3", "e4m6_saturate", "q3.4"], BRAIN: ["e8m7", "e5m7", "e4m3", "posit8"]}
PAIRS = [(dtype, fmt) for dtype, formats in HELD.items() for fmt in formats]


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "add_": lambda x, y: x.clone().add_(y),
    "foreach": lambda x, y: torch._foreach_mul([x], [y])[0],
    "out": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
}


@pytest.mark.parametrize(("dtype", "fmt"), PAIRS, ids=str)
@given(data=st.data())
def test_arithmetic_is_rounded_once(dtype, fmt, data):
    """Sums and products of numbers of the format, which float64 has exactly, rounded to it: none is rounded twice."""
    codes = torch.tensor(data.draw(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=16, max_size=16)))
    x, y = codes.to(torch.int16).view(dtype).view(2, 8)
    x, y = (v.nan_to_num(1.0, 1.0, 1.0).clamp(-(2.0**15), 2.0**15) for v in (x, y))
    x, y = (torch.where(v.abs() < 2.0**-14, 0.5, v) for v in (x, y))  # 53 bits are enough for their sums
    x, y = (roundoff.round(v.float(), fmt).to(dtype) for v in (x, y))
    for name, operation in ARITHMETIC.items():
        with simulate(fmt):
            found = operation(x, y)
        assert found.dtype == dtype, name
        exact = roundoff.round(operation(x.double(), y.double()), fmt)
        assert same(found.double(), exact), name


def test_rounding_what_pytorch_has_rounded_would_be_another_number():
    """1 + 2^-8 + 2^-12 lies above the middle of two numbers of e5m7; float16, with 11 bits, rounds it to the middle."""
    x, y = torch.tensor([1 + 2.0**-8], dtype=HALF), torch.tensor([2.0**-12], dtype=HALF)
    with simulate("e5m7"):
        assert (x + y).item() == 1 + 2.0**-7
    assert roundoff.round((x + y).float(), "e5m7").item() == 1


@pytest.mark.parametrize(("dtype", "fmt"), [(HALF, "e5m10"), (BRAIN, "e8m7")], ids=str)
def test_the_dtypes_own_format_gives_native_bits(dtype, fmt):
    """PyTorch's kernels for them compute these in float32 and round once."""
    codes = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x, y = codes.view(dtype), codes[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))].view(dtype)
    for compute in (lambda: x * y, lambda: x + y, lambda: x / y, x.exp, x.tanh, lambda: torch.where(x > y, x, y)):
        native = compute()
        with simulate(fmt):
            assert same(compute().float(), native.float())


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-2, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-2, fused=True),
}


def trained(kind, dtype, fmt, optimizer, **options):
    """The losses and weights of three steps that begin with numbers of the format."""
    torch.manual_seed(0)
    net = kind()
    with torch.no_grad():
        for value in (*net.parameters(), *net.buffers()):
            if value.is_floating_point():
                value.copy_(roundoff.round(value, fmt))
    net.to(dtype)
    data = [roundoff.round(x, fmt).to(dtype) if x.is_floating_point() else x for x in net.data(Draw(0, torch.float32))]
    step, losses = OPTIMIZERS[optimizer](net.parameters()), []
    with simulate(fmt, **options, whole="rounded") as simulation:  # of a float32 program counts are left whole
        for _ in range(3):
            step.zero_grad()
            loss = net.loss(*data)
            loss.backward()
            step.step()
            losses.append(loss.detach().double())
    return losses, [x.detach().double() for x in net.parameters()], simulation


def shrunk(x, number):
    y = x.clone().requires_grad_()
    for function in (torch.nn.functional.hardshrink, torch.nn.functional.softshrink, torch.clamp_max):
        function(y, number).sum().backward()
    return y.grad


COMPARED = [
    *(getattr(torch, name) for name in ("eq", "ge", "gt", "le", "lt", "ne", "fmod", "remainder")), shrunk,
    lambda x, number: x.clone().gt_(number),
    lambda x, number: torch.where(x >= number, x, 0), lambda x, number: number > x,
]  # fmt: skip


@each(("dtype", "fmt"), [(torch.float16, "e5m10"), (torch.bfloat16, "e8m7")])
def test_python_numbers_are_compared_in_the_dtype(dtype, fmt):
    for number in (0.1, 0.3, 0.7, 1 / 3, 1001.0, 2049, 1e9, math.inf):
        x = torch.tensor([number, 0.5]).to(dtype)
        x = torch.cat([x, torch.nextafter(x, x * 2), torch.nextafter(x, x * 0)])
        for compare in COMPARED if number < 1e9 else COMPARED[:6]:  # shrinking refuses what float16 has not
            native = compare(x, number)
            for rounding in ("nearest-even", "stochastic"):
                with simulate(fmt, rounding=rounding):
                    assert same_bits(compare(x, number), native)
        with simulate(fmt):
            assert (x.abs().clamp(min=number) == number)[:1].all()
    x = torch.tensor([0.1015625, 400.0]).to(dtype)  # values of the narrower format
    with simulate("fp8_e4m3"):
        assert torch.equal(x == 0.1, torch.tensor([True, False]))
        assert (x < 1e9).all()  # NaN in the format
        assert torch.equal(x.float() == 0.1, torch.tensor([False, False]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Convolutional, UNet, Recurrent, Graph, Mixture])
def test_a_half_network_trains_with_the_bits_of_a_float32_network(kind, optimizer):
    for dtype, fmt in ((HALF, "e5m10"), (BRAIN, "e5m7")):
        wide, narrow = (trained(kind, d, fmt, optimizer)[:2] for d in (torch.float32, dtype))
        assert all(map(same, wide[0] + wide[1], narrow[0] + narrow[1]))
        assert all(same(x, roundoff.round(x, fmt)) for x in narrow[1])


WAYS = [
    {"rounding": "stochastic", "seed": 3}, {"rounding": "toward-zero"}, {"granularity": "primitive"}, {"observe": True},
    {"accumulate": "e5m10/4"}, {"shadow": "fp64"}, {"scalars": "rounded"},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the accumulator of the policy does not reach:roundoff.PolicyWarning")
@pytest.mark.parametrize("options", WAYS, ids=lambda options: next(iter(options)))
def test_settings_mean_what_they_mean_for_float32(options):
    wide, narrow = (trained(UNet, dtype, "e5m7", "adam", **options) for dtype in (torch.float32, BRAIN))
    assert all(map(same, wide[0] + wide[1], narrow[0] + narrow[1]))
    if "observe" in options:
        assert set(wide[2].report().table.operation) <= set(narrow[2].report().table.operation)
    if "shadow" in options:
        one, other = (ran[2].shadow_report().table.set_index(["role", "operation"]) for ran in (wide, narrow))
        assert one.loc[("forward", "mse_loss")].to_dict() == pytest.approx(other.loc[("forward", "mse_loss")].to_dict())


def test_the_gradient_that_backpropagation_begins_with_draws_no_bits():
    """The first gradient is one, in every dtype: so the random bits behind it are those of a float32 program."""
    found = []
    for dtype in (torch.float32, BRAIN, HALF):
        w = roundoff.round(torch.randn(40, generator=torch.Generator().manual_seed(0)), "e5m7").to(dtype)
        w.requires_grad_()
        with simulate("e5m7", rounding="stochastic") as simulation:
            (w * w * w).mean().backward()
        found.append((simulation.draws, w.grad.tolist()))
    assert found[0] == found[1] == found[2]


def test_rules_about_operands_see_halves():
    x, w = torch.randn(4, 64).to(BRAIN), torch.randn(64, 8).to(BRAIN).requires_grad_()
    rules = {"operands": Rule("mm", operands="mxfp8_e4m3"), "both": Rule(role=["parameters", "inputs"], format="e4m3")}
    for name, rule in rules.items():
        with simulate(Policy("fp32").with_rules(rule)):
            found = x @ w
        with simulate(Policy("fp32").with_rules(rule)):
            expected = x.float() @ w.detach().float().requires_grad_()
        assert found.dtype == BRAIN
        assert torch.equal(found, expected.to(BRAIN)), name
        assert not torch.equal(found, x @ w)


@pytest.mark.filterwarnings("ignore:.* stays .* when 1 is added")
def test_views_lists_and_memory_are_the_programs_own():
    x = torch.arange(24.0).view(4, 6).to(HALF)
    with simulate("e4m3"):
        y = x.clone()
        view = y[1:3].T
        view.mul_(1.1)
        assert y.add_(1) is y
        y[:, y[0] > 3] = 0.3
        y.unsqueeze_(0)
        a, b = torch._foreach_add([y, y * 2], 0.3)
        assert torch.equal(torch.sub(y, 1, out=a), a)
        assert view.data_ptr() == y[0, 1].data_ptr()
    reference = x.float()
    with simulate("e4m3"):
        z = reference.clone()
        z[1:3].T.mul_(1.1)
        z.add_(1)
        z[:, z[0] > 3] = 0.3
    assert torch.equal(y[0].float(), z)
    assert a.dtype == b.dtype == HALF


def test_products_of_a_mixture_of_experts():
    x, w, ends = torch.randn(8, 16).to(BRAIN), torch.randn(2, 16, 32).to(BRAIN), torch.tensor([3, 8], dtype=torch.int32)
    plain = x.float(), w.float()
    for settings in ("e5m5", Policy.mixed_precision("e4m3"), Policy("e5m5", accumulate="e5m5/4")):
        with simulate(settings):
            narrow = torch.nn.functional.grouped_mm(x, w, offs=ends)
        with simulate(settings):
            wide = torch.nn.functional.grouped_mm(*plain, offs=ends)
        assert narrow.dtype == BRAIN
        assert not torch.equal(narrow, torch.nn.functional.grouped_mm(x, w, offs=ends))
        assert torch.equal(narrow, wide.to(BRAIN))


class Llama(torch.nn.Module):
    """A block with Llama's islands: a norm in float32, a softmax in float32, a mask of the smallest number."""

    def __init__(self, width=16):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, mask):
        wide = x.to(torch.float32)
        x = self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q, k, v = self.inner(x).chunk(3, -1)
        scores = q @ k.mT * 0.25 + torch.where(mask, 0.0, torch.finfo(x.dtype).min).to(x.dtype)
        return self.outer(scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ v)


def attended(dtype, simulation, large=300.0):
    torch.manual_seed(0)
    net = Llama().to(dtype)
    x, mask = (torch.randn(2, 5, 16) * large).to(dtype), torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False  # a row of padding
    with simulation:
        loss = net(x, mask).square().mean()
        loss.backward()
    return loss.detach(), net.inner.weight.grad


def test_islands_are_exact():
    """The squares of numbers near 300 overflow in e5m10, and not in an island, as in native half precision."""
    native, gradient = attended(HALF, simulate("fp32"))
    rounded, _ = attended(HALF, simulate("e5m10"))
    exact, found = attended(HALF, simulate("e5m10", islands="exact"))
    assert gradient.isfinite().all()
    assert not torch.equal(rounded, native)
    torch.testing.assert_close(exact, native, rtol=2**-9, atol=0.0)
    torch.testing.assert_close(found, gradient, rtol=2**-6, atol=2**-10)


def test_what_is_an_island():
    x, wide = torch.linspace(0.1, 1, 7).to(HALF), torch.linspace(1, 2, 7)
    with simulate("e5m3", islands="exact") as simulation:
        results = {"half": x * 1.1, "wide": wide * 1.1, "up": x.float(), "down": wide.half(), "met": x * wide}
        results["sum"] = x.sum(dtype=torch.float32)
        wide.clone().copy_(x)
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [7], torch.ones(7), torch.zeros(7), 1e-5)
        into = torch.zeros(7, dtype=HALF).add_(wide)
    assert torch.equal(results["wide"], wide * 1.1)
    assert torch.equal(results["up"], x.float())
    assert torch.equal(results["met"], x * wide)
    assert torch.equal(results["sum"], x.sum(dtype=torch.float32))
    for found in (results["half"], results["down"], into):
        assert found.dtype == HALF
        assert same(found.float(), roundoff.round(found.float(), "e5m3"))
    assert mean.dtype == rstd.dtype == torch.float32
    assert rstd != roundoff.round(rstd, "e5m3")
    table = simulation.audit().table
    assert table[table.treatment.str.contains("of the program's own")].calls.sum() > 3
    assert table[table.treatment == "rounded"].calls.sum() > 2


@pytest.mark.parametrize("shapes", [((), (2,)), ((2,), ())], ids=str)
def test_a_number_without_axes_decides_no_dtype_whatever_came_before(shapes):
    with simulate("e5m7"):
        found = [(torch.ones(2, dtype=HALF) + torch.ones(shape)).dtype for shape in shapes]
    assert found == [torch.float32 if shape else HALF for shape in shapes]


def test_islands_where_a_rule_has_them():
    policy = Policy("e5m3").with_rules(Rule(module="Sequential.1", islands="exact"))
    assert Policy.parse(policy.as_json()) == policy
    torch.manual_seed(0)
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.rand(3, 4)
    results = []
    for layer in net:
        layer.register_forward_hook(lambda _layer, _x, y: results.append(y.detach()))
    with simulate(policy, root=net):
        net(x)
    assert [same(x, roundoff.round(x, "e5m3")) for x in results] == [True, False, True]
    with pytest.raises(FormatError, match="islands must be rounded, exact, got 'some'"):
        simulate("e5m3", islands="some")


def test_a_float32_program_with_islands_is_told_that_nothing_was_simulated():
    with pytest.warns(PolicyWarning, match="so nothing was simulated"), simulate("e5m3", islands="exact"):
        assert torch.tensor(1.01) * 1 == torch.tensor(1.01)


@pytest.mark.parametrize("islands", ["rounded", "exact"])
@pytest.mark.parametrize(("dtype", "fmt"), [(HALF, "e5m10"), (HALF, "e5m7"), (BRAIN, "e8m7"), (BRAIN, "e4m3")], ids=str)
def test_autocast_with_a_loss_scale(dtype, fmt, islands):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    optimizer, scaler = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3), torch.amp.GradScaler("cpu", 16.0)
    x, y, losses = torch.randn(32, 8), torch.randint(0, 3, (32,)), []
    with simulate(fmt, islands=islands):
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                output = net(x)
                loss = torch.nn.functional.cross_entropy(output, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    assert output.dtype == dtype
    assert losses[-1] < losses[0] - 0.1
    weight = net[0].weight.detach()
    assert same(weight, roundoff.round(weight, fmt)) == (islands == "rounded")


def test_muon():
    """Muon's Newton-Schulz iteration is in bfloat16, whatever the program is in."""

    def stepped(fmt):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(8, 8))
        weight.grad = torch.randn(8, 8)
        with simulate(fmt):
            torch.optim.Muon([weight], lr=0.1).step()
        return weight.detach()

    assert same(stepped("e5m7"), roundoff.round(stepped("e5m7"), "e5m7"))
    with pytest.raises(FormatError, match="bfloat16 does not have all numbers of e5m10"):
        stepped("e5m10")
    assert stepped(Policy("e5m10").with_rules(Rule(role="optimizer", format="fp32"))).isfinite().all()


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        ([], "Rule('add', format='fp32'), or, for an optimizer such as Muon, Rule(role='optimizer', format='fp32')"),
        ([Rule("mul", role="forward", format="fp32")], "such as Rule('add', format='fp32')"),
    ],
    ids=["role unknown", "forward"],
)
def test_the_rule_that_is_suggested_helps(rules, advice):
    x = torch.ones(2, dtype=BRAIN)
    with simulate(Policy("e5m10").with_rules(*rules)):
        torch.ones(2) * 2
        with pytest.raises(FormatError) as refused:
            x + 1
    assert str(refused.value).endswith(advice)
    with simulate(Policy("e5m10").with_rules(Rule("add", format="fp32"))):
        assert (x + 1).dtype == BRAIN


def test_the_rule_that_is_suggested_in_an_optimizer_helps():
    weight = torch.nn.Parameter(torch.randn(8, 8))
    weight.grad = torch.randn(8, 8)
    policy = Policy("e5m10").with_rules(Rule("lerp_", role="optimizer", format="fp32"))
    with simulate(policy), pytest.raises(FormatError) as refused:
        torch.optim.Muon([weight], lr=0.1).step()
    assert str(refused.value).endswith("such as Rule(role='optimizer', format='fp32')")
    with simulate(policy.with_rules(Rule(role="optimizer", format="fp32"))):
        torch.optim.Muon([weight], lr=0.1).step()


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@each("name", ["e5m10", "e8m7", "e5m7", "e6m5", "e4m3fn", "binary8p3", "posit8", "q7.8", "lns5_3", "int8"])
def test_which_dtype_holds_which_format(name, dtype):
    """Number by number; formats without numbers of their own lie in neither."""
    fmt = Format.parse(name)
    expected = fmt.elementwise and all(torch.tensor(x, dtype=dtype).item() == x for x in fmt.values().tolist()[::7])
    assert holds(dtype, fmt) == expected


@pytest.mark.parametrize(
    ("program", "fmt", "message"),
    [
        (lambda: torch.ones(2, dtype=BRAIN) + 1, "e5m10", "run the program in torch.float16 or torch.float32"),
        (lambda: torch.ones(2).half(), "e8m7", "run the program in torch.bfloat16 or torch.float32"),
        (lambda: torch.ones(2).half(), "e6m9", r"in torch.float32 \(leave out .half"),
        (lambda: torch.ones(2, dtype=torch.float64).half(), "e5m12", "run the program in torch.float64"),
        (lambda: torch.ones(2, 32).half(), "mxfp8_e4m3", "does not have all numbers of mxfp8_e4m3"),
        (lambda: torch.ones(2).to(torch.float8_e5m2), "e5m2", "computed torch.float8_e5m2"),
    ],
)
def test_what_cannot_be_simulated_is_refused(program, fmt, message):
    with simulate(fmt), pytest.raises(FormatError, match=message):
        program()


def test_what_pytorch_rounds_to_half_unasked_is_refused():
    torch.set_default_dtype(HALF)
    try:
        with simulate("e5m7"), pytest.raises(FormatError, match="of no tensor with that dtype"):
            torch.rand(3)
    finally:
        torch.set_default_dtype(torch.float32)


def test_compiled_steps_refuse_halves_in_words():
    program = roundoff.compile(lambda x: x * 1.1, simulate("e5m7"))
    with pytest.raises(FormatError, match="a compiled step computes in float32 or float64"):
        program(torch.ones(3).half())
    with pytest.warns(PolicyWarning, match="nothing was simulated"):
        found = roundoff.compile(lambda x: x * 1.1, simulate("e5m7", islands="exact"))(torch.ones(9))
    assert torch.equal(found, torch.ones(9) * 1.1)


def test_nested_simulations_and_copies():
    x = torch.linspace(0, 1, 9).to(BRAIN)
    with simulate("e8m7"):
        with simulate("fp32"):
            plain = x * 1.1
        with copy.deepcopy(simulate("e5m3", islands="exact")):
            inner = x * 1.1
    assert torch.equal(plain, x * 1.1)
    assert same(inner.float(), roundoff.round(inner.float(), "e5m3"))


def test_a_softmax_that_converts_to_float32_is_rounded_there():
    x = (torch.arange(8) / 4 - 1).to(HALF)
    with simulate("e4m3"):
        found = torch.ops.aten._softmax(x, 0, True)
        expected = x.float().softmax(0)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_what_writes_returns_the_memory_that_it_has_written_to():
    class Outer(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            returned.append(result is args[0])
            return result

    x, returned = torch.ones(3, dtype=HALF), []
    with simulate("e4m3"), Outer():
        x.add_(1)
    assert returned == [True]


def test_dtypes_that_a_kernel_does_not_mix_raise_its_own_error_and_nothing_is_logged(caplog):
    x, half = torch.ones(3), torch.ones(3, dtype=torch.float16)
    mixing = [torch.dot, torch.vdot, lambda x, y: torch.mm(x[None], y[:, None]), lambda x, y: torch.mv(x[None], y)]
    for operation in mixing:
        with pytest.raises(RuntimeError) as plain:
            operation(x, half)
        with pytest.raises(RuntimeError, match=re.escape(str(plain.value))), simulate("e5m10"):
            operation(x, half)
    with simulate("e5m10"):
        assert (x + half).dtype == torch.float32
    assert caplog.records == []
