"""Acting by engine, format and width of a policy: calls, messages, loading; and policies of ActorQ's Table 6.

``python -m bench.acting``. In CPU time on one thread, the engines in turn: torch's own float32, ONNX Runtime's float32
and int8, simulated int8, and the exported C header, compiled with ``-O3 -march=native``. Observations have 17 numbers,
actions 6, as HalfCheetah's.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench.timing import interleaved, record
from roundoff.agents.acting.c_header import c_header
from roundoff.agents.acting.engines import message_for, open_engine
from roundoff.agents.acting.packed import PackedPolicy
from roundoff.agents.models.policy_layers import Activation, Decision, LinearLayer, PolicyLayers
from roundoff.analysis.paper.published import published

if TYPE_CHECKING:
    from collections.abc import Callable

OBSERVATION, ACTION = 17, 6
WIDTHS = {
    "64 x 2": [64] * 2,
    "256 x 2": [256] * 2,
    "512 x 2": [512] * 2,
    "1024 x 2": [1024] * 2,
    "2048 x 3": [2048] * 3,
}
BATCHES = (1, 16)
LARGEST_HEADER = 2_000_000  # weights; gcc takes gigabytes for the arrays of more
TABLE6 = {"Policy I": [64] * 3, "Policy II": [256] * 3, "Policy III": [4096, 512, 1024]}
CHOICES = 25
"""Actions of the policies of Table 6 (Appendix B.3)."""


def policy_of(hidden: list[int], outputs: int = ACTION, decision: Decision = Decision.TANH) -> PolicyLayers:
    """A policy with hidden layers of these widths."""
    generator = torch.Generator().manual_seed(0)
    sizes = [OBSERVATION, *hidden, outputs]
    layers = tuple(
        LinearLayer(
            torch.randn(n_out, n_in, generator=generator) / n_in**0.5,
            torch.zeros(n_out),
            Activation.RELU if i < len(hidden) else Activation.NONE,
        )
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes))
    )
    return PolicyLayers((OBSERVATION,), (), (layers,), decision, outputs)


def by_torch(policy: PolicyLayers, x: np.ndarray) -> Callable[[], object]:
    """Modules of torch, as an actor has them that quantizes nothing."""
    modules: list[torch.nn.Module] = []
    for layer in policy:
        module = torch.nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
        module.weight.data, module.bias.data = layer.weight, layer.bias
        modules += [module, torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules[:-1], torch.nn.Tanh())

    def act() -> object:
        with torch.inference_mode():
            return model(torch.from_numpy(x)).numpy()

    return act


def by_c(packed: PackedPolicy, x: np.ndarray, folder: Path) -> Callable[[], object]:
    """The exported header; the loop over a batch is in C, too."""
    (folder / "policy.h").write_text(c_header(packed), encoding="utf-8")
    (folder / "policy.c").write_text(
        '#include "policy.h"\nvoid act(const float *x, float *y, int n);\nvoid act(const float *x, float *y, int n)\n'
        "{ for (int i = 0; i < n; i++) policy_act(x + i * POLICY_OBSERVATIONS, y + i * POLICY_ACTIONS); }\n",
        encoding="utf-8",
    )
    name = folder / f"policy_{len(list(folder.glob('*.so')))}.so"  # a name that was loaded is not loaded again
    flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", name, folder / "policy.c"], check=True)
    library = ctypes.CDLL(str(name))
    y = np.zeros((len(x), packed.layout.action_size), np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    return lambda: library.act(*pointers, len(x))


def calls(name: str, hidden: list[int], batch: int, folder: Path) -> dict[str, object]:
    """Seconds of a call by engine, and int8's throughput over that of float32 within ONNX Runtime."""
    policy = policy_of(hidden)
    x = np.random.default_rng(0).standard_normal((batch, OBSERVATION)).astype(np.float32)
    packed = {fmt: PackedPolicy.of(policy, fmt) for fmt in ("fp32", "int8")}
    contestants = {"torch fp32": by_torch(policy, x)}
    for engine, fmt in (("onnxruntime", "fp32"), ("onnxruntime", "int8"), ("simulated", "int8")):
        opened = open_engine(engine, message_for(engine, packed[fmt]))
        contestants[f"{engine} {fmt}"] = lambda opened=opened: opened.act(x)
    if shutil.which("gcc") and sum(layer.weight.numel() for layer in policy) < LARGEST_HEADER:
        contestants |= {f"C {fmt}": by_c(one, x, folder) for fmt, one in packed.items()}
    seconds = interleaved(contestants, seconds=0.03, rounds=7, clock=time.process_time)
    return {
        "policy": name, "batch": batch, "seconds": seconds,
        "onnxruntime fp32 over int8": seconds["onnxruntime fp32"] / seconds["onnxruntime int8"],
        "torch fp32 over onnxruntime int8": seconds["torch fp32"] / seconds["onnxruntime int8"],
    }  # fmt: skip


