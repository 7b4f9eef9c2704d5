"""Blame on returns: which cases are run with how many seeds, what the table says, and that both can be continued."""

import json
import math
import sys

import pytest

from roundoff.agents import TrainConfig
from roundoff.agents.errors import FileError
from roundoff.cli import main
from roundoff.simulate import BlameError
from roundoff.simulate.aten.tables import MOVES
from roundoff.sweeps import SweepError, plan_file
from roundoff.sweeps.blame import blame_returns
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.language.preset_files import find_sweep
from roundoff.sweeps.workers.local import LocalProcesses

NOISE = [0, 40, -30, 10, 25, -5, 60, -80]  # of the seeds, the same in all cases
COSTS = {
    "operation": {f"op{i}": 10.0 * i for i in range(10)},
    "role": {"forward": 300.0, "backward": 200.0, "optimizer": 0.0, "averages": 90.0, "targets": 30.0},
}

WORKER = f"""
import csv, json, os, sys
NOISE, COSTS, over = {NOISE}, {COSTS}, os.environ["OVER"]
say = lambda **event: print(json.dumps(event), flush=True)

def cost(config):
    # That of the worst unit in the format; and 1 for the numbers from outside.
    formats = dict.fromkeys(COSTS[over], config["format"])
    for rule in config["policy"].get("rules", []):
        named = rule.get(over, rule.get("operation"))
        for unit in formats:
            if (named == "*" or unit in named) and "format" in rule: formats[unit] = rule["format"]
    return max([COSTS[over][unit] for unit in formats if formats[unit] != "fp32"] + [config["format"] != "fp32"])

say(event="ready")
for line in sys.stdin:
    for run in json.loads(line)["runs"]:
        config, folder = run["config"], run["directory"]
        os.makedirs(folder, exist_ok=True)
        if config["observe"]:
            with open(folder + "/numerics.csv", "w") as file:
                csv.writer(file).writerows([("operation", "results"), *((name, 1) for name in [*COSTS[over], "clone"])])
        score, crash = 800 + NOISE[config["seed"]] - cost(config), None
        if score < 500: score, crash = 0, {{"step": 1, "reason": "nan"}}
        status = "crashed" if crash else "done"
        result = {{"return": score, "return_std": 0, "step": 1, "status": status, "crash": crash}}
        with open(folder + "/result.json", "w") as file: json.dump(result, file)
        say(run=run["lease"]["run"], event="ended")
"""


class Watcher:
    def __init__(self, patience=math.inf):
        self.started, self.rounds, self.patience = [], [], patience

    def begin(self, waiting, *_):
        self.rounds.append(len(waiting))

    def notice(self, text):
        raise AssertionError(text)

    def event(self, event, *_):
        if event.kind == "started":
            self.started.append(event.run)
        elif event.kind == "ended":
            self.patience -= 1
            if self.patience == 0:
                raise KeyboardInterrupt


@pytest.fixture
def blame(tmp_path, monkeypatch):
    def run(watcher=None, out="out", over="operation", config=None, **options):
        monkeypatch.setenv("OVER", over)
        return blame_returns(
            config or TrainConfig(format="e5m3", steps=6000), tmp_path / out,
            lambda: LocalProcesses(1, (sys.executable, "-c", WORKER)), watcher or Watcher(), over=over, **options,
        )  # fmt: skip

    return run


def test_seeds_go_where_the_cost_is(blame, tmp_path):
    watcher = Watcher()
    summary, found = blame(watcher)
    # Ten operations, of which the half that costs more goes on each time; four get all seeds.
    assert {one.unit: one.seeds for one in found.costs} == {
        "everything": 8, "what comes from outside": 8, "op9": 8, "op8": 8, "op7": 8, "op6": 8, "op5": 4,
        "op4": 2, "op3": 2, "op2": 2, "op1": 2, "op0": 2,
    }  # fmt: skip
    assert watcher.rounds == [3 * 8, 2 * 10 * 2, 2 * 5 * 2, 2 * 4 * 4]
    assert summary.done == len(watcher.started) == sum(watcher.rounds)
    # The noise of the seeds is common, so that the costs are exact.
    assert {one.unit: (one.effect, one.low, one.high) for one in found.costs} == {
        **{unit: (max(cost, 1),) * 3 for unit, cost in COSTS["operation"].items()},
        "everything": (90,) * 3,
        "what comes from outside": (1,) * 3,
    }
    assert [one.answer for one in found.costs][:3] == ["shown to differ"] * 3
    # Only the worst one gains anything: the next one takes its place.
    assert {one.unit: one.effect for one in found.gains} == {
        unit: 10.0 * (unit == "op9") for unit in COSTS["operation"]
    }
    assert found.gains[0].unit == "op9"
    assert found.reference == pytest.approx(800 + sum(NOISE) / 8)
    assert found.everything == pytest.approx(800 + sum(NOISE) / 8 - 90)
    entries = SweepDirectory(tmp_path / "out").read()["runs"]
    assert {"op9 in fp32", "op9 in e5m3", "nothing", "everything"} <= {entry["case"] for entry in entries}
    assert "| op9 " in str(found)
    assert "+90 to +90" in str(found)


