"""A forked child never waits for a lock of a thread that it does not have, and finds complete what locks guard."""

import json
import os
import re
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from forked import fork, wait_for
from processes import PATIENCE

import roundoff
from roundoff import locks
from roundoff.formats.cpu.threads import in_pieces
from roundoff.simulate.presence import torch_compile

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("formats", "simulate", "agents", "analysis", "sweeps", "src/roundoff")


def _run_beside(work):
    """Starts a thread, and returns once it has called the function that ``work`` is given; and the thread."""
    begun = threading.Event()
    thread = threading.Thread(target=work, args=(begun.set,), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    return thread


def test_all_locks_are_made_in_one_place():
    pattern = re.compile(
        r"\b(R?Lock|Condition|(Bounded)?Semaphore|Barrier)\(|allocate_lock|functools import.*\bcached_property"
    )
    found = {
        f"{path}:{number}"
        for folder in _FOLDERS
        for path in (_ROOT / folder).rglob("*.py")
        if path.name != "locks.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    }
    assert not found


def test_a_child_waits_for_no_lock_of_another_thread():
    policy = roundoff.Policy("e5m10", exact_in=["json:dumps"], finfo="format")
    simulation = roundoff.simulate(policy, observe=True, cost=True, shadow="fp64")
    with simulation:
        json.dumps(1)
        torch.randn(8, 8) * 1.5
    released = threading.Event()

    def hold(begin):
        held = [lock for lock in locks._all() if lock.acquire(timeout=PATIENCE)]
        begin()
        released.wait(PATIENCE)
        for lock in held:
            lock.release()

    def compute():
        for _ in range(2):
            with (
                simulation,
                warnings.catch_warnings(action="ignore"),
                roundoff.simulate("e4m3", rounding="stochastic"),
            ):  # whose loops have to be found
                torch.optim.SGD([torch.randn(8, 8, requires_grad=True)], 0.1).zero_grad()
                torch.randn(8, 8) @ torch.randn(8, 8) * 1.5

    thread = _run_beside(hold)
    try:
        assert wait_for(fork(compute), 60) == 0
    finally:
        released.set()
        thread.join()


def test_a_child_finds_complete_what_a_lock_guards():
    lock, state = locks.new_lock(), []

    def change(begin):
        with lock:
            state.append("half")
            begin()
            time.sleep(0.1)
            state.append("whole")

    def look():
        with lock:
            assert state == ["half", "whole"]

    thread = _run_beside(change)
    with locks.new_lock():  # the thread that forks may hold some itself
        assert wait_for(fork(look), 60) == 0
    thread.join()


def test_a_child_imports_what_another_thread_was_importing(tmp_path, monkeypatch):
    package = tmp_path / "imported_slowly"
    package.mkdir()
    (package / "__init__.py").write_text("import sys, time\nsys.begin()\ntime.sleep(0.2)\n")
    (package / "inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_compile, "_DYNAMO", "imported_slowly.inner")

    def import_it(begin):
        monkeypatch.setattr(sys, "begin", begin, raising=False)
        import imported_slowly  # noqa: F401

    def import_again():
        import imported_slowly.inner  # noqa: F401

    thread = _run_beside(import_it)
    assert wait_for(fork(import_again), 20) == 0
    thread.join()


def test_a_child_rounds_large_tensors_with_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x = torch.randn(1 << 19)
    expected = roundoff.round(x, "e5m3")
    both = threading.Barrier(2)
    in_pieces(lambda *_: both.wait(PATIENCE), 2, len(x))
    time.sleep(0.05)  # now both threads are idle

    def compute():
        assert torch.equal(roundoff.round(x, "e5m3"), expected)

    assert wait_for(fork(compute), 20) == 0