def versions(name: str, hidden: list[int]) -> dict[str, object]:
    """What a new version of the weights costs: seconds to pack, to write the engine's message, to begin with it."""
    policy = policy_of(hidden)
    row: dict[str, object] = {"policy": name}
    sizes = {}
    for fmt in ("fp32", "int8", "int8_ax0", "int4"):
        packed = PackedPolicy.of(policy, fmt)
        message = packed.to_bytes()
        sizes[fmt] = len(message)
        steps = {
            "pack": lambda fmt=fmt: PackedPolicy.of(policy, fmt),
            "message": packed.to_bytes,
            "read": lambda message=message: PackedPolicy.from_bytes(message),
        }
        if fmt != "int4":
            graph = message_for("onnxruntime", packed)
            sizes[f"{fmt} graph"] = len(graph)
            steps |= {
                "graph": lambda packed=packed: message_for("onnxruntime", packed),
                "session": lambda graph=graph: open_engine("onnxruntime", graph),
            }
        row[fmt] = interleaved(steps, seconds=0.02, rounds=3, clock=time.process_time)
    row["bytes"] = sizes
    row["fp32 message over int8"] = sizes["fp32"] / sizes["int8"]
    row["fp32 graph over int8"] = sizes["fp32 graph"] / sizes["int8 graph"]
    return row


def _resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def _memory(message: bytes, pipe) -> None:
    open_engine("onnxruntime", message_for("onnxruntime", PackedPolicy.of(policy_of([8]), "fp32")))
    before = _resident()
    engine = open_engine("onnxruntime", message)
    engine.act(np.zeros((1, OBSERVATION), np.float32))
    pipe.send(_resident() - before)


def memory(message: bytes) -> int:
    """Bytes that a process takes more when the engine has begun and acted, beside the message."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_memory, args=(message, theirs))
    process.start()
    taken: int = ours.recv()
    process.join()
    return taken


def table6(name: str, hidden: list[int]) -> dict[str, object]:
    """Latency, size and memory of a policy of Table 6, which chooses among 25 actions."""
    policy = policy_of(hidden, CHOICES, Decision.LARGEST)
    x = np.zeros((1, OBSERVATION), np.float32)
    messages = {fmt: message_for("onnxruntime", PackedPolicy.of(policy, fmt)) for fmt in ("fp32", "int8")}
    contestants = {}
    for fmt, message in messages.items():
        opened = open_engine("onnxruntime", message)
        contestants[fmt] = lambda opened=opened: opened.act(x)
    seconds = interleaved(contestants, seconds=0.03, rounds=7, clock=time.process_time)
    return {
        "policy": name, "hidden": hidden, "milliseconds": {fmt: 1e3 * one for fmt, one in seconds.items()},
        "speedup": seconds["fp32"] / seconds["int8"],
        "bytes": {fmt: len(message) for fmt, message in messages.items()},
        "memory": {fmt: memory(message) for fmt, message in messages.items()},
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, hidden in WIDTHS.items():
            for batch in BATCHES:
                rows.append(calls(name, hidden, batch, Path(folder)))
                seconds = ", ".join(f"{who} {1e6 * one:.1f}" for who, one in rows[-1]["seconds"].items())
                ratio = rows[-1]["onnxruntime fp32 over int8"]
                print(f"{name}, batch {batch}: {seconds} us; int8 / fp32 within ONNX Runtime {ratio:.2f}")
    for name, hidden in WIDTHS.items():
        rows.append(versions(name, hidden))
        sizes, costs = rows[-1]["bytes"], rows[-1]["int8"]
        print(
            f"{name}: a message of {sizes['int8']} bytes, {rows[-1]['fp32 message over int8']:.2f} x smaller;"
            f" int8 {', '.join(f'{step} {1e3 * one:.1f}' for step, one in costs.items())} ms"
        )
    for name, hidden in TABLE6.items():
        rows.append(table6(name, hidden))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
        printed = [one for one in published("actorq-table6") if f"Policy {one.settings['policy']}" == name]
        print("  printed:", ", ".join(f"{one.quantity} {one.settings['format']} {one}{one.unit}" for one in printed))
    print(record("acting", rows, packages=("onnx", "onnxruntime")))


if __name__ == "__main__":
    main()
