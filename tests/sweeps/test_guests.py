"""A run of a program has a process of its own: nothing that it does to it reaches another run, or outlives it."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from forked import ForkedWorkers, fork_sweep, wait_for
from processes import alive, wait_until

from roundoff.sweeps import plan_file, run_sweep
from roundoff.sweeps.workers import fork_server
from roundoff.sweeps.workers.local import LocalProcesses

PROGRAM = """
import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

import roundoff

MARKS = Path(__file__).parent / "marks"


def linger(seconds=600):
    (MARKS / str(os.getpid())).touch()
    time.sleep(seconds)


def marks():
    return set(MARKS.iterdir())


def wait_for_another_than(before):
    while marks() <= before:
        time.sleep(0.01)


def child():
    before = marks()
    multiprocessing.get_context("fork").Process(target=linger).start()
    wait_for_another_than(before)


def daemon():
    before = marks()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            linger()
        os._exit(0)
    wait_for_another_than(before)


def enters():
    roundoff.simulate("e5m2").__enter__()


def endless():
    while True:
        time.sleep(1)


MISDEEDS = {
    "chdir": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o777),
    "path": lambda: (sys.path.clear(), sys.modules.pop("json")),
    "streams": lambda: (setattr(sys, "stderr", None), setattr(sys, "stdout", None)),
    "environ": os.environ.clear,
    "denormal": lambda: torch.set_flush_denormal(True),
    "device": lambda: torch.set_default_device("meta"),
    "inference": lambda: torch.inference_mode().__enter__(),
    "hook": lambda: torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2),
    "simulation": enters,
    "descriptors": lambda: os.closerange(3, 4096),
    "all descriptors": lambda: os.closerange(0, 4096),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 600),
    "deaf": lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    "child": child,
    "command": lambda: subprocess.Popen(["sleep", "600"]),
    "daemon": daemon,
    "thread": lambda: threading.Thread(target=endless).start(),
    "returns twice": os.fork,
    "input": lambda: sys.stdin.read(1),
    "exit": lambda: atexit.register((MARKS / "exit").touch),
    "never exits": lambda: (atexit.register(endless), os.closerange(3, 4096)),
}


def train(how: str = "probe", x: int = 0):
    MARKS.mkdir(exist_ok=True)
    if how in MISDEEDS:
        MISDEEDS[how]()
        return 0.0
    torch.manual_seed(x)
    layer = torch.nn.Linear(3, 1)
    tiny = torch.tensor(1e-39) * 1
    return layer(torch.ones(3)).sum().item() + tiny.item() * 1e39


def dies(how: str = "kill", x: int = 0):
    MARKS.mkdir(exist_ok=True)
    tries = len(list(MARKS.glob("try*")))
    (MARKS / f"try{tries}").touch()
    if how == "once" and tries:
        return 1.0
    if how == "with a child":
        MISDEEDS["child"]()
    if how == "status":
        os._exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "base":
        raise type("Mine", (BaseException,), {})("mine")
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


def waits(deaf: bool = False, steps: int = 10**6):
    MARKS.mkdir(exist_ok=True)
    if deaf:
        MISDEEDS["deaf"]()
    MISDEEDS["child"]()
    (MARKS / f"{os.getpid()}").touch()
    (MARKS / "ready").touch()
    for step in range(steps):
        roundoff.checkpoint({"step": step}, every=1e9)
        time.sleep(0.01)


def prints(megabytes: int = 1, kills: bool = False):
    for i in range(megabytes):
        print("x" * 999_999 + "\\n" if i < megabytes - 1 else "last", flush=True)
        time.sleep(0.02)
    time.sleep(0.5)
    if kills:  # what it was forked from
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(100)
    return 1.0


def imported():
    return {"score": float(threading.active_count()), "elsewhere": IMPORTED != os.getpid()}


