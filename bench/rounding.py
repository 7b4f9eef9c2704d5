"""Rounding 1e6 floats to e5m10, against copying them, PyTorch's own cast there and back, and qtorch."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from roundoff.formats import FormatError, round

SIZES = (10_000, 1_000_000)


def main() -> None:
    """Prints and records the ratios."""
    rows = []
    for n in SIZES:
        x = torch.randn(n, generator=torch.Generator().manual_seed(0))
        contestants = {
            "clone": x.clone,
            "half().float()": lambda x=x: x.half().float(),
            "roundoff": lambda x=x: round(x, "e5m10"),
        }
        try:
            round(x[:1], "e5m10", backend="qtorch")
            contestants["qtorch"] = lambda x=x: round(x, "e5m10", backend="qtorch")
        except FormatError as error:
            print("qtorch is left out:", error)
        seconds = interleaved(contestants)
        ours = seconds["roundoff"]
        print(
            f"rounding {n:.0e} floats to e5m10:",
            ", ".join(f"{name} {s / n * 1e9:.3f} ns ({s / ours:.2f} x ours)" for name, s in seconds.items()),
        )
        ratios = {f"{name} / roundoff": s / ours for name, s in seconds.items() if name != "roundoff"}
        rows.append({"elements": n, "nanoseconds_per_element": {k: s / n * 1e9 for k, s in seconds.items()}} | ratios)
    print("written to", record("rounding", rows))
