"""Rounding to float formats: every way of ours against copies, casts and the libraries that are installed."""

from __future__ import annotations

import importlib
import warnings

import torch

from bench.timing import interleaved, record
from roundoff.formats import Format, FormatError, RandomBits, Rounding, round
from roundoff.formats.arithmetic.float_tensors import round_nearest
from roundoff.formats.rounding import row_parameters

SIZES = (10_000, 1_000_000, 16_000_000)


def ours(x: torch.Tensor) -> dict[str, object]:
    """Our own contestants."""
    target, fp16 = torch.empty_like(x), Format.parse("fp16")
    contestants = {"copy_": lambda: target.copy_(x), "into e5m10": lambda: fp16.round_into(x, target)}
    for name in ("e5m10", "bf16", "fp8_e4m3", "e4m3fnuz", "e3m0", "qtorch_e5m10"):
        fmt = Format.parse(name)
        contestants[f"round {name}"] = lambda fmt=fmt: round(x, fmt)
    contestants["nearest-away e5m10"] = lambda: round(x, fp16, rounding="nearest-away")
    contestants["up e5m10"] = lambda: round(x, fp16, rounding="up")
    random = RandomBits(0)
    for name in ("e5m10", "bf16", "fp8_e4m3"):
        fmt = Format.parse(name)
        contestants[f"stochastic {name}"] = lambda fmt=fmt: round(x, fmt, rounding="stochastic", random=random)
        contestants[f"stochastic into {name}"] = lambda fmt=fmt: fmt.round_into(
            x, target, Rounding.STOCHASTIC, None, random
        )
    rows = x.view(10, -1)
    parameters, compiled = row_parameters(["e5m10", "bf16"] * 5, rows), torch.compile(round_nearest, dynamic=True)
    contestants["a format per row, eager"] = lambda: round(rows, ["e5m10", "bf16"] * 5)
    contestants["a format per row, compiled"] = lambda: compiled(rows, parameters)
    return contestants


def others(x: torch.Tensor) -> dict[str, object]:
    """PyTorch's own casts, and the libraries that are installed; none of them is a dependency but qtorch."""
    contestants = {
        "clone": x.clone,
        "half().float()": lambda: x.half().float(),
        "bfloat16().float()": lambda: x.bfloat16().float(),
        "float8_e4m3fn and back": lambda: x.to(torch.float8_e4m3fn).float(),
    }
    if x.is_cuda or x.numel() > SIZES[1]:
        return contestants  # the libraries take many times as long
    try:
        round(x[:1], "e5m10", backend="qtorch")
        contestants["qtorch"] = lambda: round(x, "e5m10", backend="qtorch")
    except FormatError as error:
        print("qtorch is left out:", error)
    for library, make in (("ml_dtypes", _ml_dtypes), ("gfloat", _gfloat), ("pychop", _pychop)):
        try:
            contestants[library] = make(importlib.import_module(library), x)
        except (ImportError, AttributeError, TypeError) as error:
            print(f"{library} is left out: {error}")
    return contestants


def _ml_dtypes(library, x):
    array = x.numpy()
    return lambda: array.astype(library.float8_e4m3fn).astype("float32")


def _gfloat(library, x):
    formats = importlib.import_module("gfloat.formats")
    array = x.double().numpy()
    return lambda: library.round_ndarray(formats.format_info_binary16, array)


def _pychop(library, x):
    chop = library.LightChop(exp_bits=5, sig_bits=10, rmode=1)
    return lambda: chop(x)


def on_device(x: torch.Tensor) -> dict[str, object]:
    """Rounds on a GPU, and waits for each call."""

    def waited(call):
        def run() -> None:
            call()
            torch.cuda.synchronize()

        return run

    return {name: waited(call) for name, call in {**ours(x), **others(x)}.items()}


def main() -> None:
    """Prints and records the figures, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for n in SIZES:
            x = torch.randn(n, generator=torch.Generator().manual_seed(0))
            rows.append(measured("cpu", n, interleaved({**ours(x), **others(x)}, rounds=7, seconds=0.02)))
            if torch.cuda.is_available():
                rows.append(measured("cuda", n, interleaved(on_device(x.cuda()), rounds=7, seconds=0.02)))
    finally:
        torch.set_num_threads(threads)
    print("written to", record("formats", rows))


def measured(device: str, n: int, seconds: dict[str, float]) -> dict[str, object]:
    """One row of the results: nanoseconds per element, and the ratio to a copy into memory already there."""
    base = seconds["copy_"]
    print(f"\n{n:,} elements on {device}")
    for name, s in seconds.items():
        print(f"  {name:32} {s / n * 1e9:8.3f} ns/element  {s / base:8.2f} x copy_")
    return {
        "device": device,
        "elements": n,
        "nanoseconds_per_element": {name: s / n * 1e9 for name, s in seconds.items()},
        "times_copy": {name: s / base for name, s in seconds.items()},
    }


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
