"""Leases: one holder at a time, whatever dies, and whatever the clocks say."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from forked import fork, wait_for
from processes import PATIENCE

from roundoff.agents.errors import FileError
from roundoff.sweeps.folder import leases as module
from roundoff.sweeps.folder.leases import STALE, Lease, Leases, this_process

RUN = "walker_walk-e5m10-s0-0123456789"


def lost():
    raise AssertionError("the lease was taken away")


def number(leases):
    return leases.next_number(RUN, leases.numbers())


def write(folder, holder, number=1, room=b""):
    folder.mkdir(exist_ok=True)
    (folder / f"{RUN}.{number}").write_bytes(json.dumps(holder).encode() + b"\n" + room)


def test_of_many_takers_one_succeeds(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: Lease.take(tmp_path, RUN, 1, lost), range(8)))
    (lease,) = (each for each in taken if each)
    leases = Leases(tmp_path)
    assert number(leases) is None
    assert [run for run, held in leases.all() if held.holder == this_process()] == [RUN]
    lease.release(ended=False)
    assert number(leases) == 2
    assert list(leases.all()) == []
    Lease.take(tmp_path, RUN, 2, lost).release(ended=True)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_process_of_this_machine_is_recognised_at_once(tmp_path):
    pid = fork(lambda: Lease.take(tmp_path, RUN, 1, lost))
    assert wait_for(pid) == 0
    assert number(Leases(tmp_path)) == 2
    here = this_process()
    write(tmp_path, here._replace(started=here.started + 1))  # our process id was its before
    assert number(Leases(tmp_path)) == 2
    write(tmp_path, here)
    assert number(Leases(tmp_path)) is None


def test_a_dead_process_whose_status_nobody_has_asked_for_holds_nothing(tmp_path):
    pid = fork(lambda: Lease.take(tmp_path, RUN, 1, lost))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie still
    assert number(Leases(tmp_path)) == 2
    assert wait_for(pid) == 0


@pytest.mark.parametrize("jump", [0, -86_400, 86_400], ids=["right", "behind", "ahead"])
def test_another_machine_is_dead_after_a_silence_that_no_clock_measures(tmp_path, jump):
    seconds = 0.0
    leases = Leases(tmp_path, lambda: seconds)
    write(tmp_path, this_process()._replace(machine="another"))
    path = tmp_path / f"{RUN}.1"
    for _ in range(3):
        assert number(leases) is None
        seconds += STALE - 1
        assert number(leases) is None
        stamp = path.stat().st_mtime + jump + 5
        os.utime(path, (stamp, stamp))  # a sign of life, by whatever clock
    assert number(leases) is None
    seconds += STALE
    assert number(leases) == 2
    assert number(Leases(tmp_path, lambda: seconds)) is None  # who has just come has to watch first


@pytest.mark.parametrize("content", [b"{", b"[1, 2]\n", b"\0" * 300])
def test_a_torn_lease_is_held_until_it_has_been_silent(tmp_path, content):
    seconds = 0.0
    leases = Leases(tmp_path, lambda: seconds)
    (tmp_path / f"{RUN}.1").write_bytes(content)
    assert number(leases) is None
    seconds += STALE
    assert number(leases) == 2


def test_a_slow_taker_pushes_nobody_away(tmp_path):
    """A taker decided on number 2 when 1 was dead, and acts when 2 has come and gone, and 3 is held."""
    write(tmp_path, this_process(), 3)
    assert Lease.take(tmp_path, RUN, 2, lost) is None
    assert [path.name for path in tmp_path.iterdir()] == [f"{RUN}.3"]


def test_signs_of_life_and_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    gone = threading.Event()
    lease = Lease.take(tmp_path, RUN, 1, gone.set)
    lease.note({"step": 7})
    leases, signs = Leases(tmp_path), set()
    while len(signs) < 4:
        ((_, held),) = leases.all()
        signs.add(held.sign)
    assert held.progress["step"] == 7
    # a process that was suspended for very long finds another holder, and must not go on
    write(tmp_path, this_process(), 2)
    assert gone.wait(PATIENCE)


def test_the_loser_does_not_bring_its_lease_back(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    gone = threading.Event()
    Lease.take(tmp_path, RUN, 1, gone.set)
    (tmp_path / f"{RUN}.1").unlink()  # the other one has already finished
    assert gone.wait(PATIENCE)
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_cannot_be_written_is_one_message(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FileError, match=rf"{RUN}\.1: cannot be written \(Operation not permitted\)"):
        Lease.take(tmp_path, RUN, 1, lost)
    assert list(tmp_path.iterdir()) == []
