"""Rounded accumulation of a 256 x 1024 by 1024 x 1024 product against torch's own, one thread."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from roundoff.formats import round
from roundoff.simulate.accumulation.description import Accumulation
from roundoff.simulate.accumulation.run import accumulate

ROWS, DEPTH, COLUMNS = 256, 1024, 1024

# Sequential with rounded products, blocked, fused, compensated; then formats for which the general loops are needed.
HOW = (
    "e5m10*e5m10", "e5m10/32", "e5m10", "e5m10*e5m10/32", "e5m10*e5m10+kahan", "e5m10+kahan",
    "e8m7*e8m7", "e8m7", "e4m3fn*e4m3fn", "fp32",
)  # fmt: skip
# Operands that are no numbers of e5m10: products must be formed in float64.
UNROUNDED = ("e5m10*e5m10", "e5m10/32", "e5m10")


def main() -> None:
    """Prints and records the ratios."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(ROWS, DEPTH, generator=generator), torch.randn(DEPTH, COLUMNS, generator=generator)
    narrow = tuple(round(x, "e5m10") for x in wide)
    plain = torch.ops.aten.mm.default

    def under(text: str, operands: tuple[torch.Tensor, ...]):
        how = Accumulation.parse(text)
        return lambda: accumulate(plain, operands, {}, how)

    ways = {"torch.mm": lambda: torch.mm(*narrow)}
    ways |= {text: under(text, narrow) for text in HOW}
    ways |= {f"{text}, operands unrounded": under(text, wide) for text in UNROUNDED}
    seconds = interleaved(ways, rounds=7, seconds=0.1)
    rows = []
    for name, taken in seconds.items():
        ratio = taken / seconds["torch.mm"]
        print(f"{name:40} {taken * 1e3:8.2f} ms {ratio:8.2f} x torch.mm")
        rows.append({"accumulation": name, "seconds": taken, "over_plain": ratio})
    print("written to", record("accumulation", rows))
