"""The measurements for a GPU, which no machine here has: that they run, once and in small, in the CPU's memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_bench_for_a_gpu_runs():
    command = [sys.executable, "-m", "bench.gpu", "--try"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert "left out" not in ended.stdout
