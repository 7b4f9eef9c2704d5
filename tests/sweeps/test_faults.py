"""What a sweep survives; docs/running-sweeps.md lists it. Sweeps and workers are the real ones, as forks."""

import json
import os
import random
import resource
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forked import ForkedWorkers, Silent, ended, fork, fork_sweep, wait_for
from processes import alive, children, wait_until
from rich.console import Console

from roundoff.agents import train
from roundoff.agents.errors import FileError
from roundoff.agents.run.stopping import Stopped
from roundoff.analysis import read_experiment
from roundoff.analysis.tables.summary import summarize
from roundoff.files import directory_lock
from roundoff.sweeps import plan_text, run_sweep
from roundoff.sweeps.display.progress import ProgressDisplay
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.workers import process as worker

TINY = """
name: tiny
base:
  task: cartpole_swingup
  action_repeat: 50
  steps: 2000
  hidden_units: 8
  batch_size: 8
  seed_steps: 5
  eval_every: 1000
  eval_episodes: 1
  checkpoint_every: 200
grid:
  format: [fp32, e5m10]
  seed: [0, 1]
"""
PLAN = plan_text(TINY, "tiny")


def results(directory):
    """Everything that must not depend on what happened on the way."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.glob("runs/*/*"))
        if path.name in ("config.json", "metrics.jsonl", "result.json")
    } | {"summary.csv": summarize(read_experiment(directory)).to_csv()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Trained here, one after another; also so that the forks find everything imported and compiled."""
    folder = tmp_path_factory.mktemp("undisturbed")
    SweepDirectory(folder).claim(PLAN)
    for run in PLAN.runs:
        train(run.config, SweepDirectory(folder).run_path(run))
    return results(folder)


