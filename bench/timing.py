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


def interleaved(contestants: Mapping[str, Callable[[], object]], *, rounds: int = 9, seconds: float = 0.05):
    """Median seconds per call of each contestant: in every round each runs for about ``seconds``, in turn."""
    calls = {}
    for name, call in contestants.items():
        call()
        start = time.perf_counter()
        call()
        calls[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            samples[name].append((time.perf_counter() - start) / calls[name])
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


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    versions = {}
    for package in PACKAGES:
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


def record(name: str, rows: list[dict[str, object]]) -> Path:
    """Writes the rows with machine and versions to ``bench/results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return path
