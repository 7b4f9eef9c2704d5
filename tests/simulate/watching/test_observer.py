"""The observer counts what rounding did, says where, and names the first non-finite result."""

import math
from itertools import product

import pandas as pd
import pytest
import torch
from devices import Waited, stand_ins
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

import roundoff
from roundoff.formats import Format, FormatError
from roundoff.simulate import Policy, Rule, simulate
from roundoff.simulate.watching.counting import EXPONENTS, LOWEST_EXPONENT, Counter


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 300),
    spread=st.floats(0.1, 60),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    fmt=st.sampled_from(["e5m10", "e4m3", "e2m0", "e8m7"]),
)
def test_counts_are_what_torch_counts(seed, n, spread, dtype, fmt):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=dtype) * torch.exp(
        spread * torch.randn(n, generator=generator, dtype=dtype)
    )
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0], dtype=dtype)
    x = torch.where(torch.rand(n, generator=generator) < 0.2, special[torch.arange(n) % 6], x)
    y = roundoff.round(x, fmt)
    normal = Format.parse(fmt).smallest_normal
    counter = Counter(dtype, normal)
    counter.count(x[: n // 2], y[: n // 2])
    counter.count(x[n // 2 :], y[n // 2 :])
    finite = y.isfinite()
    assert counter.results == n
    assert tuple(counter.counts) == (
        (y.isinf() & x.isfinite()).sum(),
        ((y == 0) & (x != 0)).sum(),
        ((y != 0) & (y.abs() < normal)).sum(),
        y.isinf().sum(),
        y.isnan().sum(),
        (finite & (x != y)).sum(),
    )
    magnitudes = y[finite & (y != 0)].abs().double()
    expected = torch.zeros(EXPONENTS, dtype=torch.int64)
    lowest = -127 if dtype == torch.float32 else -1023
    bins = (torch.frexp(magnitudes).exponent - 1).clamp(min=lowest) - LOWEST_EXPONENT
    expected.index_add_(0, bins.long(), torch.ones_like(bins, dtype=torch.int64))
    assert torch.equal(torch.from_numpy(counter.histogram.sum(0)), expected)
    if len(magnitudes):
        assert counter.extremes.tolist() == [magnitudes.min().item(), magnitudes.max().item()]
    else:
        assert counter.extremes.tolist() == [math.inf, 0.0]


def observed(x, born="infinity"):
    with simulate("e5m10", observe=True) as sim:
        y = x * 1.001
        (y[:0].sum(), y[0] + 1e-3, y.t() * 2, torch._foreach_add([y, x], 1e-4), x.double() / 3)
        if born == "infinity":
            y.mul_(1e30).sub_(y)
        elif born == "NaN":
            y.sub_(y).div_(y)
    return sim


LEAVING = {
    "fp32": "fp32",
    "products": Policy.mixed_precision("e5m7"),
    "storage": Policy.storage("e5m7"),
    "operands": Policy("fp32").with_rules(Rule(["mm", "addmm"], operands="mxfp8_e4m3")),
    "one": Policy("e5m7").with_rules(Rule("gelu", format="fp32")),
}
"""Policies that leave operations of a half-precision program in its own dtype."""


@pytest.mark.filterwarnings("ignore::roundoff.PolicyWarning")
@each(("name", "autocast", "dtype"), product(LEAVING, (False, True), (torch.float16, torch.bfloat16)))
def test_programs_in_half_precision_are_observed_and_keep_their_bits(name, dtype, autocast):
    """``model.half()`` with AdamW; and autocast with a GradScaler and clipped gradients, as trainers have it."""

    def trained(simulation):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        net, x = (net, torch.randn(5, 6)) if autocast else (net.to(dtype), torch.randn(5, 6).to(dtype))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-3)
        scaler = torch.amp.GradScaler("cpu", enabled=autocast, init_scale=256.0)
        with simulation:
            for _ in range(2):
                with torch.autocast("cpu", dtype, enabled=autocast):
                    loss = net(x).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        return [loss.detach(), *(parameter.detach() for parameter in net.parameters())]

    observing = simulate(LEAVING[name], observe=True)
    assert all(map(torch.equal, trained(observing), trained(simulate(LEAVING[name]))))
    table = observing.report().table.set_index(["operation", "role"])
    assert table.loc[("gelu", "forward"), "results"] == 2 * 5 * 8


@each(("dtype", "scale"), [(torch.float16, 2.0**-14), (torch.bfloat16, 2.0**-126)])
def test_results_left_in_a_dtype_of_the_programs_own_are_counted_as_its_numbers(dtype, scale):
    x = (torch.tensor([0.5, 1.0, 0.25, 3.0, 0.0]) * scale).to(dtype)  # two subnormal, two normal, and a zero
    with simulate("fp32", observe=True) as simulation:
        torch.neg(x)
        torch.neg(x.float())
        torch.div(x[:1], 0)
    table = simulation.report().table.set_index("operation")
    assert table.loc["neg", ["results", "subnormal", "inexact"]].tolist() == [10, 2 + 2 * (dtype == torch.bfloat16), 0]
    assert table.loc["neg", ["smallest", "largest"]].tolist() == [0.25 * scale, 3 * scale]
    assert simulation.report().birth[2:4] == ("div", "infinity")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@each("dtype", [torch.complex32, torch.float8_e5m2])
def test_other_narrow_dtypes_that_the_policy_leaves_alone_are_observed(dtype):
    with simulate("fp32", observe=True) as simulation:
        y = torch.tensor([3.0, 0.5]).to(dtype).clone()
    assert y.dtype == dtype
    assert simulation.report().table["largest"].tolist() == [3.0] * 3


@each("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2])
def test_what_is_written_over_in_narrow_dtypes_is_looked_at(dtype):
    with simulate("fp32", observe=True) as simulation:
        target = torch.zeros(3, dtype=torch.uint8).view(dtype)
        target.copy_(torch.ones(3, dtype=torch.uint8).view(dtype))
        torch.ones(1) / 0
    assert simulation.report().birth.operation == "div"


@each("born", [None, "infinity", "NaN"])
def test_counts_on_a_device_are_the_cpus_and_nothing_waits_for_them(born, monkeypatch):
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    x[1, :2] = torch.tensor([2.0**-14, 2.0**-20]) / 1.001  # times 1.001: the smallest normal number, and a subnormal
    here = observed(x, born)
    with stand_ins(monkeypatch) as device:
        there = x.cuda()
        with device.nothing_waits():
            sim = observed(there, born)
            with pytest.raises(Waited):
                sim.report()
        report, again = sim.report(), simulate("e5m10", observe=True)
        again.load_observer_state(sim.observer_state())
    assert report.birth == here.report().birth
    assert (report.birth is None) == (born is None)
    for other in (report, again.report()):
        pd.testing.assert_frame_equal(other.table, here.report().table)
        pd.testing.assert_frame_equal(other.histogram, here.report().histogram)


def test_tensors_without_data_are_passed_over():
    with simulate("e5m10", observe=True) as sim:
        torch.ones(3, device="meta") * 2
        hessian = torch.func.hessian(lambda x: (x.sin() * x).sum())(torch.ones(3))
    assert sim.report().table["results"].sum() > 0
    assert hessian.isfinite().all()


def row(report, **where):
    table = report.table
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1, report.table.to_string()
    return table.iloc[0]


def test_places_and_counts():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Tanh()))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9, foreach=False)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    with simulate("e5m10", observe=True) as sim:
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        torch.full((7,), 1e9) * 2.0  # 1e9 overflows already; infinity times 2 does not again
    report = sim.report()
    assert row(report, role="forward", module="Sequential.0", operation="addmm").results == 8
    assert row(report, role="forward", module="Sequential.1.0", operation="tanh").calls == 1
    assert row(report, role="backward", operation="tanh_backward").results == 8
    update = row(report, role="optimizer", operation="add_")
    assert (update.calls, update.results, update.additions, update.absorbed) == (2, 16, 16, 16)
    assert row(report, role="forward", module="", operation="full").overflow == 7
    doubled = row(report, role="forward", module="", operation="mul")
    assert (doubled.overflow, doubled.infinite) == (0, 7)
    assert math.isnan(doubled.largest)
    tanh = report.histogram[report.histogram.role == "forward"]
    assert tanh.results.sum() == report.table[report.table.role == "forward"].eval("results - infinite - nan").sum()


def test_observing_changes_no_result():
    def train(sim):
        net = torch.nn.Linear(5, 5)
        with torch.no_grad():
            net.weight.copy_(torch.linspace(-1, 1, 25).view(5, 5))
            net.bias.zero_()
        optimizer = torch.optim.Adam(net.parameters(), eps=1e-3)
        with sim:
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.linspace(0, 1, 10).view(2, 5)).exp().sum().backward()
                optimizer.step()
        return [*net.parameters(), *(p.grad for p in net.parameters())]

    for fmt in ("e5m10", "e4m3", "fp32"):
        for a, b in zip(train(simulate(fmt)), train(simulate(fmt, observe=True)), strict=True):
            assert torch.equal(a, b)


