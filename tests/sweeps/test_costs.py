"""What a step costs in each arithmetic of a sweep: counted once for each, kept in the folder, shown in the summary."""

import csv
import json

import pytest
from program_runs import write_run, write_sweep

from roundoff.analysis import plot
from roundoff.cli import main
from roundoff.sweeps import plan_text
from roundoff.sweeps.costs import count_costs, runs_in, runs_of_plan
from roundoff.sweeps.errors import SweepError
from roundoff.sweeps.folder.directory import SweepDirectory

PROGRAM = """
import torch

import roundoff

CALLS = []


def train(width: int = 4, steps: int = 9, fail: bool = False):
    CALLS.append(width)
    layer = torch.nn.Linear(8, width)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    if fail:
        raise KeyError("fail")
    for step in range(steps):
        roundoff.log(step, loss=1.0)
        optimizer.zero_grad()
        layer(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        CALLS.append("step")
    return {"accuracy": 0.5}


def given(arithmetic, width: int = 4):
    layer = torch.nn.Linear(8, width)
    with arithmetic:
        layer(torch.randn(16, 8))
    return 1.0
"""
SWEEP = """
name: mine
program: PROGRAM.py:train
metric: accuracy
grid: {format: [fp32, e5m10, mxfp8_e4m3], width: [4, 6], seed: [0, 1]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    name = f"counted_{abs(hash(request.node.name))}"  # a process imports a file once
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("PROGRAM", name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder, text=None):
    source = (folder / "sweep.yaml").read_text() if text is None else text
    return plan_text(source, str(folder / "sweep.yaml"))


def calls(plan):
    return plan.program.program.load().__globals__["CALLS"]


def test_each_arithmetic_is_counted_once_in_a_few_steps(folder):
    plan = planned(folder)
    said = []
    path = count_costs(runs_of_plan(plan), folder / "out", on_counted=said.append)
    entries = json.loads(path.read_text())["costs"]
    assert len(said) == len(entries) == 6
    assert sorted(run for entry in entries for run in entry["runs"]) == sorted(run.id for run in plan.runs)
    # the third step ends in its optimizer, before the program goes on
    assert calls(plan) == [x for width in (4, 6) * 3 for x in (width, "step", "step")]
    for entry in entries:
        width, fmt = entry["config"]["width"], entry["config"]["format"]
        # forward, and the gradient of the weight
        assert (entry["macs"], entry["steps"], entry["uncounted"]) == (2 * 16 * 8 * width, 2, [])
        bits = {"fp32": 32, "e5m10": 16, "mxfp8_e4m3": 8}[fmt]
        assert entry["bops"] == entry["macs"] * bits * bits
    small = {entry["config"]["format"]: entry for entry in entries if entry["config"]["width"] == 4}
    assert small["fp32"]["bytes_kept"] == 36 * 4
    assert small["e5m10"]["bytes_kept"] == 36 * 2
    assert small["mxfp8_e4m3"]["bytes_kept"] == 4 * (8 + 1) + (4 + 1)  # blocks are no longer than an axis


def test_costs_may_be_counted_before_the_sweep_runs(folder):
    plan = planned(folder)
    path = count_costs(runs_of_plan(plan)[:1], folder / "out")
    SweepDirectory(folder / "out").check(plan)
    assert path.exists()


def test_what_was_counted_stays_until_the_program_changes(folder):
    plan = planned(folder)
    runs = runs_of_plan(plan)
    count_costs(runs[:4], folder / "out", source="one")
    before = len(calls(plan))
    said = []
    count_costs(runs, folder / "out", source="one", on_counted=said.append)
    assert len(said) == 4
    assert len(calls(plan)) > before
    said.clear()
    count_costs(runs, folder / "out", source="another", on_counted=said.append)
    assert len(said) == 6
    said.clear()
    count_costs(runs, folder / "out", source="another", again=True, on_counted=said.append)
    assert len(said) == 6


@pytest.mark.parametrize("costs", ["5", '[{"models": 3, "config": {}}]', "[{}]", "{"])
def test_a_damaged_file_is_counted_anew(folder, costs):
    (folder / "out").mkdir()
    (folder / "out" / "costs.json").write_text(f'{{"layout": 1, "source": "", "costs": {costs}}}')
    runs = runs_of_plan(planned(folder))[:1]
    assert len(json.loads(count_costs(runs, folder / "out").read_text())["costs"]) == 1


def test_a_count_that_is_killed_has_lost_nothing_but_the_one_it_was_at(folder):
    runs, said = runs_of_plan(planned(folder)), []

    def dies(line):
        said.append(line)
        if len(said) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_costs(runs, folder / "out", on_counted=dies)
    assert len(json.loads((folder / "out" / "costs.json").read_text())["costs"]) == 2
    again = []
    count_costs(runs, folder / "out", on_counted=again.append)
    assert len(again) == 4


def test_a_program_that_makes_one_step_or_none_is_counted_whole(folder):
    text = (folder / "sweep.yaml").read_text().split("grid")[0]
    once = planned(folder, f"{text}base: {{steps: 1}}")
    entry = json.loads(count_costs(runs_of_plan(once), folder / "one").read_text())["costs"][0]
    assert (entry["macs"], entry["steps"]) == (2 * 16 * 8 * 4, 0)
    given = planned(folder, text.replace(":train", ":given"))
    entry = json.loads(count_costs(runs_of_plan(given), folder / "none").read_text())["costs"][0]
    assert (entry["macs"], entry["steps"]) == (16 * 8 * 4, 0)


def test_a_run_that_cannot_be_counted_is_named_and_the_others_are(folder):
    text = (folder / "sweep.yaml").read_text().split("grid")[0]
    plan = planned(folder, text + "grid: {fail: [false, true]}")
    said = []
    entries = json.loads(count_costs(runs_of_plan(plan), folder / "out", on_counted=said.append).read_text())["costs"]
    assert ["reason" in entry for entry in entries] == [False, True]
    assert "not counted" in said[1]
    assert "KeyError" in said[1]
    with pytest.raises(SweepError, match="no cost could be counted"):
        count_costs(runs_of_plan(plan)[1:], folder / "other")


def test_the_command_and_the_columns_of_the_summary(folder, capsys, monkeypatch):
    plan = planned(folder)
    runs = [
        write_run(folder / "results", run.config.format, run.config.seed, 0.5, width=run.config.as_json()["width"])
        for run in plan.runs
    ]
    write_sweep(folder / "results", runs)
    assert plot(folder / "results", figures=["comparison"])[0]
    assert "bops" not in (folder / "results/summary.csv").read_text()
    (folder / "own.yaml").write_text("{name: mine, source: a bench, unit: pJ, multiply: {fp16: 2}, add: {fp32: 1}}")
    command = ["roundoff", "cost", "sweep.yaml", "--out", "results", "--cost-model", "own.yaml"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "train e5m10: 262,144 bit operations" in capsys.readouterr().out
    file = folder / "results/costs.json"
    content = json.loads(file.read_text())
    assert content["costs"][2]["models"]["mine"] == {"value": 3072.0, "unit": "pJ", "source": "a bench", "without": []}
    # the folder's runs have other names than those of the plan, as made up here
    names = {run.id: made["id"] for run, made in zip(plan.runs, runs, strict=True)}
    for entry in content["costs"]:
        entry["runs"] = [names[run] for run in entry["runs"]]
    file.write_text(json.dumps(content))
    assert not plot(folder / "results", figures=["comparison"])[1]
    rows = list(csv.DictReader((folder / "results/summary.csv").read_text().splitlines()))
    found = {(row["format"], row["width"]): row for row in rows}
    assert float(found["e5m10", "4"]["bops"]) == 1024 * 16 * 16
    assert float(found["fp32", "6"]["macs"]) == 1536
    assert float(found["e5m10", "4"]["bytes_kept"]) == 72
    file.write_text("{}")
    assert any("roundoff cost" in warning for warning in plot(folder / "results", figures=["comparison"])[1])


def test_the_folder_of_a_program_does_not_say_where_the_program_is(folder):
    root = folder / "results"
    write_sweep(root, [write_run(root, "fp32", 0, 0.5)])
    with pytest.raises(SweepError, match="name the sweep file"):
        runs_in(root)
    with pytest.raises(SweepError, match="not the folder of a sweep"):
        runs_in(folder)


def test_a_config_that_is_refused_is_named(tmp_path):
    entries = [{"id": "a0", "config": {"task": "cartpole_swingup", "lr": -1.0, "fixes": "none"}}]
    content = {"layout": 1, "name": "mine", "description": "", "varying": [], "runs": entries}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(SweepError, match=r"the config of the run a0 cannot be used: .*lr.*greater than 0, got -1"):
        runs_in(tmp_path)


def test_agents_are_counted_from_their_folder(tmp_path, monkeypatch, capsys):
    config = {"task": "cartpole_swingup", "format": "e5m10", "hidden_units": 8, "batch_size": 8, "steps": 6000,
              "action_repeat": 20, "seed_steps": 20}  # fmt: skip
    entries = [{"id": f"a{seed}", "config": {**config, "seed": seed}} for seed in range(2)]
    content = {"layout": 1, "name": "mine", "description": "", "varying": [], "runs": entries}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    monkeypatch.setattr("sys.argv", ["roundoff", "cost", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "cartpole_swingup e5m10" in capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "costs.json").read_text())["costs"]
    assert entry["runs"] == ["a0", "a1"]
    assert entry["kept"]["weights"] > 0
