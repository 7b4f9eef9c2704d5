"""Traces, bounds, reports and commands of the comparison of two runs."""

import html
import json
import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from each import each
from torch._inductor import compile_fx

import roundoff
from roundoff.analysis import difference_page
from roundoff.simulate import Recorder, Trace
from roundoff.simulate.difference.trace import TraceError


def recorded(function, limit=1000, policy="fp32"):
    recorder = Recorder(limit)
    with roundoff.simulate(policy, watchers=[recorder]):
        result = function()
    return recorder.trace, result


class _Own(torch.nn.Sequential):
    """A module whose forward pass is not PyTorch's own, which dynamo would skip."""

    def forward(self, x):
        return super().forward(x)


def train(width=8, compiled=False):
    torch.manual_seed(0)
    kind = _Own if compiled else torch.nn.Sequential
    net = kind(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(net.parameters())
    if compiled:
        net.compile()
    loss = net(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return net[0].weight.detach()


def test_a_trace_names_operations_changes_no_bit_and_is_bounded(tmp_path):
    trace, weight = recorded(train)
    assert torch.equal(weight, train())
    products = [one for one in trace.operations if one.name == "addmm"]
    assert [one.module for one in products] == ["Sequential.0", "Sequential.2"]
    assert "net(torch.randn" in products[0].line
    backward = next(one for one in trace.operations if one.role == "backward" and one.name == "tanh_backward")
    assert backward.line.endswith("(its derivative)")
    assert max(len(x.values) for one in trace.operations for x in one.outputs) <= 32
    trace.write(tmp_path / "a.jsonl")
    again = Trace.read(tmp_path / "a.jsonl")
    assert json.dumps(again) == json.dumps(trace)
    short, _ = recorded(train, limit=5)
    assert (len(short.operations), short.dropped) == (5, len(trace.operations) - 5)
    for text in ("", "{}", "text", '{"kind": "roundoff trace 0", "dropped": 0}'):
        (tmp_path / "b.jsonl").write_text(text)
        with pytest.raises(TraceError, match="is not a trace"):
            Trace.read(tmp_path / "b.jsonl")


X = torch.linspace(0.5, 3, 64)


@each(
    "function",
    [
        lambda: torch.randn(32, 256) @ torch.randn(256, 8), lambda: torch.randn(4096).sum(),
        lambda: torch.randn(8, 4096).cumsum(1), lambda: (X + 1000).log_softmax(0), lambda: X.sin() + X.exp().log(),
        lambda: torch.nn.functional.conv2d(torch.randn(2, 8, 16, 16), torch.randn(4, 8, 5, 5)),
        lambda: torch.nn.functional.layer_norm(torch.randn(8, 64) + 100, (64,)), (X + 1000).var,
        lambda: torch.linalg.inv(torch.randn(16, 16)), lambda: torch.fft.rfft(torch.randn(1024)).abs(),
        lambda: torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 2, 4, 16, 8)),
        lambda: (X.half() @ X.half(), X.bfloat16().sum(), X.bfloat16().softmax(0), torch.norm(X)),
    ],
)  # fmt: skip
def test_kernels_of_pytorch_keep_their_bounds(function):
    torch.manual_seed(0)
    trace, _ = recorded(function)
    assert all(x.excess <= 1 for one in trace.operations for x in one.outputs), trace


class _Wrong(torch.nn.Module):
    """A product that accumulates in bfloat16 inside of one operation, as seen from outside, or has a NaN."""

    def forward(self, x, damage=0.0):
        return torch.ops.roundoff_tests_diff.product(x, damage)


@torch.library.custom_op("roundoff_tests_diff::product", mutates_args=())
def product(x: torch.Tensor, damage: float) -> torch.Tensor:
    if x.dtype != torch.float32:
        return x @ x.T
    return (x @ x.T).fill_diagonal_(damage) if damage else (x.bfloat16() @ x.T.bfloat16()).to(x.dtype)


def test_compiled_functions_run_compiled(monkeypatch):
    plain = train(compiled=True)
    trace, weight = recorded(lambda: train(compiled=True))
    assert torch.equal(weight, plain)
    assert [one.role for one in trace.operations if one.name == "compiled"] == ["forward", "backward"]
    assert not any("addmm" in one.name or "tanh" in one.name for one in trace.operations)
    assert torch.equal(train(compiled=True), plain)
    report = roundoff.diff(train, lambda: train(compiled=True))
    assert report.explained, report
    rounded, _ = recorded(lambda: train(compiled=True), policy="bf16")
    assert {one.name for one in rounded.operations} >= {"addmm", "tanh_backward"}

    def changed(x):
        x.mul_(2)
        return (x @ x.T).softmax(1), x.cos()[1:]

    def result(call):
        x = torch.linspace(0, 1, 12).view(4, 3)
        return *call(x), x * 3

    assert roundoff.diff(lambda: result(changed), lambda: result(torch.compile(changed))).explained
    compile_graph = compile_fx.compile_fx_inner

    def wrong(damage, *args, **settings):
        compiled = compile_graph(*args, **settings)
        return lambda given: [x.where(x <= 0.9, x + damage) if x.is_floating_point() else x for x in compiled(given)]

    for damage in (1e-3, float("nan")):
        monkeypatch.setattr(compile_fx, "compile_fx_inner", partial(wrong, damage))
        torch.compiler.reset()
        report = roundoff.diff(lambda: result(changed), lambda: result(torch.compile(changed)))
        torch.compiler.reset()
        assert "in the second run the error is" in str(report), report
        assert not report.explained


