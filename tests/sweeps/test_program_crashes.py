"""What raises after it has met a number that is not finite has crashed; what raises for another reason has failed."""

import json

import pytest
from forked import ForkedWorkers

from roundoff.sweeps import plan_file, run_sweep
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
    return run_program(made.runs[0].config, made.metric, folder / "run")


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("function", ["recovered", "broken", "memory"])
def test_other_reasons_are_failures(folder, function):
    with pytest.raises(ProgramError):
        run(folder, function)
    assert not (folder / "run" / "result.json").exists()


@pytest.mark.parametrize(("function", "found"), [("diverged", "there was NaN in weight"), ("updated", "of Adam")])
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
