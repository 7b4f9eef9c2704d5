"""Compiled updates: simulated and plain, eager and compiled, beside a textbook SAC; and what compiling costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import torch

from bench.timing import interleaved, record
from bench.update import ACTION, OBSERVATION, reference, transitions
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.formats import round

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = "import sys, torch; torch.set_num_threads(1); from bench.compiled import first_update; first_update()"


def updates(format: str, units: int, batch: int, *, compiled: bool, **settings) -> Callable[[], object]:
    """A function that does one update of an agent of this format, on one fixed batch."""
    config = TrainConfig(task="cheetah_run", format=format, hidden_units=units, batch_size=batch, **settings)
    agent = SAC(OBSERVATION, ACTION, config, torch.device("cpu"))
    replay = Replay(batch, OBSERVATION, ACTION, dtype=agent.dtype, device=torch.device("cpu"))
    replay.rows.copy_(round(transitions(batch), format))
    replay.added = batch
    sample = replay.sample(batch, torch.Generator().manual_seed(0))
    if compiled:
        agent.compiled = CompiledUpdates(agent)
    return lambda: agent.update(sample)


def first_update() -> None:
    """The first compiled update of the quick presets' agent, in seconds."""
    began = time.perf_counter()
    updates("e5m10", 128, 128, compiled=True)()
    sys.stdout.write(f"{time.perf_counter() - began}\n")


def compilation() -> dict[str, object]:
    """Seconds to the first update, in new processes: compiled anew, and read from the disk."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("compiled anew", "from the disk"):
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
            shown = subprocess.run(
                [sys.executable, "-c", FIRST], env=environment, check=True, capture_output=True, text=True
            )
            seconds[name] = float(shown.stdout.split()[-1])
    print("seconds to the first update of 128 units:", seconds)
    return {"what": "first update, 128 units, batch 128", "seconds": seconds}


def comparison(units: int, batch: int) -> dict[str, object]:
    """One size, all in turn."""
    contestants = {
        "reference fp32": reference(units, batch),
        "fp32, no fixes": updates("fp32", units, batch, compiled=False, fixes="none"),
        "fp32, no fixes, compiled": updates("fp32", units, batch, compiled=True, fixes="none"),
        "e5m10": updates("e5m10", units, batch, compiled=False),
        "e5m10, compiled": updates("e5m10", units, batch, compiled=True),
    }
    small = units < 1000
    seconds = interleaved(contestants, rounds=9 if small else 5, seconds=0.3 if small else 0.1)
    ratios = {
        "e5m10 compiled / reference": seconds["e5m10, compiled"] / seconds["reference fp32"],
        "e5m10 compiled / fp32": seconds["e5m10, compiled"] / seconds["fp32, no fixes"],
        "e5m10 compiled / fp32 compiled": seconds["e5m10, compiled"] / seconds["fp32, no fixes, compiled"],
        "e5m10 compiled / e5m10": seconds["e5m10, compiled"] / seconds["e5m10"],
    }
    print(f"compiled SAC update, {units} units, batch {batch}:", ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    return {"what": f"update, {units} units, batch {batch}", "seconds": seconds, "ratios": ratios}


def main() -> None:
    """Prints and records the ratios."""
    rows = [comparison(units, units) for units in (128, 256, 1024)]
    print("written to", record("compiled", [*rows, compilation()]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