def test_a_kernel_that_errs_beyond_its_bound_is_not_explained():
    torch.manual_seed(0)
    x = torch.randn(16, 64)
    report = roundoff.diff(lambda: x @ x.T, lambda: _Wrong()(x))
    assert not report.explained, report
    for damage in (0.0, float("nan"), float("inf")):
        again = roundoff.diff(lambda: _Wrong()(x, damage))  # noqa: B023  it runs here
        assert "times the rounding bound" in str(again)
    # Beyond the range of float32, or of a simulated format, infinity is the rounded value.
    assert roundoff.diff(lambda: (x + 2) * 3e38).explained
    assert roundoff.diff(lambda: (x + 2) * 300, formats=("fp8_e4m3", "fp8_e4m3")).explained


def test_differences_of_rounding_are_in_the_report():
    torch.manual_seed(0)
    a, b = torch.randn(2, 64, 64).unbind()
    report = roundoff.diff(lambda: (a @ b).sum(0), lambda: (a[:, :32] @ b[:32] + a[:, 32:] @ b[32:]).sum(0))
    assert report.explained
    (row,) = [row for row in report.differences if row.operation == "sum"]
    assert 0 < row.difference < 1e-5
    assert json.loads(json.dumps(report.as_json()))["explained"]
    assert "explained by rounding" in str(report)
    cancelled = roundoff.diff(
        lambda: (1 + 1e-4 * (a.double() @ b.double()).float().tanh()) - 1, lambda: (1 + 1e-4 * (a @ b).tanh()) - 1
    )
    assert cancelled.explained
    # Results that are no tensors differ, too.
    for one, other in ((1 + 2j, 3j), (np.ones(3)[::-1], np.zeros(3)), (np.float32(1), np.float32(2))):
        assert "other values" in str(roundoff.diff(lambda: one, lambda: other))  # noqa: B023  they run here
        assert "equal bits" in str(roundoff.diff(lambda: one))  # noqa: B023
    formats = roundoff.diff(train, formats=(None, "bf16"))
    assert formats.explained, formats
    assert formats.differences[0].verdict == "explained by rounding"
    assert roundoff.diff(train).differences == ()


def test_the_page_of_a_report_says_what_the_report_says():
    def product(axis):
        return (torch.ones(4, 4) @ torch.arange(16.0).view(4, 4)).sum(axis).sqrt()

    for axis, limit, answer, absent in (
        (1, 1000, "Rounding does not explain 1 difference.", "after the limit"),
        (0, 3, "Corresponding results have equal bits.", "<table"),
    ):
        report = roundoff.diff(lambda: product(0), lambda axis=axis: product(axis), limit=limit)
        page = difference_page(json.loads(json.dumps(report.as_json())), ("<b>one</b>", "two"))
        assert answer in page
        assert absent not in page
        assert (report.dropped[0] > 0) == ("were not compared" in page)
        assert "&lt;b&gt;one&lt;/b&gt;: " in page
        for row in report.differences:
            assert f"<h3>{row.operation}: {row.reason}</h3>" in page
            assert html.escape(row.first) in page
            assert html.escape(row.second) in page
        opened = re.findall(r"<(\w+)", page.split("<main>")[1].split("</main>")[0])
        assert all(page.count(f"</{name}>") == page.count(f"<{name}>") + page.count(f"<{name} ") for name in opened)
        assert not re.search(r"https?://", page)


@pytest.mark.usefixtures("forked_interpreters")
def test_commands(tmp_path):
    program = "import sys, torch\ntorch.manual_seed(0)\nx = torch.randn(8, 8)\nprint({}.item())\nsys.exit({})\n"
    for name, body, status in (("a", "x.sum(0).exp().sum()", 0), ("b", "x.sum(1).exp().sum()", 0), ("c", "x[0, 0]", 3)):
        (tmp_path / f"{name}.py").write_text(program.format(body, status))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "roundoff", *words], capture_output=True, text=True, env=environment, cwd=tmp_path,
            check=False,
        )  # fmt: skip

    done = command("run", "--record", "a.jsonl", "a.py")
    assert (done.returncode, done.stderr) == (0, "")
    wrong = command("diff", "--json", "a.jsonl", "b.py 1 2", "--html", "page.html")
    assert wrong.returncode == 1
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"Rounding does not explain 1 difference\..*b\.py 1 2: \d+ operations", page)
    assert re.search(r"<h3>sum: dim is \[0\] and \[1\]</h3>.*b\.py:4 in &lt;module&gt;: print\(x\.sum\(1\)", page)
    (row,) = json.loads(wrong.stdout)["differences"]
    assert (row["operation"], row["reason"]) == ("sum", "dim is [0] and [1]")
    same = command("diff", "a.jsonl", "a.py", "--with", "--format bf16")
    assert same.returncode == 0, same.stderr
    assert "explained by rounding" in same.stdout
    failed = command("diff", "c.py")
    assert failed.returncode == 1, failed.stdout
    assert "equal bits" in failed.stdout
    assert failed.stderr.count("c.py ended with exit status 3; its operations before that are compared") == 2
    nowhere = command("diff", "a.jsonl", "a.jsonl", "--html", "missing/page.html")
    assert (nowhere.returncode, "does not exist" in nowhere.stderr) == (2, True), nowhere
    for name, message in (("missing.py", "left no trace"), ("missing.jsonl", "missing.jsonl")):
        missing = command("diff", "a.jsonl", name)
        assert missing.returncode == 2, missing
        assert message in missing.stderr
        assert "Traceback" not in missing.stderr
