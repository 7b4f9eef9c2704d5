"""The result store: collecting and looking at large sweeps, and what the executor adds to a run."""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.timing import record
from roundoff.agents import TrainConfig, train
from roundoff.analysis.runs.collect import collect
from roundoff.sweeps import plan_file, plan_text, run_sweep
from roundoff.sweeps.folder.leases import this_process
from roundoff.sweeps.folder.status import read_status
from roundoff.sweeps.language.preset_files import find_sweep
from roundoff.sweeps.workers.local import LocalProcesses

RUNS, RECORDS = 300, 500
STATUS_RUNS = 1000
OVERHEAD_RUNS = 12
QUICK = "significand-quick"


class Clock:
    """Notes when runs end."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ends = []
        self.first = 0.0

    def begin(self, waiting, finished, workers):
        pass

    def event(self, event, status, score):  # noqa: ARG002
        now = time.perf_counter()
        self.first = self.first or now
        if event.kind == "ended":
            self.ends.append((event.run.id, now))


def seconds_of(call) -> dict[str, float]:
    """Medians by the clock on the wall, which other programs slow down, and by that of the processor."""
    call()
    wall, own = [], []
    for _ in range(5):
        start, started = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        own.append(time.process_time() - started)
    return {
        "seconds": statistics.median(wall),
        "processor_seconds": statistics.median(own),
        "load_of_the_machine": os.getloadavg()[0],
    }


def make_sweep(folder: Path, runs: int, records: int) -> None:
    """A finished sweep: every tenth record is an evaluation, the others are episodes of training."""
    config = TrainConfig().as_json()
    names = [f"cartpole_swingup-e5m10-s{seed}-{seed:010x}" for seed in range(runs)]
    plan = [{"id": name, "config": config | {"seed": seed}} for seed, name in enumerate(names)]
    content = {"layout": 1, "name": "bench", "description": "", "varying": ["seed"], "runs": plan}
    (folder / "sweep.json").write_text(json.dumps(content))
    names_logged = ("q", "entropy", "temperature", "critic_loss", "actor_loss_scale", "critic_loss_scale")
    source = random.Random(0)
    lines = []
    for number in range(1, records + 1):
        logged = {logged: source.gauss(0, 1) for logged in names_logged}
        line = {"kind": "train", "step": number * 1000, "episode_return": number / 7, **logged}
        if number % 10 == 0:
            line = {
                "kind": "eval",
                "step": number * 1000,
                "return_mean": 1 / 3,
                "return_std": 0.1,
                "returns": [1 / 3] * 10,
            }
        lines.append(json.dumps(line))
    result = {"status": "done", "return": 1.0, "return_std": 0.0, "step": records * 1000, "crash": None}
    for name in names:
        run = folder / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"config": config, "version": "bench"}))
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (run / "result.json").write_text(json.dumps(result))


def measure_collect() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        make_sweep(Path(name), RUNS, RECORDS)
        out = Path(name) / "all.parquet"
        seconds = seconds_of(lambda: collect([name], out))
        return {"what": "collect", "runs": RUNS, "records": RUNS * RECORDS, **seconds}


def measure_status() -> dict[str, object]:
    """A tenth of the runs is at work, a tenth is waiting."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sweep(folder, STATUS_RUNS, 100)
        leases = folder / "leases"
        leases.mkdir()
        for number, run in enumerate(sorted((folder / "runs").iterdir())):
            if number % 5 == 0:
                (run / "result.json").unlink()
            if number % 10 == 0:
                (leases / f"{run.name}.1").write_text(json.dumps(this_process()) + "\n")
        return {"what": "status", "runs": STATUS_RUNS, **seconds_of(lambda: read_status(folder))}


def measure_overhead() -> dict[str, object]:
    """What a sweep with one worker takes beyond the time that each run measures itself: per run, and once.

    Compared with a run of the quick preset. Opening environments and making the agent count as overhead here.
    """
    tiny = plan_text(
        "name: bench\nbase: {action_repeat: 50, steps: 2000, hidden_units: 8, batch_size: 8, seed_steps: 5,"
        f" eval_every: 2000, eval_episodes: 1}}\ngrid: {{seed: {list(range(OVERHEAD_RUNS))}}}",
        "bench",
    )
    with tempfile.TemporaryDirectory() as name:
        clock = Clock()
        run_sweep(tiny, Path(name), executor=LocalProcesses(1), watcher=clock)
        once = clock.first - clock.began + time.perf_counter() - clock.ends[-1][1]
        overheads = []
        for (_, before), (run, end) in pairwise(clock.ends):
            timing = json.loads((Path(name) / "runs" / run / "timing.json").read_text())
            overheads.append(end - before - timing["seconds"])
    quick = plan_file(find_sweep(QUICK))
    one = next(run for run in quick.runs if run.config.format == "e5m10")
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        train(one.config, Path(name) / one.id)
        of_quick = time.perf_counter() - start
    per_run = statistics.median(overheads)
    return {
        "what": "executor",
        "overhead_per_run": per_run,
        "once_per_sweep": once,
        f"seconds_per_run_of_{QUICK}": of_quick,
        "overhead_over_quick": (per_run + once / len(quick.runs)) / of_quick,
        "load_of_the_machine": os.getloadavg()[0],
    }


def main() -> None:
    """Prints and records the seconds."""
    rows = [measure_collect(), measure_status(), measure_overhead()]
    for row in rows:
        print(
            ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    print("written to", record("store", rows))


if __name__ == "__main__":
    main()
