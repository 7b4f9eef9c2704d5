"""One sample of ``roundoff.digits``: a training step of two layers, compared with the plain and a simulated step.

Also the command with eight samples of a short script, compared with the script. ``python -m bench.digits`` writes
``bench/results/digits.json``.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import roundoff
from bench.timing import interleaved, record
from roundoff.simulate.significance.rounding import Randomness, RandomRounding

SIZES = ((64, 50), (2048, 1024))  # units, rows
SAMPLES = 8
SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(torch.randn(50, 64)) ** 2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def main() -> None:
    """Prints and records the times."""
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for units, batch in SIZES:
        times = interleaved(
            {
                "plain": within(None, units, batch),
                "e5m10, stochastic": within(roundoff.simulate("e5m10", rounding="stochastic"), units, batch),
                **{
                    f"digits, {kind}": within(
                        roundoff.simulate("fp32", watchers=[RandomRounding(kind, 0)]), units, batch
                    )
                    for kind in Randomness
                },
            },
            rounds=5,
        )
        for name, seconds in times.items():
            rows.append({"step": name, "units": units, "rows": batch, "slowdown": seconds / times["plain"]})
            print(f"{name:24} {units:5} {seconds / times['plain']:6.1f} x plain")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        plain = seconds_of("-P", str(script))
        for samples in (2, SAMPLES):
            times_plain = seconds_of("-m", "roundoff", "digits", "-n", str(samples), str(script)) / plain
            name = f"command, {samples} samples of 20 steps, over the script"
            rows.append({"step": name, "units": 64, "rows": 50, "slowdown": times_plain})
            print(f"{name} {times_plain:6.1f}")
    print("written to", record("digits", rows))


def seconds_of(*words: str) -> float:
    """The CPU time of Python with some arguments, the least of three runs."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def within(simulation: roundoff.Simulation | None, units: int, batch: int):
    """A training step, in a simulation or without one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, units), torch.nn.ReLU(), torch.nn.Linear(units, 10))
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)
    x, y = torch.randn(batch, 64), torch.randint(10, (batch,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def run():
        if simulation is None:
            return step()
        with simulation:
            return step()

    return run


if __name__ == "__main__":
    main()