@each(
    ("program", "additions", "absorbed"),
    [
        (lambda x, y: x + y, 3, 1),
        (lambda x, y: x.add_(y), 3, 1),
        (lambda x, y: x - y, 3, 1),
        (lambda x, y: torch.lerp(x, x + y * 1000, 1e-7), 3, 3),
        (lambda x, y: torch._foreach_add_([x, x], [y, y]), 6, 2),
        (lambda x, y: x.addcmul_(y, y, value=1e-4), 3, 2),
        (lambda x, y: x.addcdiv_(y, torch.ones(4), value=1e-4), 3, 3),
    ],
)
def test_absorbed_additions(program, additions, absorbed):
    x = torch.tensor([1.0, 1.0, 1.0, 1.0])
    y = torch.tensor([0.0, 2.0**-12, 0.5, 4.0])
    with simulate("e5m10", observe=True) as sim:
        program(x, y)
    table = sim.report().table
    table = table[table.operation.isin(["add", "add_", "sub", "lerp", "_foreach_add_", "addcmul_", "addcdiv_"])]
    table = table.tail(1) if "lerp" in set(table.operation) else table
    assert (table.additions.sum(), table.absorbed.sum()) == (additions, absorbed)


@each("contiguous", [True, False])
def test_nothing_is_absorbed_by_infinity(contiguous):
    """One compiled pass counts, or tensor operations where numbers do not lie side by side."""
    x, y = torch.tensor([[torch.inf, -torch.inf, 2048.0], [1.0, 1.0, 1.0]]), torch.ones(2, 3)
    with simulate("e5m10", observe=True) as sim:
        x.add_(y) if contiguous else x.t().add_(y.t())
    table = sim.report().table
    assert (table.additions.sum(), table.absorbed.sum()) == (6, 1)


