"""What raises after it has met a number that is not finite has crashed; what raises for another reason has failed."""

import json

import pytest
from each import each
from forked import ForkedWorkers

from roundoff.sweeps import SweepError, plan_file, run_sweep
from roundoff.sweeps.from_python import sweep
from roundoff.sweeps.programs.run import ProgramError, run_program

PROGRAM = """
import math
import sys

import torch

import roundoff


def overflow():
    return (torch.tensor([1000.0]) * torch.tensor([1000.0])).sum()


def diverged():
    weight = torch.ones(2) * math.inf
    weight -= weight
    raise KeyError("best")


def read():
    if not math.isfinite(overflow().item()):
        raise FloatingPointError("Loss is nan, stopping training")
    return 1.0


def exact():
    x = overflow()
    with roundoff.exact():
        value = x.item()
    del x
    if value > 1e9:
        sys.exit(1)
    return 1.0


def asked():
    if not torch.isfinite(overflow()):
        raise ValueError("the loss is not finite")
    return 1.0


def asked_nan():
    if (overflow() - overflow()).isnan():
        raise ValueError("the loss is NaN")
    return 1.0


def updated():
    layer = torch.nn.Linear(2, 1)
    descend = torch.optim.Adam(layer.parameters(), eps=0)
    layer(torch.zeros(1, 2)).sum().backward()
    descend.step()
    raise KeyError("best")


def best():
    best_state, lowest = None, math.inf
    for _ in range(2):
        loss = overflow().item()
        if loss < lowest:
            best_state = {}
    torch.nn.Linear(2, 1).load_state_dict(best_state)


def nothing():
    accuracy = overflow()
    return {"score": None if accuracy.item() == math.inf else 1.0}


def recovered():
    lowest, masked = math.inf, torch.full((3,), -math.inf)
    for scale in (1000.0, 1.0):
        loss = (torch.tensor([1000.0]) * scale).sum().item()
    print(masked)
    raise KeyError("best")


def broken():
    raise KeyError("best")


def memory():
    overflow().item()
    raise MemoryError


def trained(rate, layer=None):
    layer = layer or torch.nn.Linear(2, 1)
    descend = torch.optim.Adam(layer.parameters(), lr=rate)
    layer(torch.ones(1, 2)).sum().backward()
    descend.step()
    return descend


def beside():
    return {"score": 1.0, "loss": overflow() - overflow(), "largest": 2.0}


def left():
    optimizer = trained(math.inf)
    return 1.0


def left_by_helper():
    trained(math.inf)
    return {"score": 1.0}


def left_by_the_first_of_two():
    optimizers = trained(math.inf), trained(0.1)
    return 1.0


def dropped():
    for rate in (math.inf, 0.1):
        trained(rate)
    return 1.0


def masked():
    layer = torch.nn.Linear(2, 1)
    layer.mask = torch.nn.Parameter(torch.full((2,), -math.inf), requires_grad=False)
    optimizer = trained(0.1, layer)
    return 1.0


def unknown():
    torch.optim.SGD(torch.nn.LazyLinear(1).parameters()).step()
    return 1.0


def prints(x: int = 0):
    print("score", 1.0)


def names_another(x: int = 0):
    return {"loss": 1.0} if x != 2 else 1.0


def returned(x: int = 0):
    if x:
        raise KeyError("best")
    return 1.0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / f"crashes_{tmp_path.name}.py").write_text(PROGRAM)
    return tmp_path


def plan(folder, function, text="base: {format: e5m10}"):
    (folder / "s.yaml").write_text(f"program: crashes_{folder.name}.py:{function}\n{text}")
    return plan_file(folder / "s.yaml")


def run(folder, function, text="base: {format: e5m10}"):
    made = plan(folder, function, text)
    return run_program(made.runs[0].config, made.metric, folder / function)


@each(
    ("function", "found", "then"),
    [
        ("read", "inf was read in", "then FloatingPointError: Loss is nan, stopping training"),
        ("exact", "inf was read in", "then it called sys.exit(1)"),
        ("asked", "a number that is not finite was read in", "then ValueError"),
        ("asked_nan", "a number that is not finite was read in", "then ValueError"),
        ("updated", "of Adam, of shape (1, 2) are not finite", "then KeyError"),
        ("best", "inf was read in", "then TypeError"),
        ("nothing", "inf was read in", "score, which must be a number"),
    ],
)
def test_whoever_raises_after_a_number_that_is_not_finite_has_crashed(folder, function, found, then):
    result = run(folder, function)
    assert result["status"] == "crashed"
    assert found in result["crash"]["reason"]
    assert then in result["crash"]["reason"]


def test_a_finite_metric_is_a_crash_where_another_result_or_the_weights_are_not_finite(folder):
    def ends(function, number_format, reason):
        made = plan(folder, function, f"base: {{format: {number_format}}}")
        result = run_program(made.runs[0].config, made.metric, folder / f"{function}-{number_format}")
        assert (result["status"], result["return"]) == (("crashed", 0.0) if reason else ("done", 1.0))
        assert result["crash"] is None if not reason else reason in result["crash"]["reason"]
        assert result["values"]["score"] == 1.0

    reasons = {
        "beside": "loss is nan",
        "left": "the weights 0 of Adam, of shape (1, 2) are not finite at the end",
        "left_by_helper": "the weights 0 of Adam, of shape (1, 2) are not finite at the end",
        "left_by_the_first_of_two": "of shape (1, 2) are not finite at the end",
        "dropped": "",
        "unknown": "",
        "masked": "",
    }
    each(
        ("function", "number_format", "reason"),
        [
            (function, number_format, reason)
            for function, reason in reasons.items()
            for number_format in (("fp32", "e5m10") if function != "beside" else ("e5m10",))
        ],
    )(ends)()


def test_a_sweep_ends_with_its_first_run_if_the_program_gives_no_metric(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def ends(function, message):
        made = plan(folder, function, "metric: score\ngrid: {x: [0, 1, 2, 3]}")
        out, ended = folder / function, []

        class Watcher:
            begin = notice = lambda *_: None
            event = lambda _, event, *__: ended.append((event.kind, event.reason))  # noqa: E731

        with pytest.raises(SweepError, match="no other run is started"):
            run_sweep(made, out, executor=ForkedWorkers(1), watcher=Watcher())
        assert [kind for kind, _ in ended if kind != "progress"] == ["started", "failed"]
        assert message in ended[-1][1]
        with pytest.raises(SweepError, match="no other run is started"):
            sweep(f"crashes_{folder.name}.py:{function}", {"x": range(3)}, metric="score", out=out / "here")

    each(
        ("function", "message"),
        [("prints", "add roundoff.log(step, score=value)"), ("names_another", "the metric is score")],
    )(ends)()
    made = plan(folder, "names_another", "metric: score\ngrid: {x: [2, 0, 1]}")

    class Watcher:
        begin = notice = event = lambda *_: None

    summary = run_sweep(made, folder / "later", executor=ForkedWorkers(1), watcher=Watcher())
    assert (summary.done, summary.failed) == (1, 2)


@each("function", ["recovered", "broken", "memory"])
def test_other_reasons_are_failures(folder, function):
    with pytest.raises(ProgramError):
        run(folder, function)
    assert not (folder / function / "result.json").exists()


@each(("function", "found"), [("diverged", "there was NaN in weight"), ("updated", "of Adam")])
def test_in_fp32_where_no_simulation_listens_variables_and_weights_tell(folder, function, found):
    assert found in run(folder, function, "base: {format: fp32}")["crash"]["reason"]


def test_any_exception_is_a_crash_if_the_metric_says_so(folder):
    made = plan(folder, "returned", "metric: {name: score, error: crash}\ngrid: {x: [0, 1]}")

    class Watcher:
        begin = notice = event = lambda *_: None

    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=Watcher())
    assert (summary.done, summary.crashed, summary.failed) == (1, 1, 0)
    crashed = json.loads((folder / "out" / "runs" / made.runs[1].id / "result.json").read_text())
    assert crashed["return"] == 0.0
    assert crashed["crash"]["reason"].startswith("KeyError: 'best'")
    assert crashed["metric"]["error"] == "crash"


def test_a_metric_that_says_nothing_of_errors_is_told_as_before(folder):
    assert "error" not in plan(folder, "returned").metric.as_json()
