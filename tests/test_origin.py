"""What results are said to be made with."""

import json
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from roundoff.agents import TrainConfig, train
from roundoff.origin import commit_of, origin


def test_versions_processor_and_time():
    told = origin()
    assert told["python"] == platform.python_version()
    builds = [version.split("+")[0] for version in (told["torch"], torch.__version__)]  # metadata may name none
    assert builds[0] == builds[1]
    assert told["numpy"] == np.__version__
    assert told["processor"]
    age = datetime.now(UTC) - datetime.fromisoformat(told["ended"])
    assert timedelta(0) <= age < timedelta(minutes=1)


def test_a_run_records_it(tmp_path):
    config = TrainConfig(
        action_repeat=50, steps=500, eval_every=500, eval_episodes=1, hidden_units=8, batch_size=8, seed_steps=5
    )
    train(config, tmp_path)
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert timing.items() >= {key: value for key, value in origin().items() if key != "ended"}.items()
    assert timing["ended"]
    assert timing["seconds"] > 0


def test_telling_loads_no_torch():
    program = "import sys; from roundoff.origin import origin; origin(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_commit_is_of_the_checkout_that_tracks_the_file(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    ours, installed = tmp_path / "ours.py", tmp_path / "installed.py"
    ours.write_text("1\n")
    assert commit_of(ours) is None  # no checkout
    git("init", "--quiet")
    git("add", "ours.py")
    git("commit", "--quiet", "-m", "one")
    git("tag", "v1")
    installed.write_text("1\n")  # into a checkout of something else, as an environment inside a project
    assert commit_of(installed) is None
    assert commit_of(ours) == git("rev-parse", "HEAD")
    ours.write_text("2\n")
    assert commit_of(ours) == git("rev-parse", "HEAD") + "-dirty"