IMPORTED = os.getpid()
"""


class Watcher:
    def __init__(self):
        self.reasons = {}

    def begin(self, *_):
        pass

    notice = begin

    def event(self, event, state, score):
        if event.kind == "failed":
            self.reasons[event.run.config.arguments.get("how")] = event.reason


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "warm_up", lambda: None)  # forks of this process are warm enough
    monkeypatch.setattr(fork_server, "_GRACE", 1.0)
    (tmp_path / f"guest_{tmp_path.name}.py").write_text(PROGRAM)
    return tmp_path


def plan(folder, function, text):
    (folder / "s.yaml").write_text(f"program: guest_{folder.name}.py:{function}\n{text}")
    return plan_file(folder / "s.yaml")


def results(folder, made):
    paths = {run.config.arguments.get("how"): folder / "out" / "runs" / run.id for run in made.runs}
    return {how: json.loads((path / "result.json").read_text())["return"] for how, path in paths.items()}


def left(folder):
    """The processes that a program has started and that live."""
    return [int(mark.name) for mark in (folder / "marks").iterdir() if mark.name.isdecimal() and alive(int(mark.name))]


def test_no_misdeed_reaches_another_run_or_outlives_its_own(folder, monkeypatch):
    monkeypatch.chdir(folder)
    hows = re.findall(r'^    "([a-z ]+)": ', PROGRAM, re.MULTILINE)
    assert len(hows) == 22
    made = plan(folder, "train", "grid: {how: [" + ", ".join(f"'{how}'" for how in ("probe", *hows)) + ", 'after']}")
    summary = run_sweep(made, Path("out"), executor=ForkedWorkers(1), watcher=Watcher())
    assert (summary.done, summary.crashed, summary.failed) == (len(hows) + 2, 0, 0)
    found = results(folder, made)
    assert found["probe"] == found["after"] != 0
    assert set(found.values()) == {0.0, found["probe"]}
    assert (folder / "marks" / "exit").exists()
    assert len([mark for mark in (folder / "marks").iterdir() if mark.name.isdecimal()]) == 2
    assert left(folder) == []


def test_a_process_that_dies_is_tried_again_and_its_death_told(folder):
    hows = ["kill", "with a child", "status", "interrupt", "base", "segfault"]
    made = plan(folder, "dies", f"grid: {{how: [{', '.join(hows)}]}}")
    watcher = Watcher()
    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=watcher)
    assert summary.failed == len(hows)
    assert watcher.reasons["kill"] == "the process of the program was killed by SIGKILL"
    assert watcher.reasons["with a child"] == watcher.reasons["kill"]
    assert watcher.reasons["status"] == "the process of the program ended with status 3"
    assert watcher.reasons["segfault"].endswith("SIGSEGV")
    assert watcher.reasons["interrupt"].startswith("KeyboardInterrupt")
    assert watcher.reasons["base"].startswith("guest_") or "Mine: mine" in watcher.reasons["base"]
    assert len(list((folder / "marks").glob("try*"))) == 2 * 4 + 2  # what was raised is not tried again
    assert left(folder) == []


def test_a_run_that_dies_once_comes_to_its_end(folder):
    made = plan(folder, "dies", "grid: {how: [once]}")
    summary = run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=Watcher())
    assert (summary.done, summary.failed) == (1, 0)


@pytest.mark.parametrize(("deaf", "how"), [("false", signal.SIGINT), ("true", signal.SIGINT), ("true", signal.SIGKILL)])
def test_nothing_is_left_when_the_sweep_ends(folder, deaf, how):
    sweep = fork_sweep(plan(folder, "waits", f"base: {{deaf: {deaf}}}"), folder / "out")
    wait_until((folder / "marks" / "ready").exists)
    assert len(left(folder)) == 2
    os.kill(sweep, how)
    assert wait_for(sweep) == (130 if how == signal.SIGINT else -9)
    wait_until(lambda: not left(folder))
    saved = list((folder / "out").glob("runs/*/checkpoint.pt"))
    assert len(saved) == (how == signal.SIGINT)  # also where the program does not hear signals


def test_where_importing_a_program_starts_threads_each_run_imports_it(folder):
    (program,) = folder.glob("guest_*.py")
    program.write_text(PROGRAM + "\n\nthreading.Thread(target=endless, daemon=True).start()\n")
    made = plan(folder, "imported", "base: {seed: 0}")
    assert run_sweep(made, folder / "out", executor=LocalProcesses(1), watcher=Watcher()).done == 1
    for run in made.runs:
        values = json.loads((folder / "out" / "runs" / run.id / "result.json").read_text())["values"]
        assert values["elsewhere"] == 0.0
    assert "each run imports it again" in (folder / "out" / "logs" / "worker-1.log").read_text()


@pytest.mark.parametrize("kills", [False, True])
def test_what_a_program_prints_does_not_fill_the_disk(kills, folder, monkeypatch):
    monkeypatch.setattr(fork_server, "_LARGEST_LOG", 2 << 20)
    made = plan(folder, "prints", f"base: {{megabytes: 12, kills: {kills}}}")
    assert run_sweep(made, folder / "out", executor=ForkedWorkers(1), watcher=Watcher()).done == (not kills)
    log = (folder / "out" / "logs" / "worker-1.log").read_bytes()
    assert len(log) < 12_000_000
    assert b"\0" not in log
    assert b"bytes that were printed before are cut]" in log
    assert b"\nlast\n" in log[-1000:]


def test_a_log_that_is_printed_to_loses_no_line_of_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "_LARGEST_LOG", 1 << 20)
    monkeypatch.setattr(fork_server, "_KEPT_OF_LOG", 1 << 19)
    lines = 1_000_000
    with (tmp_path / "log").open("ab+") as log:
        program = subprocess.Popen(["seq", str(lines)], stdout=log)
        monkeypatch.setattr(fork_server, "_STDERR", log.fileno())
        while program.poll() is None:
            fork_server._cut_log(while_printed_to=True)
        fork_server._cut_log(while_printed_to=True)
        assert os.fstat(log.fileno()).st_blocks * 512 < 2 << 20
        fork_server._cut_log(while_printed_to=False)
    said, *last = (tmp_path / "log").read_text().splitlines()
    assert said == f"[roundoff: {6_888_896 - (1 << 19)} bytes that were printed before are cut]"
    assert [int(line) for line in last[1:]] == list(range(lines - len(last) + 2, lines + 1))