def disturb(folder, rounds, source):
    """Kills the sweep, or a worker, at random moments, and lets all clocks jump; returns the rounds that are left."""
    pid = fork_sweep(PLAN, folder)
    while rounds:
        time.sleep(source.uniform(0, 0.5))
        if ended(pid) is not None:
            return rounds
        victim = source.choice([pid, *children(pid)])
        os.kill(victim, signal.SIGKILL)
        rounds -= 1
        if source.random() < 0.3:
            stamp = time.time() + source.uniform(-1e6, 1e6)
            for path in folder.rglob("*"):
                try:
                    os.utime(path, (stamp, stamp))
                except FileNotFoundError:
                    continue
        if victim == pid:
            wait_for(pid)
            pid = fork_sweep(PLAN, folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(pid)
    return 0


@pytest.mark.parametrize("rounds", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments(undisturbed, tmp_path, rounds):
    source = random.Random(rounds)
    for number in range(rounds):
        folder = tmp_path / str(number)
        rounds = disturb(folder, rounds, source)
        assert wait_for(fork_sweep(PLAN, folder)) == 0
        assert results(folder) == undisturbed
        assert not list(folder.glob("leases/[!.]*"))
        if not rounds:
            break


def test_a_folder_in_which_a_silent_process_still_works_is_waited_for(undisturbed, tmp_path, monkeypatch):
    """The lease of a process that was suspended is taken over by another machine, and its lock is not."""
    monkeypatch.setattr(worker, "BETWEEN_TRIES", 0.1)
    folder, held = tmp_path / "sweep", tmp_path / "held"
    SweepDirectory(folder).claim(PLAN)
    locked = SweepDirectory(folder).run_path(PLAN.runs[0])
    locked.mkdir(parents=True)

    def hold():
        with directory_lock(locked):
            held.touch()
            time.sleep(600)

    holder = fork(hold)
    wait_until(held.exists)
    with (tmp_path / "said").open("w", buffering=1) as said:
        sweep = fork_sweep(PLAN, folder, watcher=ProgressDisplay(Console(file=said, width=500)))
    wait_until(lambda: len(list(folder.glob("runs/*/result.json"))) == len(PLAN.runs) - 1)
    time.sleep(0.5)  # for several tries
    assert ended(sweep) is None
    assert not list(locked.glob("*.json"))
    os.kill(holder, signal.SIGKILL)
    assert wait_for(sweep) == 0
    wait_for(holder)
    assert (tmp_path / "said").read_text().count(
        "another process is working in this folder; wait for it or stop it"
    ) == 1
    assert results(folder) == undisturbed


def logging_train(config, directory, report, stop, **_):
    """Takes a moment, and writes down from when to when, and who."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    if not result.exists():
        with (folder / "log").open("a") as log:
            began = time.monotonic()
            log.write(f"{began} ")
            log.flush()
            time.sleep(0.02 + 0.01 * (config.seed % 3))
            log.write(f"{time.monotonic()} {os.getppid()}\n")
        temporary = folder / ".result"
        temporary.write_text('{"status": "done", "return": 1.0, "return_std": 0.0, "step": 1, "crash": null}')
        temporary.rename(result)


def train_beside_another(config, directory, report, stop, **rest):
    """Waits until the other sweep has a run, too."""
    here = Path(directory).parents[1] / "here"
    here.mkdir(exist_ok=True)
    (here / str(os.getppid())).touch()
    wait_until(lambda: len(list(here.iterdir())) == 2)
    logging_train(config, directory, report, stop, **rest)


def test_two_sweeps_in_one_folder_share_the_runs(tmp_path):
    plan = plan_text(f"name: shared\ngrid: {{seed: {list(range(24))}}}", "shared")
    sweeps = [fork_sweep(plan, tmp_path, 2, train_beside_another) for _ in range(2)]
    assert [wait_for(pid) for pid in sweeps] == [0, 0]
    logs = [path.read_text().split() for path in tmp_path.glob("runs/*/log")]
    assert len(logs) == 24
    assert all(len(log) == 3 for log in logs)  # nothing was done twice
    assert {int(log[2]) for log in logs} == set(sweeps)  # and both had a share


def test_a_sweep_takes_over_what_another_one_left(tmp_path):
    plan = plan_text(f"name: shared\ngrid: {{seed: {list(range(24))}}}", "shared")
    first, second = (fork_sweep(plan, tmp_path, 2, logging_train) for _ in range(2))
    wait_until(lambda: len(list(tmp_path.glob("runs/*/result.json"))) >= 6)
    os.kill(first, signal.SIGKILL)
    wait_for(first)
    assert wait_for(second) == 0
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 24
    for path in tmp_path.glob("runs/*/log"):  # a run that was cut short has a torn line, and nothing overlaps
        lines = path.read_text().replace("\n", " ").split()
        assert lines == sorted(lines[:-1], key=float) + lines[-1:]


def hanging_train(config, directory, report, stop, **_):
    Path(directory).mkdir(parents=True)
    time.sleep(1000)


def test_ctrl_c_twice_ends_at_once(tmp_path):
    pid = fork_sweep(PLAN, tmp_path, 2, hanging_train)
    wait_until(lambda: len(list(tmp_path.glob("runs/*"))) == 2)
    workers = children(pid)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert ended(pid) is None  # the workers are asked to save, and have 20 seconds for that
    os.kill(pid, signal.SIGINT)
    assert wait_for(pid, 10) == 130
    assert len(workers) == 2
    assert not any(map(alive, workers))


def stopping_train(config, directory, report, stop, **_):
    """Fails in every second run, and waits to be stopped in the others."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    if config.seed:
        raise RuntimeError("no luck")
    (Path(directory) / "waits").touch()
    while not stop.made:
        time.sleep(0.01)
    raise Stopped(0)


def test_what_fails_or_is_stopped_is_given_back_for_others(tmp_path):
    pid = fork_sweep(PLAN, tmp_path, 3, stopping_train)
    wait_until(lambda: len(list(tmp_path.glob("runs/*/waits"))) == len(list(tmp_path.glob("runs/*/failed.json"))) == 2)
    given_back = {path.name.partition(".")[0] for path in tmp_path.glob("leases/*") if not path.stat().st_size}
    assert given_back == {path.parent.name for path in tmp_path.glob("runs/*/failed.json")}
    os.kill(pid, signal.SIGINT)
    assert wait_for(pid) == 130
    assert len(list(tmp_path.glob("leases/*"))) == 4
    assert not any(path.stat().st_size for path in tmp_path.glob("leases/*"))


def test_a_full_disk(undisturbed, tmp_path):
    """No file may grow beyond 12 000 bytes: enough for a plan, and not for a checkpoint."""

    def sweep():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
        summary = run_sweep(PLAN, tmp_path, executor=ForkedWorkers(2), watcher=Silent())
        assert summary.failed == 4

    assert wait_for(fork(sweep)) == 0
    for path in tmp_path.glob("runs/*/failed.json"):
        assert "cannot be written (File too large); free space" in json.loads(path.read_bytes())["reason"]
    assert wait_for(fork_sweep(PLAN, tmp_path)) == 0
    assert results(tmp_path) == undisturbed


def test_a_damaged_checkpoint_is_named_and_its_run_can_be_begun_anew(undisturbed, tmp_path):
    found = []
    while not found:  # a run can end before it is killed
        pid = fork_sweep(PLAN, tmp_path)
        wait_until(lambda: list(tmp_path.glob("runs/*/checkpoint.pt")) or list(tmp_path.glob("runs/*/result.json")))
        workers = [json.loads(path.read_text().splitlines()[0])[2] for path in tmp_path.glob("leases/*")]
        for process in (*workers, pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_for(pid)
        wait_until(lambda: not any(alive(worker) for worker in workers))  # noqa: B023
        found = list(tmp_path.glob("runs/*/checkpoint.pt"))
        if not found:
            shutil.rmtree(tmp_path)
    content = bytearray(found[0].read_bytes())
    content[len(content) // 2] ^= 255
    found[0].write_bytes(content)
    assert wait_for(fork_sweep(PLAN, tmp_path)) == 0
    reason = json.loads((found[0].parent / "failed.json").read_bytes())["reason"]
    assert str(found[0]) in reason
    assert "delete the run's folder to start the run again" in reason
    for path in sorted(found[0].parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert wait_for(fork_sweep(PLAN, tmp_path)) == 0
    assert results(tmp_path) == undisturbed


def test_a_folder_that_cannot_be_written_to_is_one_message():
    with pytest.raises(FileError, match="/proc/sweep: cannot be made a folder"):
        run_sweep(PLAN, Path("/proc/sweep"), executor=ForkedWorkers(1), watcher=Silent())