def test_the_first_non_finite_result_is_named_with_the_callers_line():
    x = torch.tensor([12.0], requires_grad=True)
    with simulate("e5m10", observe=True) as sim:
        y = torch.log(1 + torch.exp(x))  # the naive softplus
        y.sum().backward()
    birth = sim.report().birth
    assert (birth.role, birth.operation, birth.what) == ("forward", "exp", "overflow")
    assert __file__ in birth.line
    assert "torch.exp(x)" in birth.line
    assert "overflow in exp" in str(sim.report())
    assert torch.isnan(x.grad).all()


def test_what_a_format_without_infinity_makes_nan_of_is_an_overflow():
    with simulate("fp8_e4m3", observe=True) as sim:
        torch.tensor([400.0]) * 2
    assert (sim.report().birth.operation, sim.report().birth.what) == ("mul", "overflow")


def test_no_hook_outlives_the_simulation():
    net = torch.nn.Linear(2, 2)
    with pytest.raises(KeyError), simulate("e5m10", observe=True):
        raise KeyError
    before = len(torch.nn.modules.module._global_forward_pre_hooks)
    assert before == 0
    net(torch.ones(1, 2))


def test_a_failing_module_is_left_behind():
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise KeyError

    with simulate("e5m10", observe=True) as sim:
        with pytest.raises(KeyError):
            Failing()(torch.ones(1))
        torch.ones(1) * 3.0
    assert row(sim.report(), operation="mul").module == ""


def test_report_needs_an_observing_simulation():
    with pytest.raises(FormatError, match="observe=True"):
        simulate("e5m10").report()


def test_a_report_within_the_simulation_counts_nothing_of_its_own():
    with simulate("e5m10", observe=True) as simulation:
        x = torch.ones(3) + 1
        first = simulation.report().table
        simulation.load_observer_state(simulation.observer_state())
        assert simulation.report().table.equals(first)
    assert simulation.report().table.equals(first)
    assert x.tolist() == [2.0] * 3


def test_an_empty_report_prints():
    assert "0 results" in str(simulate("e5m10", observe=True).report())


class Recorder(roundoff.Watcher):
    """A watcher of one's own: notes what it is told of."""

    sees_roundings = True

    def __init__(self):
        self.told = []

    def before(self, call):
        self.told.append(("before", call.place.operation, call.args[0].clone()))
        return len(self.told)

    def rounded(self, call, exact, x):
        self.told.append(("rounded", str(call.format), exact.clone(), x.clone()))

    def after(self, call, token, result):
        self.told.append(("after", token, call.given[0][0], result.clone() * 1.1))


def test_a_watcher_of_ones_own():
    watcher, x = Recorder(), torch.tensor([0.3, -1.7])
    with roundoff.simulate("e4m2", watchers=[watcher]):
        y = x.mul_(3)
    (_, name, operand), (_, fmt, exact, rounded), (_, token, given, again) = watcher.told
    assert (name, fmt, token) == ("mul_", "e4m2", 1)
    assert operand.tolist() == pytest.approx([0.3, -1.7])  # before it was overwritten
    assert torch.equal(exact, operand * 3)
    assert torch.equal(rounded, roundoff.round(exact, "e4m2"))
    assert torch.equal(y, rounded)
    assert given.data_ptr() == x.data_ptr()
    assert torch.equal(again, rounded * 1.1)  # what a watcher computes is not rounded


