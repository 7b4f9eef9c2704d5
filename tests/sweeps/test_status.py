"""What has become of the runs, from the folder alone."""

import json
import os
import time
from pathlib import Path

import pytest
from forked import fork_sweep, wait_for
from processes import wait_until

from roundoff.files import write_json
from roundoff.sweeps import SweepError, plan_text
from roundoff.sweeps.display.status_table import exit_status, status_lines, watch_status
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.folder.leases import STALE, this_process
from roundoff.sweeps.folder.status import read_status

PLAN = plan_text("name: mine\nbase: {steps: 4000, seed_steps: 100}\ngrid: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}", "mine")
CRASH = {"step": 5, "reason": "the policy took a non-finite action"}


@pytest.fixture
def folder(tmp_path):
    """A run in each state."""
    store = SweepDirectory(tmp_path)
    store.claim(PLAN)
    store.leases.mkdir()

    def put(seed, name, content):
        path = store.run_path(PLAN.runs[seed]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def lease(seed, holder, progress):
        path = store.leases / f"{PLAN.runs[seed].id}.4"
        path.write_text(f"{json.dumps(holder)}\n{json.dumps(progress)}\n")
        return path

    put(0, "result.json", {"status": "done", "return": 7.5, "step": 4000, "crash": None})
    put(1, "result.json", {"status": "crashed", "return": 0.0, "step": 5, "crash": CRASH})
    put(2, "failed.json", {"reason": "no luck\nat all"})
    put(3, "metrics.jsonl", '{"kind": "eval", "step": 1000, "return_mean": 2.5}\n{"kind": "train", "st')
    put(3, "failed.json", {"reason": "of an earlier try"})
    lease(3, this_process(), {"step": 2000, "rate": 100.0, "loss_scale": 512.0})
    elsewhere = this_process()._replace(machine="another", host="far")
    lease(4, elsewhere, {"step": 1000})
    os.utime(lease(5, elsewhere, {}), times=(0, time.time() - STALE - 9))
    lease(6, this_process()._replace(started=0), {})
    put(6, "metrics.jsonl", '{"kind": "train", "step": 1000, "critic_loss_scale": 2.0}\n')
    return tmp_path


def test_each_state_with_its_reason(folder):
    status = read_status(folder)
    assert [run.state for run in status.runs] == [
        "done", "crashed", "failed", "running", "running", "waiting", "waiting", "waiting",
    ]  # fmt: skip
    assert status.warnings == ()
    lines = [line.partition("  ")[2].strip() for line in status_lines(status)]
    assert lines[0] == "done     100 %, step 4000, return 7.5"
    assert lines[1] == "crashed  0 %, step 5, return 0.0, the policy took a non-finite action"
    assert lines[2] == "failed   no luck"
    assert lines[3].startswith("running  50 %, step 2000, return 2.5, 100 steps/s, loss scale 512, on ")
    assert lines[4].startswith("running  25 %, step 1000, on far, process ")
    assert lines[5].startswith("waiting  no heartbeat from far for ")
    assert lines[6] == "waiting  25 %, step 1000, loss scale 2"
    assert lines[7] == "waiting"
    assert status_lines(status)[-1] == "mine: 8 runs: 2 running, 3 waiting, 1 done, 1 crashed, 1 failed"


def test_exit_status(folder):
    store = SweepDirectory(folder)
    assert exit_status(read_status(folder)) == 3
    for run in PLAN.runs[3:]:
        store.record_failure(run, "no luck")
        for path in store.leases.iterdir():
            path.unlink()
    assert exit_status(read_status(folder)) == 1
    for run in PLAN.runs:
        path = store.run_path(run) / "result.json"
        path.write_text('{"status": "done", "return": 0.0, "step": 1, "crash": null}')
    assert exit_status(read_status(folder)) == 0


def test_damage_and_strangers_are_said(folder):
    (folder / "runs" / "stranger").mkdir()
    (folder / "runs" / "stranger" / "config.json").write_text("{}")
    (folder / "runs" / "figures").mkdir()  # not a run's
    (folder / "runs" / "notes.txt").write_text("")
    (SweepDirectory(folder).run_path(PLAN.runs[0]) / "result.json").write_text("{")
    status = read_status(folder)
    assert status.runs[0].state == "failed"
    assert "delete it to repeat the run" in status.runs[0].reason
    assert len(status.warnings) == 2
    with pytest.raises(SweepError, match=r"is not the folder of a sweep \(there is no sweep.json\)"):
        read_status(folder / "runs")


def train_until_seen(config, directory, report, stop, **_):
    result = {"status": "done", "return": 1.0, "return_std": 0.0, "step": 4000, "crash": None}
    Path(directory).mkdir(parents=True)
    wait_until((Path(directory).parents[1] / "seen").exists)
    write_json(Path(directory) / "result.json", result)  # whole from the first: it is read meanwhile


def test_watching_a_sweep_from_elsewhere(tmp_path, capsys, monkeypatch):
    def read(folder):
        status = read_status(folder)
        if status.count("running") == 2:
            (folder / "seen").touch()
        return status

    monkeypatch.setattr("roundoff.sweeps.display.status_table._REFRESH", 0.02)
    monkeypatch.setattr("roundoff.sweeps.display.status_table.read_status", read)
    pid = fork_sweep(PLAN, tmp_path, 2, train_until_seen)
    wait_until((tmp_path / "sweep.json").exists)
    status = watch_status(tmp_path)
    assert wait_for(pid) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "mine: 8 runs: 0 running, 0 waiting, 8 done, 0 crashed, 0 failed"
    assert any("2 running" in line for line in lines)
    assert status.count("done") == 8
