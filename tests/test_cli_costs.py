"""The commands about costs hand on what they are told: each option reaches what does the work, and no other one."""

import json
from pathlib import Path

import pandas as pd
import pytest

from roundoff import analysis
from roundoff.cli import main, sweeps
from roundoff.sweeps import costs

PROGRAM = "def train(width: int = 4):\n    return 0.5\n"
CHIP = "{name: chip, source: a bench, unit: pJ, multiply: {fp16: 2}, add: {fp32: 1}}"


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    name = f"costly_{abs(hash(request.node.name))}"  # a process imports a file once
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / "sweep.yaml").write_text(f"name: mine\nprogram: {name}.py:train\ngrid: {{seed: 0..1}}\n")
    (tmp_path / "chip.yaml").write_text(CHIP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["roundoff", *map(str, arguments)])
    with pytest.raises(SystemExit, match="0"):
        main()


@pytest.fixture
def counted(monkeypatch):
    """What was asked to be counted."""
    calls = []

    def count(runs, directory, **how):
        calls.append((list(runs), Path(directory), how))
        return Path(directory) / "costs.json"

    monkeypatch.setattr(costs, "count_costs", count)
    return calls


def test_cost_hands_on_models_and_where_to(folder, counted, monkeypatch, capsys):
    call(monkeypatch, "cost", "sweep.yaml")
    call(monkeypatch, "cost", "sweep.yaml", "width=8", "--again", "--out", "there", "--cost-model", "chip.yaml",
         "--cost-model", "array-multiplier")  # fmt: skip
    (runs, directory, plain), (others, there, how) = counted
    assert (directory, there) == (Path("results/mine"), Path("there"))
    assert (len(runs), len(others)) == (2, 2)
    assert [config.as_json().get("width", 4) for _, config in (runs[0], others[0])] == [4, 8]
    assert (plain["again"], how["again"]) == (False, True)
    assert plain["models"] == []
    assert [model.name for model in how["models"]] == ["chip", "array-multiplier"]
    assert plain["source"] == how["source"] != ""  # of the program, by which a change is seen
    assert capsys.readouterr().out.split() == ["results/mine/costs.json", "there/costs.json"]


def test_cost_of_a_folder_of_agents(tmp_path, counted, monkeypatch):
    config = {"task": "cartpole_swingup", "steps": 6000, "action_repeat": 20, "seed_steps": 20}
    content = {"layout": 1, "name": "mine", "description": "", "varying": [], "runs": [{"id": "a", "config": config}]}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    call(monkeypatch, "cost", tmp_path)
    call(monkeypatch, "cost", tmp_path, "--out", tmp_path / "there")
    assert [directory for _, directory, _ in counted] == [tmp_path, tmp_path / "there"]
    assert [how["source"] for *_, how in counted] == ["", ""]
    assert [[name for name, _ in runs] for runs, *_ in counted] == [["a"], ["a"]]


def test_pareto_hands_on_what_it_is_asked(tmp_path, monkeypatch, capsys):
    calls = []

    def front(*asked):
        calls.append(asked)
        return pd.DataFrame({"format": ["fp32"]}), "a table", ("a warning",)

    monkeypatch.setattr(analysis, "pareto", front)
    call(monkeypatch, "pareto", tmp_path)
    call(monkeypatch, "pareto", tmp_path, "--cost", "energy", "--model", "chip", "--margin", "0.2", "--reference",
         "case=eight bits", "--json")  # fmt: skip
    assert calls[0] == (tmp_path, "bytes", 0.05, None, {})
    assert calls[1] == (tmp_path, "energy", 0.2, "chip", {"case": "eight bits"})
    said = capsys.readouterr()
    assert said.out.startswith("a table\n[")
    assert "a warning" in said.err


def test_allocate_is_the_sweep_that_its_options_say(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(sweeps, "print_plan", lambda plan, directory, *_: calls.append((plan, directory)))
    call(monkeypatch, "allocate", "sweep.yaml", "--formats", "e5m10,e5m3", "--dry-run")
    call(monkeypatch, "allocate", "sweep.yaml", "width=8", "--formats", "e5m2", "--by", "chip.yaml", "--over", "module",
         "--within", "7 %", "--seeds", "9", "--choose", "4", "--out", "there", "--dry-run")  # fmt: skip
    (plain, directory), (plan, there) = calls
    goal = plain.search
    assert (goal.looks_for, goal.by, goal.over, goal.within) == ("cheapest", "bops", "role", "5 %")
    assert (goal.formats, goal.choose, len(plain.runs)) == (("e5m10", "e5m3"), 3, 10)
    assert (plain.name, directory) == ("mine-cheapest", Path("results/mine-cheapest"))
    goal = plan.search
    assert (goal.model.name, goal.over, goal.margin, goal.formats, goal.choose) == (
        "chip",
        "module",
        0.07,
        ("e5m2",),
        4,
    )
    assert [run.config.seed for run in plan.runs] == [*range(9)]
    assert {run.config.as_json()["width"] for run in plan.runs} == {8}
    assert there == Path("there")
