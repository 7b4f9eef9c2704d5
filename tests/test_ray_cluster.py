"""A Ray of roundoff's own is reached from this machine alone, with its token, and leaves nothing for others to read."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from roundoff import ray_cluster

NAMES = ["RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", ray_cluster._CLUSTERS]
LISTENING = "0A"
OWN = """
import os, subprocess, sys
{first}
sys.path[:0] = [{tests!r}]
import test_ray_cluster
from roundoff.sweeps.workers.on_ray import RayExecutor

before = test_ray_cluster.listening()
executor = RayExecutor(limit=1)
assert executor._ray.get(executor._ray.remote(lambda: 1).remote()) == 1
hosts = test_ray_cluster.listening() - before
folders = [os.stat(path).st_mode & 0o777 for path in test_ray_cluster.folders()]
stranger = test_ray_cluster.STRANGER.format(address=executor._ray.get_runtime_context().gcs_address)
environment = {{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}}
found = subprocess.run([sys.executable, "-c", stranger], capture_output=True, text=True, check=True, env=environment)
executor.close()
print(sorted(hosts), folders, test_ray_cluster.folders(), [found.stdout.strip()])
"""
STRANGER = """
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address={address!r}).internal_kv_keys(b"", namespace=None, timeout=60)
    print("answered")
except AuthenticationError:
    print("refused")
"""


def listening():
    """The addresses, in hexadecimal digits, and ports at which processes of this machine listen."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, where, _, state = line.split()[:4]
            if state == LISTENING:
                found.add(tuple(where.split(":")))
    return found


def folders():
    return list(Path(os.environ["TMPDIR"]).glob("roundoff-ray-*"))


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    ray_cluster._SET_HERE.clear()
    yield monkeypatch
    ray_cluster._configure(alone=False)


def test_a_ray_of_its_own_asks_for_a_token_and_keeps_to_this_machine(environment):
    ray_cluster._configure(alone=True)
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert (os.environ["RAY_AUTH_MODE"], os.environ[ray_cluster._CLUSTERS]) == ("token", "0")
    ray_cluster._configure(alone=True)
    assert os.environ["RAY_AUTH_TOKEN"] != token  # of each its own
    ray_cluster._configure(alone=False)  # a cluster of somebody's has the settings of theirs
    assert not set(NAMES) & os.environ.keys()


def test_what_the_user_has_set_stays(environment):
    environment.setenv("RAY_AUTH_MODE", "disabled")
    environment.setenv("RAY_AUTH_TOKEN_PATH", "/theirs")
    for alone in (True, False):
        ray_cluster._configure(alone=alone)
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == "/theirs"
        assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize("first", ["", pytest.param("import ray", marks=pytest.mark.slow)], ids=["new", "imported"])
def test_nothing_of_it_can_be_reached_from_elsewhere(first):
    """A stranger without the token is refused, also where Ray was imported before and has read the variables."""
    pytest.importorskip("ray")
    own = OWN.format(tests=str(Path(__file__).parent), first=first)
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory() as short:  # as names of sockets have to be
        environment = surroundings | {"TMPDIR": short}
        done = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    hosts, folders_, left, stranger = eval(done.stdout.splitlines()[-1].replace("] [", "], ["))
    assert hosts
    assert {host for host, _ in hosts} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert folders_ == [stat.S_IRWXU]
    assert left == []
    assert stranger == ["refused"]
