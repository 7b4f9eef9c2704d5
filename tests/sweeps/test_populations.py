"""Sweeps whose workers train several runs at once: which, and that nothing else changes."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from forked import ForkedWorkers, begin_command, ended, fork_command, wait_for
from processes import wait_until

from roundoff.agents import train
from roundoff.sweeps import plan_text, run_sweep
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.workers.local import LocalProcesses
from roundoff.sweeps.workers.pool import group

# As in tests/agents/test_population.py, so that the programs are on disk.
FILE = """
name: together
base:
  task: cartpole_swingup
  hidden_units: 16
  batch_size: 16
  action_repeat: 8
  steps: 2400
  seed_steps: 20
  eval_every: 800
  eval_episodes: 1
  checkpoint_every: 400
  initial_loss_scale: 4194304.0
  loss_scale_growth_interval: 3
  kahan_momentum_scale: 32768.0
grid:
  format: [e5m10, e5m7, e4m3]
"""

WORKER = """
import json, os, signal, sys
say = lambda **event: print(json.dumps(event), flush=True)
say(event="ready")
for line in sys.stdin:
    runs = json.loads(line)["runs"]
    folder = os.path.dirname(os.path.dirname(runs[0]["directory"]))
    with open(folder + "/orders", "a") as f: f.write(json.dumps([run["config"]["seed"] for run in runs]) + "\\n")
    for run in runs:
        if len(runs) > 1 and run["config"]["seed"] == 1: os.kill(os.getpid(), signal.SIGKILL)
        os.makedirs(run["directory"], exist_ok=True)
        with open(run["directory"] + "/result.json", "w") as f:
            json.dump({"status": "done", "return": 1.0, "step": 1}, f)
        say(run=run["lease"]["run"], event="ended")
"""


class Silent:
    def begin(self, *_):
        pass

    def event(self, *_):
        pass


def sizes(source, population, workers, **settings):
    return [len(runs) for runs in group(plan_text(source, "plan").runs, population, workers, **settings)]


def test_groups_are_equal_and_as_many_as_workers():
    seeds = FILE.replace("[e5m10, e5m7, e4m3]", "[e5m10]\n  seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]")
    cases = [(1, 2, [1] * 9), (4, 2, [3, 3, 3]), (9, 1, [9]), (20, 2, [4, 5]), (9, 16, [1] * 9)]
    for population, workers, expected in cases:
        assert sizes(seeds, population, workers, compiled=True) == expected
    assert sizes(seeds, 9, 1, compiled=False) == [1] * 9
    assert sizes(seeds, 9, 1, compiled=None) == [1] * 9  # too short to gain
    assert sizes(seeds.replace("2400", "240000"), 9, 1, compiled=None) == [9]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed: [0, 1]", [8]),
        ("lr: [1.0e-3, 1.0e-4]", [8]),
        ("tau: [0.1, 0.2]", [8]),
        ("fixes: [all, none]", [4, 4]),
        ("adam_beta1: [0.9, 0.8]", [4, 4]),
        ("policy: [{rounding: nearest-even}, {rounding: stochastic}]", [4, 1, 1, 1, 1]),
        ("observe: [true]", [1, 1, 1, 1]),
    ],
)
def test_what_can_share_a_program(line, expected):
    source = FILE.replace("[e5m10, e5m7, e4m3]", f"[e5m10, e5m7, e4m3, e2m1]\n  {line}")
    assert sorted(sizes(source, 8, 1, compiled=True), reverse=True) == expected


def test_formats_of_other_loops_and_carriers_share_none():
    source = FILE.replace("[e5m10, e5m7, e4m3]", "[e5m10, e5m7, fp32, fp32, bf16, e8m4, e8m20]\n  seed: [0, 1]")
    assert sorted(sizes(source.replace("fp32, fp32", "fp32"), 8, 1, compiled=True)) == [2, 2, 4, 4]


def test_runs_of_a_worker_that_dies_go_on_alone(tmp_path):
    plan = plan_text(FILE.replace("[e5m10, e5m7, e4m3]", "[e5m10]\n  seed: [0, 1, 2]"), "plan")
    executor = LocalProcesses(1, (sys.executable, "-c", WORKER))
    summary = run_sweep(plan, tmp_path, executor=executor, watcher=Silent(), compiled=True, population=3)
    assert (summary.done, summary.failed) == (3, 0)
    orders = [json.loads(line) for line in (tmp_path / "orders").read_text().splitlines()]
    assert orders[0] == [0, 1, 2]
    assert sorted(orders[1:]) == [[1], [2]]


def results(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.glob("runs/*/*"))
        if path.name in ("metrics.jsonl", "result.json", "agent.pt")
    }


def test_a_sweep_killed_and_continued_has_the_bytes_of_runs_alone(tmp_path):
    shorter = FILE.replace("2400", "1200").replace("checkpoint_every: 400", "checkpoint_every: 200")
    (tmp_path / "file.yaml").write_text(shorter)
    folder = tmp_path / "together"
    options = ["--out", str(folder), "--workers", "1", "--population", "3", "--compile"]
    command = ["sweep", str(tmp_path / "file.yaml"), *options]
    sweep = begin_command(*command, printed=tmp_path, workers=ForkedWorkers)
    wait_until(lambda: len(list(folder.glob("runs/*/checkpoint.pt"))) == 3 or ended(sweep) is not None)
    os.kill(sweep, signal.SIGKILL)
    wait_for(sweep)
    again = fork_command(*command, cwd=tmp_path, workers=ForkedWorkers)
    assert again.returncode == 0, again.stderr
    notices = "".join(Path(log).read_text() for log in folder.glob("logs/*.log"))
    assert notices.count("of 3 runs together") >= 3
    alone = SweepDirectory(tmp_path / "alone")
    for run in plan_text(shorter, "plan").runs:
        train(run.config, alone.run_path(run), compiled=False)
    assert results(folder) == results(tmp_path / "alone")
    assert len(results(folder)) == 9
