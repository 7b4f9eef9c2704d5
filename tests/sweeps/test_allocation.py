"""Searches for the cheapest arithmetic: what is run, what is found, the last word, and the file that a run takes."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml

from roundoff import Policy
from roundoff.cli import main
from roundoff.simulate import CountedSteps
from roundoff.sweeps import SweepFileError, allocation, plan_text
from roundoff.sweeps.allocation import CheapestArithmetic
from roundoff.sweeps.costs import count_run
from roundoff.sweeps.display.dry_run import describe_plan
from roundoff.sweeps.errors import SweepError
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.language.candidates import candidate, cost_by
from roundoff.sweeps.rounds import mean_score
from roundoff.sweeps.search import run_search
from roundoff.sweeps.workers.local import LocalProcesses

PROGRAM = """
import torch


def train(luck: int = 9, fails: int = 9):
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return 0.9
"""
WORKER = """
import json, os, sys
NEED = {"Sequential.0": 10, "Sequential.2": 3}
say = lambda **event: print(json.dumps(event), flush=True)
say(event="ready")
for line in sys.stdin:
    for run in json.loads(line)["runs"]:
        config = run["config"]
        rules = config.get("policy", {}).get("rules", [])
        named = lambda rule: [rule["module"]] if isinstance(rule["module"], str) else rule["module"]
        lost = sum(int(rule["format"].partition("m")[2]) < NEED.get(name, 0) for rule in rules for name in named(rule))
        lost += bool(rules) and config["seed"] >= config["luck"]
        score = 0.9 - 0.2 * lost + 0.001 * (config["seed"] % 3)
        os.makedirs(run["directory"], exist_ok=True)
        result = {"status": "done", "return": score, "step": 1, "crash": None}
        if config["seed"] >= config["fails"] and not rules:
            result |= {"status": "crashed", "return": None, "crash": {"step": 1, "reason": "it did"}}
        with open(run["directory"] + "/result.json", "w") as f:
            json.dump(result | {"values": {"accuracy": score}, "metric": run["metric"]}, f)
        say(run=run["lease"]["run"], event="ended")
