"""Sweeps: planning 10 000 runs, and how long the command takes to say anything."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.timing import interleaved, record
from roundoff.sweeps import plan_text

# 10 000 runs each: a grid, and all else the language has on top of half as many draws.
GRID = f"grid: {{format: [fp32, e5m10, e5m8, e5m6, e5m4], lr: [1e-4, 1e-3], seed: {list(range(1000))}}}"
EVERYTHING = f"""
random: {{draws: 50, seed: 0, values: {{lr: {{log_uniform: [1e-5, 1e-3]}}, batch_size: {{choice: [512, 1024]}}}}}}
cases: [{{name: a}}, {{name: b, format: e5m10}}, {{name: c, format: e5m10, fixes: none}}]
zip: {{task: [cartpole_swingup, walker_walk], action_repeat: [8, 2]}}
grid: {{seed: {list(range(50))}}}
exclude: [{{case: c, task: walker_walk, seed: {list(range(50))}}}, {{case: b, task: walker_walk}}]
"""
COMMANDS = ("--version", "--help", "sweep --help")


def main() -> None:
    """Prints and records the seconds."""
    plans = {"grid": lambda: plan_text(GRID, "grid"), "all sections": lambda: plan_text(EVERYTHING, "everything")}
    rows: list[dict[str, object]] = []
    for name, taken in interleaved(plans, rounds=5).items():
        runs = len(plans[name]().runs)
        print(f"planning {runs} runs, {name:24} {taken:8.2f} s")
        rows.append({"what": f"plan, {name}", "runs": runs, "seconds": taken})
    for arguments in COMMANDS:
        taken = min(_seconds(arguments.split()) for _ in range(5))
        print(f"roundoff {arguments:36} {taken:8.2f} s")
        rows.append({"what": f"roundoff {arguments}", "seconds": taken})
    print("written to", record("sweeps", rows))


def _seconds(arguments: list[str]) -> float:
    program = [sys.executable, "-c", "from roundoff.cli import main; main()"]
    start = time.perf_counter()
    subprocess.run([*program, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
