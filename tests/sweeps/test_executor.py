"""The worker pool, with workers that do what the test says: end, fail, die, hang."""

import json
import queue
import signal
import subprocess
import sys

import pytest
from processes import PATIENCE, alive, children, wait_until

from roundoff.agents import RunError
from roundoff.sweeps import SweepError, plan_text, run_sweep
from roundoff.sweeps.display.dry_run import describe_plan
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.folder.leases import Leases
from roundoff.sweeps.workers.local import LocalProcesses
from roundoff.sweeps.workers.pool import execute

# A worker that takes its behaviour from the run's seed, and leaves a mark for every time it was tried.
WORKER = r"""
import json, os, signal, sys, threading, time
say = lambda **event: print(json.dumps(event), flush=True)
say(event="ready")
def serve(order):
    (run,) = order["runs"]
    say = lambda **event: print(json.dumps({"run": run["lease"]["run"], **event}), flush=True)
    seed, folder = run["config"]["seed"], run["directory"]
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/tries", "a") as f: f.write(f"{os.getpid()}\n")
    tries = len(open(folder + "/tries").readlines())
    say(event="progress", progress={"step": 1})
    if seed == 1 or (seed == 2 and tries == 1): os.kill(os.getpid(), signal.SIGKILL)
    if seed == 3: return say(event="failed", reason="no luck")
    if seed == 4: sys.exit(7)
    if seed == 9: time.sleep(1000)
    if seed == 8:
        with open(folder + "/result.json", "w") as f: f.write("{")
        return say(event="ended")
    with open(folder + "/config.json", "w") as f: json.dump(run["imports"], f)
    with open(folder + "/result.json", "w") as f:
        json.dump({"status": "crashed" if seed == 5 else "done", "return": float(seed), "step": 1}, f)
    say(event="ended")
for line in sys.stdin: serve(json.loads(line))
"""
COMMAND = (sys.executable, "-c", WORKER)


def plan(seeds, name="sweep"):
    return plan_text(f"name: {name}\nbase: {{steps: 10, seed_steps: 1}}\ngrid: {{seed: {list(seeds)}}}", "f")


class Recorder:
    def __init__(self, *, seeds=True):
        self.seeds = seeds
        self.ended = {}
        self.kinds = []

    def begin(self, waiting, finished, workers):
        self.waiting, self.finished, self.workers = len(waiting), finished, workers

    def event(self, event, status, score):
        self.kinds.append(event.kind)
        if event.kind in ("ended", "failed"):
            assert event.run.config.seed not in self.ended or not self.seeds
            self.ended[event.run.config.seed] = (status, score, event.reason)


def run(directory, seeds, workers=2, **options):
    recorder = Recorder()
    summary = run_sweep(plan(seeds, **options), directory, executor=LocalProcesses(workers, COMMAND), watcher=recorder)
    return summary, recorder


def test_a_sweep_is_refused_before_it_runs_where_a_device_is_missing(tmp_path):
    planned = plan_text("name: s\nbase: {steps: 10, seed_steps: 1}\ncases: [{}, {device: 'cuda:99'}]", "f")
    recorder = Recorder(seeds=False)
    with pytest.raises(RunError, match="device is cuda:99, but"):
        run_sweep(planned, tmp_path, executor=LocalProcesses(1, COMMAND), watcher=recorder)
    assert not any((tmp_path / "runs").iterdir())


def test_a_module_is_imported_only_where_the_user_allows_it(tmp_path, monkeypatch):
    monkeypatch.setattr("roundoff.sweeps.sweep.check_run", lambda config, allowed: None)  # which imports it
    tasks = "[cartpole_swingup, 'gym:a.b:C-v0', 'gym:json:C-v0', 'gym:c:D-v0']"
    text = f"name: s\nbase: {{steps: 10, seed_steps: 1}}\ngrid: {{task: {tasks}}}"
    command = LocalProcesses(1, COMMAND)
    planned = plan_text(text, "f")
    run_sweep(planned, tmp_path, executor=command, watcher=Recorder(seeds=False), allow_imports=["a"])
    store = SweepDirectory(tmp_path)
    imports = [json.loads((store.run_path(r) / "config.json").read_text()) for r in planned.runs]
    assert imports == [[], ["a.b"], ["json"], []]  # the program itself has imported json


def test_a_sweep_whose_module_is_not_allowed_begins_nothing(tmp_path):
    planned = plan_text("name: s\nbase: {task: 'gym:no_such_module:C-v0'}", "f")
    with pytest.raises(RunError, match="add --allow-import no_such_module"):
        run_sweep(planned, tmp_path / "out", executor=LocalProcesses(1, COMMAND), watcher=Recorder())
    assert not (tmp_path / "out").exists()
    lines = list(describe_plan(planned, tmp_path / "out"))
    assert "the module no_such_module will be imported, if --allow-import no_such_module allows it" in lines