"""
QUICK = (sys.executable, "-c", WORKER)
"""Scores that follow from the rules of a run, without a process that imports PyTorch in every round of a search."""

SWEEP = """
name: mine
program: PROGRAM.py:train
metric: {name: accuracy, goal: maximize, range: [0, 1]}
search: {for: cheapest, by: bops, over: module, within: 5 %, formats: [e5m10, e5m2, e5m3, e5m7], choose: 2}
base: {luck: 9, fails: 9}
grid: {seed: 0..5}
"""


class Silent:
    """Watches nothing, and keeps how many runs there were."""

    def __init__(self):
        self.events = []

    def begin(self, waiting, finished, workers):
        self.events += [run.id for run in waiting]

    def notice(self, text):
        pass

    def event(self, event, state, score):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    name = f"allocated_{abs(hash(request.node.name))}"  # a process imports a file once
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("PROGRAM", name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(folder, *overrides):
    return plan_text((folder / "sweep.yaml").read_text(), str(folder / "sweep.yaml"), overrides)


def searched(folder, plan):
    watcher = Silent()
    summary, (found,) = run_search(plan, folder / "out", lambda: LocalProcesses(1, command=QUICK), watcher)
    assert not summary.failed
    return found, watcher.events


def test_each_module_gets_the_cheapest_format_that_passes(folder):
    plan = planned(folder)
    search = CheapestArithmetic(plan)
    assert search.units[0] == "Sequential.2"  # the largest product saves most
    assert set(search.units) >= {"Sequential.0", "Sequential.2"}
    found, ran = searched(folder, plan)
    assert found.chosen["Sequential.2"] == "e5m3"
    assert found.chosen["Sequential.0"] == "e5m10"
    assert found.finished
    assert "equivalent within 5 %" in found.answer
    assert (found.seeds, found.cost < found.reference_cost / 3) == (4, True)
    assert len(set(ran)) == len(ran) <= search.most_runs
    # what it has found is a file that simulate and roundoff run take
    described = yaml.safe_load((folder / "out/policy.yaml").read_text())
    policy = Policy.load(folder / "out/policy.yaml")
    assert policy == Policy.parse(described, "fp32")
    given = planned(folder).runs[0].config.settings.model_copy(update={"policy": described})
    assert given.policy_of_run() == policy  # and a sweep, under its key of that name
    assert str(policy.arithmetic("mm", "Sequential.2", "forward")[0].format) == "e5m3"
    assert str(policy.arithmetic("mm", "Sequential.2", "optimizer")[0].format) == "fp32"
    written = json.loads((folder / "out/search.json").read_text())["findings"][0]
    assert written["chosen"] == found.chosen
    # continued, nothing is run again
    again, ran = searched(folder, plan)
    assert (again, ran) == (found, [])


def test_less_may_be_better(folder, monkeypatch):
    file = folder / "sweep.yaml"
    file.write_text(file.read_text().replace("goal: maximize, range: [0, 1]", "goal: minimize"))
    losing = WORKER.replace("0.9 - 0.2 * lost", "2 + 0.5 * lost")
    assert losing != WORKER
    monkeypatch.setattr(sys.modules[__name__], "QUICK", (sys.executable, "-c", losing))
    found, _ = searched(folder, planned(folder))
    assert (found.chosen["Sequential.0"], found.chosen["Sequential.2"]) == ("e5m10", "e5m3")
    assert "equivalent within 5 %" in found.answer


def test_other_seeds_have_the_last_word(folder):
    found, _ = searched(folder, planned(folder, "luck=2"))
    assert found.chosen
    assert "equivalent" not in found.answer
    assert "fresh seeds: " + found.answer in str(found)


def test_nothing_is_shown_where_fp32_crashes_with_a_fresh_seed(folder):
    found, _ = searched(folder, planned(folder, "fails=5"))
    assert found.answer == "inconclusive: 1 of 4 runs in fp32 crashed"


def test_nothing_may_be_cheaper(folder):
    found, _ = searched(folder, planned(folder, "luck=0"))
    assert (found.chosen, found.answer, found.finished) == ({}, "", True)
    assert "fp32 is the cheapest" in str(found)
    assert not (folder / "out/policy.yaml").exists()


def test_a_search_that_was_stopped_says_what_it_knows(folder):
    plan = planned(folder)
    store = SweepDirectory(folder / "out")
    (found,) = CheapestArithmetic(plan).result(store)
    assert (found.finished, found.chosen) == (False, {})
    assert "not finished" in str(replace(found, chosen={"a": "e5m2"}))


def test_the_dry_run_says_how_many_runs(folder):
    plan = planned(folder)
    *_, last = describe_plan(plan, folder / "out")
    assert f"at most {CheapestArithmetic(plan).most_runs} runs" in last
    assert "Sequential.2" in last
    assert not (folder / "out").exists()


def test_the_command_is_a_shortcut(folder, monkeypatch, capsys):
    options = ["--formats", "e5m10,e5m3", "--over", "module", "--seeds", "6", "--choose", "2", "--dry-run"]
    monkeypatch.setattr("sys.argv", ["roundoff", "allocate", "sweep.yaml", *options])
    with pytest.raises(SystemExit, match="0"):
        main()
    told = capsys.readouterr().out
    assert "mine-cheapest" in told
    assert "successive halving of 2 formats, with up to 2 seeds" in told


def test_parts_that_save_much_for_what_they_lose_come_first(folder, monkeypatch):
    saves = {"forward": 10, "backward": 6, "optimizer": 100}
    loses = {"forward": 2.0, "backward": 1.0, "optimizer": torch.inf}

    def counted(config, *_):
        (unit,) = [rule["role"] for rule in config.settings.policy.get("rules", [])] or [None]
        end = torch.tensor([0.0, 1.0 + loses.get(unit, 0)])
        return CountedSteps({"bops": 200 - saves.get(unit, 0)}, {"all": torch.zeros(2)}, {"all": end})

    monkeypatch.setattr(allocation, "count_run", counted)
    plan = planned(folder, "search={for: cheapest, over: role, formats: [e5m2]}")
    monkeypatch.setattr(allocation, "cost_by", lambda _, counted: counted["bops"])
    assert CheapestArithmetic(plan).units == ["backward", "forward", "optimizer"]


@pytest.mark.parametrize(
    ("by", "over"),
    [
        ("bits", "role"),
        ("bytes", "role"),
        ("memory", "role"),
        ("horowitz-45nm", "module"),
        ("array-multiplier", "role"),
    ],
)
def test_any_cost_can_be_made_small(folder, by, over):
    plan = planned(folder, f"search={{for: cheapest, by: {by}, over: {over}, formats: [e5m10]}}")
    parts = {"role": ("optimizer", "forward"), "module": ("Sequential.0", "Sequential.2")}[over]
    chosen = dict.fromkeys(parts, "e5m10")
    configs = plan.runs[0].config, candidate(plan.search, plan.runs[0], chosen, plan.program)
    plain, narrow = (cost_by(by, count_run(config).cost) for config in configs)
    if by == "bits":
        assert (16 < narrow < plain, plain) == (True, 32)
    else:
        assert 0 < narrow < plain


def test_a_cost_is_the_sum_of_its_name():
    counted = {"models": {}, "bytes_read": 1, "bytes_written": 2, "elements_read": 4, "elements_written": 8}
    counted |= {"bytes_kept": 16, "bytes_peak": 32, "bops": 64, "macs": 128, "bytes_sent": 256}
    assert [cost_by(by, counted) for by in ("bits", "bytes", "memory", "bops")] == [2, 3, 16, 64]


CHIP = """
name: my chip
source: my bench
unit: pJ
multiply: {fp32: 4, e5m10: 2, e5m3: 1, e5m2: 3}    # narrower is not cheaper here
add: {fp32: 1}
"""


def test_the_model_of_a_file_of_ones_own_says_what_is_cheap(folder, monkeypatch, capsys):
    (folder / "chip.yaml").write_text(CHIP)
    inside = folder / "elsewhere"
    inside.mkdir()
    monkeypatch.chdir(inside)  # the file stands beside the sweep file, as programs do
    plan = planned(folder, "search={for: cheapest, by: ../chip.yaml, over: module, formats: [e5m10, e5m2, e5m3]}")
    assert plan.search.model.name == "my chip"
    text = (folder / "sweep.yaml").read_text().replace("by: bops", "by: chip.yaml").replace("choose: 2", "choose: 1")
    (folder / "sweep.yaml").write_text(text)
    plan = planned(folder)
    search = CheapestArithmetic(plan)
    assert search._choices == ["e5m3", "e5m10", "e5m2", "e5m7"]  # by the prices; the last one has none
    plain = count_run(plan.runs[0].config, models=[plan.search.model]).cost
    assert cost_by("my chip", plain) == plain["macs"] * 5
    found, _ = searched(folder, plan)
    assert found.chosen["Sequential.2"] == "e5m3"
    assert (found.by, found.reference_cost) == ("my chip", plain["macs"] * 5)
    assert "; model my chip " in str(found)
    assert "(pJ; source: my bench)" in str(found)
    monkeypatch.chdir(folder)  # as an argument it stands where the command is given
    options = ["--formats", "e5m3", "--over", "module", "--by", "chip.yaml", "--seeds", "5", "--dry-run"]
    monkeypatch.setattr("sys.argv", ["roundoff", "allocate", "sweep.yaml", *options])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "a search: Sequential." in capsys.readouterr().out


def test_what_a_model_has_no_number_for_is_not_free(folder):
    """The backward pass multiplies numbers of e5m10 by those of float32, for which the table has no price."""
    plan = planned(folder, "search={for: cheapest, by: horowitz-45nm, over: role, formats: [e5m10]}")
    search = CheapestArithmetic(plan)
    assert search.units == []
    assert "e5m10 x fp32" in search.unpriced["forward"] or "fp32 x e5m10" in search.unpriced["forward"]
    assert any("model horowitz-45nm has no number for" in line for line in describe_plan(plan, folder / "out"))
    found, _ = searched(folder, plan)
    assert "fp32 is the cheapest\nleft out: model horowitz-45nm has no number for" in str(found)
    (folder / "half.yaml").write_text("{name: half, source: mine, unit: pJ, multiply: {fp16: 1}, add: {fp32: 1}}")
    plan = planned(folder, "search={for: cheapest, by: half.yaml, over: role, formats: [e5m10]}")
    with pytest.raises(SweepError, match=r"model half has no number for .* fp32 \(fp32 x fp32.*nothing to compare"):
        CheapestArithmetic(plan)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "chip.yaml: cannot be read"),
        ("", "chip.yaml.*: is empty; a cost model needs at least name"),
        ("{", "chip.yaml:1:.*is not YAML"),
        ("bops", "chip.yaml: a cost model needs source"),
        ("{name: chip, source: me, unit: pJ, multiply: {fp61: 1}}", "chip.yaml: .*fp61"),
        ("{name: chip, source: me, unit: pJ, multiply: {fp16: 1, fp16: 2}}", "chip.yaml:1:.*duplicate key 'fp16'"),
        ("{name: horowitz-45nm, source: me, unit: pJ}", "chip.yaml: .*needs another name than horowitz-45nm"),
        (b"\xff", "chip.yaml: is not UTF-8"),
    ],
)
def test_the_file_of_a_model_with_a_mistake_is_refused_everywhere_alike(folder, content, said, monkeypatch, capsys):
    if content is not None:
        (folder / "chip.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SweepFileError, match=f"search.by: {said}"):
        planned(folder, "search.by=chip.yaml")
    monkeypatch.setattr("sys.argv", ["roundoff", "cost", "sweep.yaml", "--cost-model", "chip.yaml"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert re.search(said, told)
    assert len(told.splitlines()) == 1


def test_operations_get_formats_of_their_own(folder):
    plan = planned(folder, "search={for: cheapest, over: operation, by: bops, formats: [mxfp8_e4m3, e5m3]}")
    search = CheapestArithmetic(plan)
    assert set(search.units) == {"addmm", "mm"}  # scales are for what is multiplied
    by_bytes = planned(folder, "search={for: cheapest, over: operation, by: bytes, formats: [e5m3]}")
    others = CheapestArithmetic(by_bytes).units
    assert {"addmm", "mm", "relu", "add_"} <= set(others)
    assert "t" not in others  # which moves nothing
    (run,) = search._runs({"addmm": "e5m3", "mm": "mxfp8_e4m3"}, plan.runs[:1])
    policy = run.config.settings.policy_of_run()
    addmm, mm = (policy.arithmetic(name)[0] for name in ("addmm", "mm"))
    assert (str(addmm.format), str(addmm.operands)) == ("e5m3", "e5m3")
    assert (str(mm.format), str(mm.operands)) == ("fp32", "mxfp8_e4m3")


def test_modules_in_a_format_with_scales_round_what_they_multiply(folder):
    plan = planned(folder, "search={for: cheapest, over: module, by: bops, formats: [mxfp8_e4m3, e5m3]}")
    (run,) = CheapestArithmetic(plan)._runs({"Sequential.0": "e5m3", "Sequential.2": "mxfp8_e4m3"}, plan.runs[:1])
    policy = run.config.settings.policy_of_run()
    first, second = (policy.arithmetic("addmm", f"Sequential.{layer}", "forward")[0] for layer in (0, 2))
    assert (str(first.format), str(first.operands)) == ("e5m3", "e5m3")
    assert (str(second.format), str(second.operands)) == ("fp32", "mxfp8_e4m3")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["search={for: cheapest, formats: [e61]}"], "e61"),
        (["search={for: cheapest, formats: [e5m2], by: moore}"], "search.by: there is no cost model 'moore'.*bytes"),
        (["search={for: cheapest, formats: [e5m2], by: 3}"], "search.by: .*valid string, got 3"),
        (["search={for: cheapest, formats: [e5m2], until: within 2 %}"], "got until"),
        (["search={for: best}"], "takes no other keys, got by"),
        (["search={formats: []}"], "needs formats"),
        (["search={for: cheapest, formats: [e5m2], within: much}"], "must be a share"),
        (["search={for: cheapest, formats: [e5m2], over: storage}"], "allowed here are role, operation and module"),
        (["grid={seed: [0, 1, 2]}"], "needs 2 seeds that choose"),
        (["grid={format: [fp32, e5m10], seed: [0, 1, 2]}"], "in fp32 that differ only in their seeds"),
        (["policy=mixed-precision"], "makes policy and storage itself"),
        (["grid={luck: [1, 2], seed: 0..5}"], "differ only in their seeds"),
    ],
)
def test_a_search_that_cannot_be(folder, overrides, said):
    with pytest.raises(SweepFileError, match=said):
        planned(folder, *overrides)


def test_formats_in_which_a_run_crashes_have_no_mean_whatever_the_crash_scores():
    """An agent's is 0, which is more than many tasks give."""

    def store(*statuses):
        results = iter(SimpleNamespace(status=status, score=score) for status, score in statuses)
        return SimpleNamespace(has_ended=lambda _: True, result=lambda _: next(results))

    assert mean_score(store(("done", -200.0), ("done", -100.0)), [None] * 2) == -150
    assert mean_score(store(("done", -200.0), ("crashed", 0.0)), [None] * 2) is None


AGENT = """
base: {task: cartpole_swingup, steps: 6000, action_repeat: 20, hidden_units: 8, batch_size: 8, seed_steps: 20}
search: {for: cheapest, by: BY, over: OVER, formats: [e5m10, e4m3]}
grid: {seed: 0..4}
"""


@pytest.mark.parametrize(("over", "by", "some"), [("role", "bops", "forward"), ("storage", "memory", "first_moments")])
def test_agents_by_role_and_by_what_they_keep(over, by, some):
    plan = plan_text(AGENT.replace("BY", by).replace("OVER", over), "agent.yaml")
    search = CheapestArithmetic(plan)
    assert some in search.units
    with pytest.raises(SweepFileError, match="agents have no modules"):
        plan_text(AGENT.replace("BY", by).replace("OVER", "module"), "agent.yaml")