def test_interrupted_anywhere_it_is_continued_to_the_same_table(blame, tmp_path):
    blame(out="whole")
    undisturbed = json.loads((tmp_path / "whole" / "blame.json").read_text())
    for patience in (3, 30, 25, 20):
        with pytest.raises(KeyboardInterrupt):
            blame(Watcher(patience))
    assert not (tmp_path / "out" / "blame.json").exists()
    blame()
    assert json.loads((tmp_path / "out" / "blame.json").read_text()) == undisturbed
    ended = {path.parent.name: path.read_text() for path in (tmp_path / "out").glob("runs/*/result.json")}
    assert ended == {path.parent.name: path.read_text() for path in (tmp_path / "whole").glob("runs/*/result.json")}
    again = Watcher()
    blame(again)
    assert again.started == []


def test_of_roles_none_is_dropped_and_crashes_are_counted(blame):
    watcher = Watcher()
    _, found = blame(watcher, over="role")
    assert watcher.rounds == [13 * 8]  # three that everything is compared with, two for each role
    assert {one.seeds for one in (*found.gains, *found.costs)} == {8}
    costs = {one.unit: one for one in found.costs}
    units = ["everything", "forward", "backward", "averages", "targets", "what comes from outside", "optimizer"]
    assert list(costs) == units
    assert [costs[unit].crashed for unit in costs] == [3, 3, 0, 0, 0, 0, 0]  # below 500: seeds 2, 5 and 7
    assert costs["forward"].mean == sum(500 + noise for noise in NOISE if noise >= 0) / 8
    assert costs["backward"].effect == 200
    assert "| 8, 3 crashed | shown to differ" in str(found)
    gains = {one.unit: one.effect for one in found.gains}
    assert gains.pop("forward") == 600 + sum(NOISE) / 8 - costs["everything"].mean
    assert gains == dict.fromkeys(["backward", "optimizer", "averages", "targets"], 0)


def test_roles_in_fp32_are_the_runs_of_the_preset(blame):
    """The search and the preset share runs, so that neither is repeated where the other one has been run."""
    plan = plan_file(find_sweep("roles-quick"))
    everything = next(run.config for run in plan.runs if run.case == "all in it")
    watcher = Watcher()
    blame(watcher, over="role", config=everything, seeds=3)
    assert {run.id for run in plan.runs} < {run.id for run in watcher.started}


def test_the_rules_of_a_case(blame):
    own = {"rules": [{"operation": "mm", "accumulate": "e5m10"}]}
    watcher = Watcher()
    blame(watcher, config=TrainConfig(format="e5m3", steps=6000, policy=own), seeds=2)
    rules = {run.case: run.config.policy.get("rules", []) for run in watcher.started}
    moves = {"operation": sorted(MOVES), "format": "fp32"}
    others = [f"op{i}" for i in range(9)]
    assert rules["everything"] == own["rules"]
    assert rules["nothing"] == []
    assert rules["op9 in fp32"] == [*own["rules"], {"operation": "op9", "format": "fp32"}, moves]
    assert rules["op9 in e5m3"] == [*own["rules"], {"operation": others, "format": "fp32"}, moves]
    assert rules["what comes from outside"] == [*own["rules"], {"operation": "*", "format": "fp32"}]
    assert {run.config.format for run in watcher.started if run.case == "nothing"} == {"fp32"}
    assert [run.case for run in watcher.started if run.config.observe] == ["what comes from outside"]
    assert {run.config.seed for run in watcher.started} == {0, 1}


def test_what_cannot_be_blamed(blame, tmp_path):
    for config, over, message in [
        (TrainConfig(steps=6000), "role", "format is fp32, which rounds nothing"),
        (
            TrainConfig(format="e5m3", steps=6000, storage={"weights": "mxint8"}),
            "role",
            "storage keeps numbers in formats",
        ),
        (TrainConfig(format="e5m3", steps=6000), "module", "over must be operation or role, got 'module'"),
        (TrainConfig(format="fp16", steps=6000, native=True), "role", "this one does not allow: native: true"),
    ]:
        with pytest.raises(BlameError, match=message):
            blame(config=config, over=over)
    (tmp_path / "trials" / "trial-0").mkdir(parents=True)
    with pytest.raises(SweepError, match="choose an empty or a new one with --out"):
        blame(out="trials")
    with pytest.raises(KeyboardInterrupt):
        blame(Watcher(24))  # all that everything is compared with has ended
    (table,) = (tmp_path / "out").glob("runs/*/numerics.csv")
    table.write_text("operation,results\nmm,many\n")
    with pytest.raises(FileError, match=r"numerics\.csv: is damaged; delete"):
        blame()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "1"], "Invalid value for '--seeds': Input should be greater than or equal to 2"),
        (["--seeds", "2", "--at-least", "3"], "--at-least is about single runs"),
        (["--workers", "2"], "--population are about --seeds; add it"),
        (["--margin", "0.1"], "--population are about --seeds; add it"),
        (["--seeds", "2", "format=fp32"], "format is fp32, which rounds nothing"),
    ],
)
def test_options_that_do_not_go_together(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["roundoff", "blame", "format=e5m3", "steps=6000", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