def test_workers_import_nothing_from_the_folder_they_are_started_in(tmp_path, monkeypatch):
    """A user's own random.py, or somebody else's, is not Python's."""
    for name in ("random", "queue", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the folder')")
    monkeypatch.chdir(tmp_path)
    said = queue.SimpleQueue()
    worker = LocalProcesses(1).start(tmp_path / "log", said.put)
    assert said.get() == {"event": "ready"}
    worker.stop()
    assert said.get() is None
    worker.wait(PATIENCE)


def tries(directory, seed):
    (folder,) = (directory / "runs").glob(f"*-s{seed}-*")
    return len((folder / "tries").read_text().split())


@pytest.mark.parametrize("workers", [1, 3])
def test_every_run_comes_to_one_end_and_the_others_go_on(tmp_path, workers):
    summary, recorder = run(tmp_path, range(8), workers)
    assert (summary.done, summary.crashed, summary.failed) == (4, 1, 3)
    assert recorder.ended[0] == ("done", 0.0, "")
    assert recorder.ended[2] == ("done", 2.0, "")  # killed once, tried again
    assert recorder.ended[5] == ("crashed", 5.0, "")
    assert recorder.ended[3] == ("failed", 0.0, "no luck")
    assert recorder.ended[1][0] == "failed"
    assert "SIGKILL" in recorder.ended[1][2]
    assert "status 7" in recorder.ended[4][2]
    assert [tries(tmp_path, seed) for seed in range(8)] == [1, 2, 2, 1, 2, 1, 1, 1]
    failed = json.loads(next((tmp_path / "runs").glob("*-s3-*/failed.json")).read_text())
    assert failed == {"reason": "no luck"}


def test_finished_runs_are_not_repeated_and_failed_ones_are(tmp_path):
    run(tmp_path, [0, 3, 5])
    marker = (tmp_path / "sweep.json").read_bytes()
    summary, recorder = run(tmp_path, [0, 3, 5])
    assert (recorder.waiting, recorder.finished) == (1, 2)
    assert (summary.done, summary.crashed, summary.failed) == (1, 1, 1)
    assert [tries(tmp_path, seed) for seed in (0, 3, 5)] == [1, 2, 1]
    assert (tmp_path / "sweep.json").read_bytes() == marker


def test_a_sweep_can_be_extended(tmp_path):
    run(tmp_path, [0, 6])
    summary, recorder = run(tmp_path, [7, 6])
    assert (recorder.waiting, summary.done) == (1, 2)
    seeds = [entry["config"]["seed"] for entry in json.loads((tmp_path / "sweep.json").read_text())["runs"]]
    assert sorted(seeds) == [0, 6, 7]


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SweepError, match=r"thesis\.tex"):
        run(tmp_path, [0])
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(SweepError, match="is not a folder"):
        run(tmp_path / "thesis.tex", [0])
    ours = tmp_path / "ours"
    run(ours, [0])
    with pytest.raises(SweepError, match="holds the sweep 'sweep', and this one is 'other'"):
        run(ours, [0], name="other")
    (ours / "sweep.json").write_text('{"layout": 99}')
    with pytest.raises(SweepError, match="has layout 99"):
        run(ours, [0])


def test_a_damaged_result_is_named_and_the_other_runs_go_on(tmp_path):
    run(tmp_path, [0])
    (result,) = (tmp_path / "runs").glob("*/result.json")
    for seed, damage in enumerate(("", "{", "{}", "[]"), 10):
        result.write_text(damage)
        summary, recorder = run(tmp_path, [0, seed])
        assert (summary.done, summary.failed) == (1, 1)
        assert recorder.ended[0][2].endswith("delete the file to repeat the run")
        assert recorder.ended[seed][0] == "done"
    assert tries(tmp_path, 0) == 1
    result.unlink()
    assert run(tmp_path, [0])[0].done == 1


def test_a_result_that_is_damaged_as_it_is_written_ends_no_sweep(tmp_path):
    summary, recorder = run(tmp_path, [8, 0, 6])
    assert (summary.done, summary.failed) == (2, 1)
    assert "is not JSON" in recorder.ended[8][2]


def test_closing_the_iterator_stops_the_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("roundoff.sweeps.workers.pool._GRACE", 0.5)  # this worker does not listen
    jobs = [(r, tmp_path / r.id) for r in plan([9, 0]).runs]
    events = execute(jobs, LocalProcesses(2, COMMAND), Leases(tmp_path / "leases"), tmp_path)
    assert next(events).kind == "started"
    wait_until((tmp_path / jobs[0][0].id / "tries").exists)
    pid = int((tmp_path / jobs[0][0].id / "tries").read_text())
    assert alive(pid)
    events.close()
    assert not alive(pid)


PARENT = """
import sys
from pathlib import Path
from roundoff.sweeps import plan_text
from roundoff.sweeps.display.dry_run import describe_plan
from roundoff.sweeps.workers.pool import execute
from roundoff.sweeps.folder.leases import Leases
from roundoff.sweeps.workers.local import LocalProcesses
run, = plan_text("name: x\\ngrid: {seed: [9]}", "f").runs
folder = Path(sys.argv[1])
for event in execute([(run, folder / "run")], LocalProcesses(1), Leases(folder / "leases"), folder):
    print(event.kind, flush=True)
"""


def test_workers_end_with_their_parent_however_it_dies(tmp_path):
    """The real worker: a parent killed with SIGKILL closes its pipes, and that is the signal."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"started\n"
    (child,) = wait_until(lambda: children(parent.pid))
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not alive(child))


def test_states_of_runs(tmp_path):
    store = SweepDirectory(tmp_path)
    runs = plan([0, 3, 5, 6]).runs
    run(tmp_path, [0, 3, 5])
    assert [store.state(r) for r in runs] == ["done", "failed", "crashed", "waiting"]
