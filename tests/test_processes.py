"""A child process: started, asked, waited for, ended, and how it died in words."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff import processes
from roundoff.processes import ChildProcess, command_of, in_words

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
FAMILY = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


def test_a_child_is_in_a_session_of_its_own_and_is_ended():
    child = ChildProcess(SLEEP, stdout=subprocess.PIPE)
    with child.stdout:
        child.stdout.readline()
    assert child.status() is child.status(0.01) is None
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    assert child.end(0.0) == -9
    assert child.status() == -9
    assert child.death() == "was killed by SIGKILL"


def shared_among_sessions():
    place = Path("/proc/self/autogroup")
    try:
        place.write_text(place.read_text().split()[-1])
    except (OSError, IndexError):
        return False
    return True


NICE = """
import os
from pathlib import Path
from roundoff.processes import ChildProcess, begin_session
os.nice(7)
child = ChildProcess(["sleep", "600"])
forked = os.fork()
if not forked:
    begin_session()
    print(Path("/proc/self/autogroup").read_text(), end="", flush=True)
    os._exit(0)
os.waitpid(forked, 0)
print(Path(f"/proc/{child.pid}/autogroup").read_text(), end="")
child.end(0.0)
"""


@pytest.mark.skipif(not shared_among_sessions(), reason="processors are shared among processes alone")
def test_sessions_of_nice_processes_are_nice():
    """Otherwise each has as much of the processors as what the user works with."""
    done = subprocess.run([sys.executable, "-c", NICE], capture_output=True, text=True, check=True)
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [["nice", str(min(19, os.nice(0) + 7))]] * 2


def test_a_child_that_is_gone_at_once_is_no_error():
    """Whoever ignores SIGCHLD has no child left to ask for its niceness."""
    child = subprocess.Popen(["true"])
    child.wait()
    processes._adjust_session_niceness(child.pid)


def test_a_child_that_ends_by_itself_is_not_killed():
    child = ChildProcess([sys.executable, "-c", "raise SystemExit(3)"], environment={"A": "b"})
    assert child.end(60.0) == child.status(None) == 3
    assert child.death() == "ended with status 3"
    asked = ChildProcess(SLEEP, stdout=subprocess.PIPE)
    with asked.stdout:
        asked.stdout.readline()
    asked.ask_to_end()
    assert asked.end(60.0) == -15


def test_what_a_child_has_started_is_killed_with_its_session():
    child = ChildProcess([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child.stdin, child.stdout:
        child.stdout.readline()
        child.end(0.0, session=True)
        assert select.select([child.stdout], [], [], 60)[0]
        assert child.stdout.read() == b""  # its end: the grandchild had it, too


def test_a_child_imports_nothing_from_the_folder_it_is_started_in(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit(7)")
    (tmp_path / "asked.py").write_text(
        "import random, sys; from multiprocessing.connection import Connection\n"
        "Connection(int(sys.argv[1])).send_bytes(sys.argv[2].encode()); raise SystemExit('random' in sys.path)"
    )
    monkeypatch.chdir(tmp_path)
    assert ChildProcess(command_of("asked"), stderr=subprocess.DEVNULL).end(60.0) == 1  # there is no such module
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    child, connection = ChildProcess.asked_through_socket("asked", "hello")
    with connection:
        assert connection.recv_bytes() == b"hello"
    assert child.end(60.0) == 0


def test_how_a_process_has_ended_is_said_of_every_signal():
    assert in_words(3) == "ended with status 3"
    assert in_words(-9) == "was killed by SIGKILL"
    assert in_words(-40) == "was killed by signal 40"  # one that has no name
