"""Sweeps that name formats of a user's own: the module that registers them is imported where the user says so."""

import json
import os
import queue
import sys

import pytest
from forked import ForkedWorkers, fork_command
from processes import PATIENCE

from roundoff.sweeps.workers.local import LocalProcesses

MODULE = """
from dataclasses import dataclass
from pathlib import Path

import torch

import roundoff

with Path(__file__).with_name("imported").open("a") as log:
    log.write("imported\\n")


@dataclass(frozen=True)
class Whole(roundoff.Format):
    limit: int

    carrier = torch.float32
    bits = 8

    def __str__(self):
        return f"whole_to_{self.limit}"

    def fits_in(self, dtype):
        return True

    def round_into(self, source, target, rounding=None, overflow=None, random=None):
        target.copy_(source.round().clamp(-self.limit, self.limit))


roundoff.register(Whole, aliases={"whole_to_3": Whole(3)})
"""
SWEEP = """
name: own
base: {task: cartpole_swingup, action_repeat: 8, steps: 800, seed_steps: 40, hidden_units: 8, batch_size: 8,
       eval_episodes: 1}
grid:
  policy: [every-op, {rules: [{role: parameters, format: WHOLE_to_3}]}]
"""
TINY = ["sweep", "own.yaml", "--out", "out", "--workers", "1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a module in reach of the commands, which are forks, and of their workers."""
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "my_formats", raising=False)  # of the tutorial, if that has run in this process
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "modules" / "my_formats.py").write_text(MODULE)
    (tmp_path / "own.yaml").write_text(SWEEP)
    return tmp_path


def roundoff(folder, *arguments):
    """The command; its worker is forked before it has imported anything, as a process of its own would begin."""
    return fork_command(*arguments, cwd=folder, workers=ForkedWorkers, ready=1)


def test_a_sweep_in_a_format_of_ones_own(folder):
    done = roundoff(folder, *TINY, "--allow-import", "my_formats")
    assert done.returncode == 0, done.stderr
    assert "out: 2 done, 0 crashed, 0 failed of 2 runs" in done.stdout
    assert len((folder / "modules" / "imported").read_text().split()) == 2  # in the planner, and in the worker
    runs = list((folder / "out" / "runs").iterdir())
    configs = [json.loads((run / "config.json").read_text())["config"]["policy"] for run in runs]
    assert {"rules": [{"format": "WHOLE_to_3", "role": "parameters"}]} in configs
    assert len({(run / "metrics.jsonl").read_text() for run in runs}) == 2  # it does something


def test_a_file_alone_imports_nothing(folder):
    for more in ((), ("--dry-run", "--no-estimate")):
        refused = roundoff(folder, *TINY, *more)
        assert refused.returncode == 2
        assert "own.yaml:6:22: policy" in refused.stderr
        assert "unknown format 'WHOLE_to_3'" in refused.stderr
        assert "the module that registers it is imported (--allow-import MODULE)" in refused.stderr
    assert not (folder / "modules" / "imported").exists()
    assert not (folder / "out").exists()


@pytest.mark.parametrize("module", ["no_such_module", "./own.yaml", ".my_formats", ""])
def test_a_module_that_is_none_is_named(folder, module):
    refused = roundoff(folder, *TINY, "--allow-import", module)
    assert refused.returncode == 2
    assert "Invalid value for '--allow-import'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.usefixtures("forked_interpreters")
@pytest.mark.parametrize(
    ("modules", "message"), [(["gone_since"], "No module named 'gone_since'"), ([], "unknown format 'whole_to_3'")]
)
def test_a_worker_without_the_module_says_so(tmp_path, modules, message):
    said = queue.SimpleQueue()
    worker = LocalProcesses(1).start(tmp_path / "log", said.put)
    run = {
        "config": {"policy": {"rules": [{"role": "parameters", "format": "whole_to_3"}]}},
        "directory": str(tmp_path / "run"),
        "imports": [],
        "lease": {"folder": str(tmp_path / "leases"), "run": "own", "number": 1},
    }
    worker.send({"runs": [run], "modules": modules})
    assert said.get() == {"event": "ready"}
    event = said.get()
    worker.stop()
    worker.wait(PATIENCE)
    assert (event["run"], event["event"]) == ("own", "failed")
    assert message in event["reason"]
    assert not (tmp_path / "run").exists()
