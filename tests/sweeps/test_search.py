"""Searches for the fewest bits by bisection: what is run, what is found, and that both can be continued."""

import json
import math
import shutil
import sys

import pytest
from forked import ForkedWorkers

from roundoff.agents.config.fixes import BASELINES
from roundoff.formats import Format
from roundoff.sweeps import SweepFileError, exit_status, plan_file
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.folder.status import read_status
from roundoff.sweeps.language.plan import branches
from roundoff.sweeps.language.search_goal import SearchGoal
from roundoff.sweeps.search import run_search
from roundoff.sweeps.workers.local import LocalProcesses

PROGRAM = """
import roundoff

def train(format: str, seed: int, need: int = 4, fails: bool = False):
    bits = roundoff.Format.parse(format).significand_bits
    if fails and bits == 5:
        raise RuntimeError("at five")
    return (0.99 if bits >= need else 0.5) + 0.001 * seed if bits > 1 else float("nan")
"""

ACTORS = """
base: {algorithm: dqn, task: gym:CartPole-v1, steps: 2000}
search: {of: actors.format, bits: width, until: within 10 %}
grid:
  lr: [1e-3, 1e-4]
  actors:
    - {format: int2}
    - {format: int3}
    - {format: e2m1}
    - {format: int8}
  seed: [0, 1]
"""

WORKER = """
import json, os, sys
say = lambda **event: print(json.dumps(event), flush=True)
say(event="ready")
for line in sys.stdin:
    for run in json.loads(line)["runs"]:
        config = run["config"]
        bits = 23 if config["format"] == "fp32" else int(config["format"].partition("m")[2])
        good = (0.99 if bits >= config["need"] else 0.5) + 0.001 * config["seed"] if bits > 1 else None
        crash, values = (None, {"x": good, "y": -good}) if good else ({"step": 1, "reason": "nan"}, {})
        score = values.get((run["metric"] or {"name": "x"})["name"], 0.0)
        result = {"status": "crashed" if crash else "done", "return": score, "step": 1, "crash": crash}
        os.makedirs(run["directory"], exist_ok=True)
        with open(run["directory"] + "/result.json", "w") as f:
            json.dump(result | {"values": values, "metric": run["metric"]}, f)
        say(run=run["lease"]["run"], event="ended")
"""
QUICK = (sys.executable, "-c", WORKER)
"""Does what PROGRAM does, without importing PyTorch in every round of a search."""


class Watcher:
    def __init__(self):
        self.started, self.reasons = [], []

    def begin(self, *_):
        pass

    def notice(self, text):
        raise AssertionError(text)

    def event(self, event, state, score):
        if event.kind == "started":
            self.started.append(event.run.config.format)
        if event.kind == "failed":
            self.reasons.append(event.reason)


def plan(folder, text):
    (folder / "search_program.py").write_text(PROGRAM)
    (folder / "s.yaml").write_text(f"program: search_program.py:train\n{text}")
    return plan_file(folder / "s.yaml")


@pytest.fixture
def search(tmp_path):
    def run(text, *command):
        watcher, workers = Watcher(), LocalProcesses if command else ForkedWorkers
        _, found = run_search(plan(tmp_path, text), tmp_path / "out", lambda: workers(2, *command), watcher)
        return found, watcher.started

    return run


def test_a_bisection_finds_what_the_whole_grid_would(search, tmp_path):
    text = "metric: x\nsearch: {until: within 2 %}\ngrid: {need: [4, 20], format: {e5mX: 1..8}, seed: [0, 1]}"
    found, started = search(text, QUICK)
    enough = {finding.given["need"]: finding.enough for finding in found}
    assert enough == {4: "e5m4", 20: None}
    for finding in found:
        assert len(finding.means) <= math.ceil(math.log2(8)) + 1
        assert finding.reference == pytest.approx(0.9905)
        assert finding.finished
    assert len(started) < 2 * 9 * 2 * 0.6
    assert search(text, QUICK) == (found, [])  # continued: nothing is left to do
    told = json.loads((tmp_path / "out" / "search.json").read_text())["findings"]
    assert [finding["enough"] for finding in told] == [finding.enough for finding in found]
    listed = {run["config"]["format"] for run in SweepDirectory(tmp_path / "out").read()["runs"]}
    assert listed == set(started)
    assert "e5m4 is enough (fp32 0.9905; " in str(found[0])
    assert str(found[1]).startswith("need 20: no format is good enough")


