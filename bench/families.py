"""Rounding 1e6 floats to the families other than floats, against copying them and torch's own fake quantization."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from roundoff.formats import Format, RandomBits, round

SIZES = (10_000, 1_000_000)
FORMATS = (
    *("q3.4", "q8.16", "int8", "uint8", "int8_ax0", "int8_ax1", "int4_g32", "int8_s0.02"),
    *("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "mxfp4_e2m1_ax0", "bfp8_16", "nvfp4"),
    *("fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_e4m3_b128", "int8_row"),
    *("posit8", "posit16_1", "posit16", "lns8_3"),
)
# What the project aims at, as a multiple of clone at 1e6 elements.
AIMS = {"int8": 4, "uint8": 4, "int8_ax0": 4, "mxfp8_e4m3": 4, "mxfp4": 4, "posit8": 20, "posit16_1": 20, "posit16": 20}


def main() -> None:
    """Prints and records nanoseconds per element and multiples of clone."""
    rows = []
    for n in SIZES:
        x = torch.randn(n, generator=torch.Generator().manual_seed(0)).view(100, -1)
        for name in FORMATS:
            fmt = Format.parse(name)
            y = x if fmt.fits_in(torch.float32) else x.double()
            contestants = {
                "clone": y.clone,
                "roundoff": lambda y=y, fmt=fmt: round(y, fmt),
                "stochastic": lambda y=y, fmt=fmt: round(y, fmt, rounding="stochastic", random=RandomBits(0)),
            }
            if name == "int8_s0.02":
                contestants["torch"] = lambda y=y: torch.fake_quantize_per_tensor_affine(y, 0.02, 0, -127, 127)
            seconds = interleaved(contestants, rounds=5, seconds=0.03)
            clone = seconds["clone"]
            ratios = {f"{who} / clone": s / clone for who, s in seconds.items() if who != "clone"}
            print(
                f"{n:.0e} {name:>12} {str(y.dtype).removeprefix('torch.')}:",
                ", ".join(
                    f"{who} {s / n * 1e9:.3f} ns ({s / seconds['clone']:.1f} x clone)" for who, s in seconds.items()
                ),
                f"[aim {AIMS[name]}]" if name in AIMS and n == SIZES[-1] else "",
            )
            rows.append(
                {"format": name, "elements": n, "dtype": str(y.dtype)}
                | {"nanoseconds_per_element": {who: s / n * 1e9 for who, s in seconds.items()}}
                | ratios
            )
    print("written to", record("families", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
