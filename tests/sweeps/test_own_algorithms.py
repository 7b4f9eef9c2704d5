"""Algorithms of a user's own, as MODULE:CLASS: on the command line, in sweep files, in workers; and what is refused."""

import os
import sys

import pytest
from forked import ForkedWorkers, fork_command

MODULE = """
from roundoff.agents.algorithms.td3.settings import CONFIG
from roundoff.agents.config.fields import NonNegativeFloat, KeyRole, key


class Slow(CONFIG):
    algorithm: str = key("my_algorithm:Slow", "What learns; each has keys of its own.")
    patience: NonNegativeFloat = key(0.5, "A key of its own.", KeyRole.TIMELESS)


class Unnamed(CONFIG):
    pass


NUMBER = 3


def make(config, sizes, device):
    from roundoff.agents.algorithms.td3.agent import make

    assert config.patience in (0.25, 0.5)
    return make(config, sizes, device)
"""
KEYS = {"task": "pendulum_swingup", "steps": 60, "seed_steps": 10, "hidden_units": 8, "batch_size": 8,
        "eval_every": 60, "eval_episodes": 1, "action_repeat": 2}  # fmt: skip
SWEEP = f"""
name: own
base: {{algorithm: "my_algorithm:Slow", {", ".join(f"{key}: {value}" for key, value in KEYS.items())}}}
grid: {{patience: [0.25, 0.5]}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A sweep file with a module beside it, which is in reach of nothing else."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "my_algorithm.py").write_text(MODULE)
    (tmp_path / "here" / "own.yaml").write_text(SWEEP)
    return tmp_path


def test_a_sweep_finds_it_beside_its_file_and_its_workers_do(folder):
    """The algorithm has keys of its own, which may be swept; status and plots need not import it."""
    options = ["--out", "out", "--workers", "1"]
    words = ["sweep", "here/own.yaml", "--allow-import", "my_algorithm", *options]
    done = fork_command(*words, cwd=folder, workers=ForkedWorkers, ready=1)  # forked before that is imported
    assert "out: 2 done, 0 crashed, 0 failed of 2 runs" in done.stdout, done.stderr
    status = fork_command("status", "out", cwd=folder)
    assert (status.returncode, status.stdout.count("done  ")) == (0, 2), status.stderr
    drawn = fork_command("plot", "out", "--figures", "degradation", cwd=folder)
    assert drawn.returncode == 0, drawn.stderr


def test_the_command_line_names_it_and_export_asks(folder):
    keys = [f"{key}={value}" for key, value in KEYS.items()]
    done = fork_command("train", "algorithm=my_algorithm:Slow", *keys, "--out", "run", cwd=folder / "here")
    assert "run: done" in done.stdout, done.stderr
    refused = fork_command("export", "run", "--out", "policy.h", cwd=folder / "here")
    assert refused.returncode == 2
    assert "add --allow-import my_algorithm" in refused.stderr
    done = fork_command("export", "run", "--out", "policy.h", "--allow-import", "my_algorithm", cwd=folder / "here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_algorithm:Fast", "my_algorithm was imported, but there is no Fast in it"),
        ("my_algorithm:NUMBER", "NUMBER must be a class of configs, such as a subclass of OffPolicyKeys, is 3"),
        ("my_algorithm:Unnamed", "the key algorithm of Unnamed must be 'my_algorithm:Unnamed' by default, is 'td3'"),
        ("json:JSONDecoder", "JSONDecoder must be a class of configs"),
        ("no_such_module:Fast", "No module named 'no_such_module'; a module is named as in an import statement"),
        ("'my_algorithm:'", 'unknown algorithm "my_algorithm:"; allowed are a2c'),
    ],
)  # fmt: skip
def test_what_is_none_is_said(folder, name, message):
    refused = fork_command("train", f"algorithm={name}", "--out", "run", cwd=folder / "here")
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    assert not (folder / "here" / "run").exists()


def test_a_file_alone_imports_nothing(folder):
    refused = fork_command("sweep", "here/own.yaml", "--dry-run", "--no-estimate", cwd=folder)
    assert refused.returncode == 2
    assert 'own.yaml:3:19: unknown algorithm "my_algorithm:Slow"; allowed are a2c' in refused.stderr
    assert "add --allow-import my_algorithm" in refused.stderr


def test_a_task_finds_its_module_beside_the_command_too(folder):
    """The module is imported though it registers nothing; of a missing one it is said where it was looked for."""
    (folder / "here" / "my_walks.py").write_text("")
    refused = fork_command("train", "task=gym:my_walks:Stroll-v0", "--out", "run", cwd=folder / "here")
    assert "No module" not in refused.stderr
    assert 'unknown task "gym:my_walks:Stroll-v0"' in refused.stderr
    refused = fork_command("train", "task=gym:my_runs:Stroll-v0", "--out", "run", cwd=folder / "here")
    assert "gym:my_runs:Stroll-v0: No module named 'my_runs'; a module is named as in an import" in refused.stderr
    assert "in the current folder" in refused.stderr