def test_a_search_that_was_killed_between_two_rounds_has_not_ended(tmp_path):
    """Only the missing answer tells that such a search goes on: its runs so far have all ended."""
    made = plan(tmp_path, "metric: x\nsearch: {}\ngrid: {need: [4], format: {e5mX: 1..8}, seed: [0]}")

    def search(rounds):
        workers = iter([LocalProcesses(2, QUICK) for _ in range(rounds)])
        return run_search(made, tmp_path / "out", lambda: next(workers), Watcher())

    def status():
        found = read_status(tmp_path / "out")
        return found.count("waiting"), exit_status(found), len(found.warnings)

    search(9)
    assert status() == (0, 0, 0)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(StopIteration):
        search(2)
    assert status() == (0, 3, 1)
    search(9)
    assert status() == (0, 0, 0)


def test_exponent_bits_and_a_goal_to_minimize(search):
    text = (
        "metric: {name: x, goal: minimize, crash: 1}\nsearch: {bits: exponent, until: within 150 %}\n"
        "grid: {need: [2], format: [e3m2, e5m2, e8m2], seed: [0]}"
    )
    (finding,), started = search(text, QUICK)
    assert finding.enough == "e3m2"
    assert set(started) == {"fp32", "e8m2", "e3m2"}
    assert Format.parse("e3m2").significand_bits == 2


def test_runs_that_fail_end_a_search(search):
    (finding,), started = search("search: {}\nbase: {fails: true}\ngrid: {need: [4], format: {e5mX: 2..9}, seed: [0]}")
    assert started == ["e5m9", "fp32", "e5m5"]
    assert finding.enough == "e5m9"
    assert "e5m5" not in finding.means
    assert not finding.finished
    assert "not finished, so far e5m9 is enough" in str(finding)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: 3", "search must be a mapping with the keys for, of, bits, until"),
        ("search: {until: nearly}", "search.until: must be a share of fp32's mean, such as 'within 2 %', got 'nearly'"),
        ("search: {bits: all}", "search.bits: must be 'significand', 'exponent' or 'width', got 'all'"),
        ("search: {}\ngrid: {format: [e5m2]}", "search needs at least two formats"),
        ("search: {}\ngrid: {format: [e5m2, int8]}", "int8 is none"),
        ("search: {bits: width}\ngrid: {format: [e5m2, int8]}", "takes formats of different bits, got e5m2 8, int8 8"),
        ("search: {of: actors}", "search.of: must be 'format' or 'actors.format', got 'actors'"),
        ("search: {of: actors.format}\ngrid: {format: [e5m2, e4m3]}", "of actors.format, and a run has no actors"),
        ("search: {}\ngrid: {format: [e5m2, e4m3]}", "formats that differ in nothing else, got e5m2 and e4m3"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, text, message):
    with pytest.raises(SweepFileError) as caught:
        plan(tmp_path, text)
    assert message in str(caught.value)
    with pytest.raises(SweepFileError, match=r"over significand takes formats of different bits, got e4m3 3, e4m3fn 3"):
        plan(tmp_path, "search: {}\ngrid: {format: [e4m3, e4m3fn]}")


def write_results(folder, made, score):
    """The results of runs as if they had been run; ``score`` gives that of a run."""
    SweepDirectory(folder / "out").claim(made)
    for run in made.runs:
        directory = folder / "out" / "runs" / run.id
        directory.mkdir(parents=True)
        result = {"status": "done", "return": score(run), "crash": None, "step": 1}
        told = {"values": {"x": score(run)}, "metric": made.metric.as_json() if made.metric else None}
        (directory / "result.json").write_text(json.dumps(result | told))


@pytest.fixture
def ended(tmp_path):
    """A search whose runs have all ended, and what looks at it again without being able to run anything."""
    made = plan(tmp_path, "metric: x\nsearch: {}\ngrid: {format: [e5m2, e5m3], seed: [0, 1]}")

    def look(**scores):
        if scores:
            write_results(tmp_path, made, lambda run: scores[run.config.format])
        return run_search(made, tmp_path / "out", lambda: LocalProcesses(1), Watcher())[1]

    return look


