"""Formats and simulations import nothing that only Linux has, and work where it is missing."""

import os
import subprocess
import sys

PROGRAM = """
import importlib, os, pkgutil, sys

import torch, numba, pandas  # they know their system themselves

MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog")  # on Windows
OF_OS = ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "geteuid", "getuid", "fork", "register_at_fork",
         "sched_getaffinity", "killpg", "setsid", "waitid", "memfd_create", "prlimit", "pidfd_open")
asked = []

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame.f_globals.get("__name__", "").startswith("roundoff"):
                asked.append((name, frame.f_globals["__name__"]))
                raise ModuleNotFoundError(name, name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Nothing())

import roundoff
for part in ("formats", "simulate"):
    package = importlib.import_module(f"roundoff.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith(("roundoff.formats.", "roundoff.simulate."))]))
assert not asked, asked

for name in OF_OS:
    if hasattr(os, name):
        delattr(os, name)
print(roundoff.round(torch.tensor([0.1, 3.3]), "e5m2").tolist())
with roundoff.simulate("e5m2", observe=True) as simulation:
    print((torch.tensor([0.1, 3.3]) * 2).tolist())
assert len(simulation.report().table)
"""


def test_nothing_is_imported_that_only_linux_has():
    environment = os.environ | {"ROUNDOFF_NATIVE": "0", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    count, rounded, doubled = run.stdout.splitlines()
    assert int(count) > 200
    assert (rounded, doubled) == ("[0.09375, 3.5]", "[0.1875, 7.0]")
