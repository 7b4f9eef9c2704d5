"""What launching a rounding on a GPU costs on the host, before the driver: measured without a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.stub_driver import compiled_for

from bench.timing import interleaved, record
from roundoff.formats import Format, RandomBits, Rounding
from roundoff.formats.base.modes import RoundingOptions

NAMES = ("e5m10", "q4.6", "posit8_1", "mxfp8_e4m3", "int8_row")


def main() -> None:
    """Prints and records the ratios."""
    x = torch.zeros(1000)
    target, rows = torch.empty_like(x), []
    with compiled_for(90) as driver:
        contestants = {"torch.add": lambda: torch.add(x, x, out=target)}
        for name in NAMES:
            fmt = replace(Format.parse(name))
            for mode, random in ((Rounding.NEAREST_EVEN, None), (Rounding.STOCHASTIC, RandomBits(1))):
                how = RoundingOptions(mode, fmt._policy(None), random)
                contestants[f"{name}, {mode}"] = lambda f=fmt, h=how: f._round_on_device(x, target, h)
        seconds = interleaved(contestants)
        driver.launches.clear()
    for name, value in seconds.items():
        ratio = value / seconds["torch.add"]
        print(f"{name}: {value * 1e6:.1f} us, {ratio:.1f} x")
        rows.append({"what": name, "seconds": value, "over_add": ratio})
    print("written to", record("launches", rows, packages=("triton",)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