def test_scores_of_any_size_have_a_mean(ended):
    (finding,) = ended(fp32=1.7e308, e5m2=-1.7e308, e5m3=1.69e308)
    assert (finding.reference, finding.enough, finding.means["e5m2"]) == (1.7e308, "e5m3", -1.7e308)


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("return", "NaN"), ("return", "1e999"), ("return", "9" * 400), ("return", '"1"'), ("return", "null"),
        ("return", "true"), ("return", "[]"), ("values", '{"x": "1"}'), ("values", '{"x": NaN}'), ("values", "[]"),
    ],
)  # fmt: skip
def test_a_score_that_is_none_is_a_damaged_result(ended, tmp_path, key, damage):
    ended(fp32=1.0, e5m2=1.0, e5m3=1.0)
    path = min((tmp_path / "out" / "runs").glob("*-fp32-s0-*")) / "result.json"
    result = json.loads(path.read_text()) | {key: "HERE", "metric": None}
    path.write_text(json.dumps(result).replace('"HERE"', damage))
    watcher = Watcher()
    made = plan(tmp_path, "metric: x\nsearch: {}\ngrid: {format: [e5m2, e5m3], seed: [0, 1]}")
    summary, (finding,) = run_search(made, tmp_path / "out", lambda: LocalProcesses(1), watcher)
    assert (summary.failed, finding.enough) == (1, None)
    assert "result.json: is not the result of a run; delete the file to repeat" in watcher.reasons[0]


def test_agents_are_compared_with_fp32_whatever_their_baseline(tmp_path):
    """Baselines, fixes, policies: each row of formats has a run in fp32 that differs in nothing else."""
    text = (
        "base: {task: cartpole_swingup, steps: 6000}\nsearch: {}\n"
        "grid: {format: [e5m2, e5m10], policy: [{}, {rounding: stochastic}],"
        f" baseline: [{', '.join(BASELINES)}], algorithm: [sac, td3]}}"
    )
    (tmp_path / "s.yaml").write_text(text)
    runs = plan_file(tmp_path / "s.yaml").runs
    rows = branches(runs, SearchGoal())
    assert len(rows) == 2 * 2 * len(BASELINES)
    assert all([run.config.format for run in row] == ["e5m2", "e5m10", "fp32"] for row in rows)


def test_agents_in_native_formats_cannot_be_searched_and_one_line_says_so(tmp_path):
    text = "base: {task: cartpole_swingup, native: true}\nsearch: {}\ngrid: {format: [e5m10, e8m7]}"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SweepFileError) as caught:
        plan_file(tmp_path / "s.yaml")
    assert str(caught.value).count("\n") == 0
    assert "search over significand bits takes formats that differ in nothing else" in str(caught.value)


def test_the_bits_of_actors_are_searched_whatever_the_family(tmp_path):
    (tmp_path / "s.yaml").write_text(ACTORS)
    made = plan_file(tmp_path / "s.yaml")
    assert len(made.runs) == 2 * (4 + 1) * 2
    scores = {"fp32": 100.0, "int8": 95.0, "e2m1": 91.0, "int3": 89.0, "int2": 10.0}
    write_results(tmp_path, made, lambda run: scores[run.config.actors.format])
    found = run_search(made, tmp_path / "out", lambda: LocalProcesses(1), Watcher())[1]
    assert [(finding.given, finding.enough) for finding in found] == [({"lr": 1e-3}, "e2m1"), ({"lr": 1e-4}, "e2m1")]
    assert list(found[0].means) == ["int3", "e2m1", "int8"]  # what a bisection asks for
    assert all(run.config.format == "fp32" for run in made.runs)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"e5m2": None}, "e5m4 is enough (fp32 -150; e5m2 crashed, e5m4 -150)"),
        ({"updates": 0}, "cannot be said: fp32 itself made no update (fp32 -150)"),
        ({"untrained": -151.0}, "cannot be said: fp32 did not improve on its untrained policy, -151 (fp32 -150)"),
        ({"untrained": -1400.0}, "e5m2 is enough (fp32 -150; e5m2 -150, e5m4 -150)"),
    ],
)
def test_crashes_and_runs_that_learned_nothing_are_never_enough(tmp_path, known, said):
    (tmp_path / "s.yaml").write_text(
        "base: {task: 'gym:Pendulum-v1', steps: 6000}\nsearch: {until: within 10 %}\n"
        "grid: {format: [e5m2, e5m4], seed: [0, 1]}"
    )
    made = plan_file(tmp_path / "s.yaml")
    store = SweepDirectory(tmp_path / "out")
    store.claim(made)
    for run in made.runs:
        crash = {"step": 1, "reason": "NaN"} if run.config.format in known and run.config.seed == 1 else None
        result = {"status": "crashed", "return": 0.0} if crash else {"status": "done", "return": -150.0}
        store.run_path(run).mkdir(parents=True)
        told = known if run.config.format == "fp32" else {}
        (store.run_path(run) / "result.json").write_text(json.dumps(result | {"crash": crash, "step": 1} | told))
    _, (finding,) = run_search(made, tmp_path / "out", lambda: LocalProcesses(1), Watcher())
    assert str(finding).startswith(said)
