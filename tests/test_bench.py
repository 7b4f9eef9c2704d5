"""The bench: that what is for a GPU, which no machine here has, runs in the CPU's memory; tables of peers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import kept_runs, peers


@pytest.mark.slow
def test_the_bench_for_a_gpu_runs():
    command = [sys.executable, "-m", "bench.gpu", "--try"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert "left out" not in ended.stdout


def test_peers_are_told_apart_by_algorithm_or_case_and_compared(tmp_path, capsys):
    sweep = []
    for algorithm, case, level in (("td3", "uniform", 90), ("td3", "orthogonal", 50), ("sb3:TD3", "theirs", 80)):
        for seed in range(4):
            config = {"task": "gym:Pendulum-v1", "algorithm": algorithm, "format": "fp32", "seed": seed}
            config |= {"steps": 2000, "eval_every": 1000}
            run = tmp_path / "runs" / f"{case}-{seed}"
            run.mkdir(parents=True)
            (run / "config.json").write_text(json.dumps({"config": config}))
            returns = [-500.0, -float(level + seed)]
            points = [{"kind": "eval", "step": 1000 * i, "return_mean": one} for i, one in enumerate(returns, 1)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
            result = {"status": "done", "return": returns[-1], "return_std": 0.0, "step": 2000, "crash": None}
            (run / "result.json").write_text(json.dumps(result))
            sweep.append({"id": run.name, "config": config, "case": case})
    marker = {"layout": 1, "name": "peers", "description": "", "varying": ["seed"], "runs": sweep}
    (tmp_path / "sweep.json").write_text(json.dumps(marker))
    peers.main([str(tmp_path), "--figure", str(tmp_path / "peers.png")])
    told = capsys.readouterr().out
    assert "| uniform | 4 | -91.5 (" in told
    assert "| sb3:TD3 | 4 | -81.5 (" in told
    assert "uniform less orthogonal | | -40 (" in told
    assert "uniform less sb3:TD3 | | -10 (" in told
    assert kept_runs.scores(tmp_path, tmp_path / "scores.csv") == 12
    peers.main([str(tmp_path / "scores.csv")])
    assert next(one for one in told.splitlines() if "orthogonal | 4" in one) in capsys.readouterr().out
    assert (tmp_path / "peers.png").stat().st_size > 3000
