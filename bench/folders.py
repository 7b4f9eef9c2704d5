"""Folders of 10 000 runs: how long each command that reads one takes, and how much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.timing import record
from roundoff.agents import TrainConfig

RUNS = 10_000
FORMATS = ["fp32", *(f"e5m{m}" for m in range(10, 1, -1))]
RATES = [1e-4, 1e-3]
RECORDS = 40  # episodes of a run; every tenth is followed by an evaluation
COMMANDS = ["status", "collect", "against", "plot --figures degradation", "plot", "report"]


def main(runs: int = RUNS) -> None:
    """Prints and records the seconds and megabytes."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder) / "many", runs)
        for command in COMMANDS:
            name, *options = command.split()
            options += ["--out", f"{folder}/many.parquet"] if name == "collect" else []
            options += ["--type", "svg"] if name == "plot" else []
            seconds, megabytes = measured([name, str(made), *options])
            print(f"{command:24} {runs} runs {seconds:8.1f} s {megabytes:8.0f} MB")
            rows.append({"what": command, "runs": runs, "seconds": seconds, "megabytes": megabytes})
    print("written to", record("folders", rows))


def make(folder: Path, count: int) -> Path:
    """A folder of runs that have ended, a tenth of the narrowest format's by a crash."""
    random = np.random.default_rng(0)
    cases = [(name, rate) for name in FORMATS for rate in RATES]
    plan = []
    for number in range(count):
        name, rate = cases[number % len(cases)]
        config = TrainConfig(task="cartpole_swingup", format=name, lr=rate, seed=number // len(cases)).as_json()
        identity = f"cartpole_swingup-{name}-s{config['seed']}-{number:010x}"
        run = folder / "runs" / identity
        run.mkdir(parents=True)
        write(run / "config.json", {"config": config, "version": "0.2.0"})
        score = 500 + 20 * FORMATS.index(name) * float(random.standard_normal())
        lines = []
        for step, noise in enumerate(random.standard_normal(RECORDS), 1):
            about = {"critic_loss": abs(noise), "actor_loss": noise, "alpha": 0.1, "loss_scale": 2.0**step}
            lines.append({"kind": "train", "step": step * 1000, "episode_return": score + noise, **about})
            if not step % 10:
                lines.append(
                    {
                        "kind": "eval",
                        "step": step * 1000,
                        "return_mean": score + noise,
                        "return_std": 1.0,
                        "returns": [score, score + 2 * noise],
                    }
                )
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        crash = (
            {"step": 40_000, "reason": "the actor's loss is not finite"}
            if random.random() < 0.1 and name == FORMATS[-1]
            else None
        )
        result = {"status": "crashed" if crash else "done", "return": 0.0 if crash else score, "return_std": 1.0}
        write(
            run / "result.json", result | {"step": RECORDS * 1000, "crash": crash, "updates": 9000, "untrained": 10.0}
        )
        write(run / "timing.json", {"seconds": 60.0, "steps_per_second": 700.0, "torch": "2.13.0", "processor": "?"})
        plan.append({"id": identity, "config": config})
    about = {"layout": 1, "name": "many", "description": "", "varying": ["format", "lr", "seed"]}
    write(folder / "sweep.json", about | {"runs": plan})
    return folder


def write(path: Path, content: object) -> None:
    """Writes JSON."""
    path.write_text(json.dumps(content))


def measured(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak megabytes of a command."""
    start = time.perf_counter()
    command = [sys.executable, "-c", "from roundoff.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"roundoff {' '.join(arguments)} ended with status {process.returncode}")
    return time.perf_counter() - start, used.ru_maxrss / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
