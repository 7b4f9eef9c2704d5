"""Fair timing: the contestants take turns within one process, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import json
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("roundoff", "torch", "numpy", "numba", "qtorch", "ml_dtypes")


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 9,
    seconds: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
):
    """Median seconds per call of each contestant, by a clock: in a round each runs for about ``seconds``, in turn."""
    calls = {}
    for name, call in contestants.items():
        call()
        start = clock()
        call()
        calls[name] = max(1, int(seconds / max(clock() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = clock()
            for _ in range(calls[name]):
                call()
            samples[name].append((clock() - start) / calls[name])
    return {name: statistics.median(times) for name, times in samples.items()}


def on_device(make: Callable[[], Callable[[], object]], *, warm: int, timed: int) -> tuple[float, float]:
    """Seconds per call on the current GPU by its own events, and the megabytes at its peak beyond those before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call = make()
    for _ in range(warm):
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(timed):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / timed, (torch.cuda.max_memory_allocated() - before) / 2**20


def machine(packages: tuple[str, ...] = ()) -> dict[str, object]:
    """What the figures were measured on, with the versions of further packages."""
    versions = {}
    for package in PACKAGES + packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "processor": _processor(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def record(name: str, rows: list[dict[str, object]], *, packages: tuple[str, ...] = ()) -> Path:
    """Writes the rows with machine and versions, also of further packages, to ``bench/results/NAME.json``."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(packages), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return path