def test_watchers_in_a_list_only():
    with pytest.raises(roundoff.FormatError, match=r"watchers must be a list .* Watcher"):
        roundoff.simulate("e4m2", watchers=[Recorder])


def test_a_program_is_not_traced_under_a_watcher():
    simulation = roundoff.simulate("e4m2", watchers=[Recorder()])
    with pytest.warns(roundoff.CompileWarning, match="looks at numbers"):
        roundoff.compile(torch.exp, simulation)


GIVEN = {
    "a missing value": lambda device: torch.nanmean(torch.tensor([1.0, math.nan]).to(device)),
    "a mask": lambda device: torch.zeros(2, 2).to(device).masked_fill(
        torch.eye(2).bool().to(device), -math.inf
    ).softmax(-1),
    "a constant": lambda device: torch.full((2,), -math.inf).to(device).maximum(torch.zeros(2).to(device)),
    "a complex constant": lambda device: torch.tensor([1j]).to(device).mul_(complex(math.inf, 0)),
    "a complex value": lambda device: torch.tensor([complex(math.nan, 0)]).to(device) + 1,
    "written over": lambda device: torch.ones(2).to(device).fill_(math.nan).mul_(2),
}  # fmt: skip


@each(("name", "device"), product(GIVEN, ("cpu", "cuda")))
def test_what_a_program_puts_in_is_no_birth_and_hides_none(name, device, monkeypatch):
    with stand_ins(monkeypatch):
        with simulate("e5m10", observe=True) as simulation:
            GIVEN[name](device)
        assert simulation.report().birth is None
        assert simulation.report().given
        assert "not finite as passed in by the program" in str(simulation.report())
        with simulate("e5m10", observe=True) as simulation:
            GIVEN[name](device)
            x = torch.full((3,), 300.0).to(device)
            x * x
        birth = simulation.report().birth
    assert (birth.operation, birth.what) == ("mul", "overflow")
    assert "x * x" in birth.line


@pytest.mark.filterwarnings("ignore::roundoff.PolicyWarning")
@each(
    ("device", "gradient", "birth"),
    [(device, *case) for device in ("cpu", "cuda") for case in ((1.0, None), (math.inf, None), (1e30, "overflow"))],
)
def test_the_step_of_an_optimizer_bears_what_its_rounding_makes(gradient, birth, device, monkeypatch):
    with stand_ins(monkeypatch):
        parameter = torch.nn.Parameter(torch.ones(2).to(device))
        with simulate(Policy("fp32", rules=(Rule("optimizer_step", format="e5m10"),)), observe=True) as simulation:
            parameter.grad = torch.tensor([0.5, gradient]).to(device)
            torch.optim.SGD([parameter], lr=1.0).step()
        report = simulation.report()
    assert (None if report.birth is None else report.birth.what) == birth
    assert bool(report.given) == math.isinf(gradient)


@each("device", ["cpu", "cuda"])
def test_a_finite_number_that_a_format_has_as_nan_alone_is_an_overflow(device, monkeypatch):
    with stand_ins(monkeypatch):
        x = torch.tensor([1.0, 400.0]).to(device)
        with simulate("fp8_e4m3", observe=True) as simulation:
            x * 3000
        report = simulation.report()
    assert report.birth.what == "overflow"
    assert report.table[["results", "infinite", "nan"]].to_numpy().tolist() == [[2, 0, 2]]


def test_a_birth_in_the_backward_pass_names_the_line_that_it_derives():
    with simulate("e5m10", observe=True) as simulation:
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        y = (x * 2).sqrt()
        z = y * 1.5
        z.sum().backward()
    birth = simulation.report().birth
    assert birth.role == "backward"
    assert "y = (x * 2).sqrt()" in birth.line


def test_an_operation_on_numbers_that_were_not_finite_bears_none():
    with simulate("e5m10", observe=True) as simulation:
        x = torch.tensor([math.inf, 1.0])
        x.sub_(x)
        x + 1
    assert simulation.report().birth is None


def test_the_printed_table_has_the_birth_first_and_no_flood_of_nan():
    with simulate("e5m10", observe=True) as simulation:
        x = torch.zeros(1000) / 0
        for _ in range(30):
            x = (x * 2 + 1).tanh()
        torch.full((10,), 2.0**-24) * 0.25
    rows = simulation.report()._worst()
    assert list(rows["operation"]) == ["div", "mul"]
