"""Totals of an observer, by place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...formats import Format
from .counting import COUNTED, EXPONENTS, Counter


@dataclass
class Tally:
    """Sums over all calls at one place."""

    calls: int = 0
    additions: int | torch.Tensor = 0
    absorbed: int | torch.Tensor = 0
    unrounded: int = 0
    counters: dict[tuple[torch.dtype, Format], Counter] = field(default_factory=dict)
    # what a checkpoint brought
    earlier: dict[str, Any] = field(default_factory=dict)

    def fetch(self) -> None:
        """Takes over the counts from devices; waits for them."""
        self.additions, self.absorbed = int(self.additions), int(self.absorbed)
        for counter in self.counters.values():
            counter.fetch()

    def sums(self) -> dict[str, int]:
        """All counts by name."""
        counters = self.counters.values()
        sums = {"calls": self.calls, "results": sum(counter.results for counter in counters)}
        for position, name in enumerate(COUNTED):
            sums[name] = sum(int(counter.counts[position]) for counter in counters)
        sums |= {"additions": int(self.additions), "absorbed": int(self.absorbed), "unrounded": self.unrounded}
        return {name: number + self.earlier.get(name, 0) for name, number in sums.items()}

    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest magnitude; infinity and 0 without any."""
        seen = [*(counter.extremes for counter in self.counters.values()), self.earlier.get("extremes", (np.inf, 0.0))]
        return min(float(low) for low, _ in seen), max(float(high) for _, high in seen)

    def histogram(self) -> np.ndarray:
        """Results by exponent."""
        total = sum((counter.histogram.sum(0) for counter in self.counters.values()), np.zeros(EXPONENTS, np.int64))
        return total + self.earlier["histogram"].numpy() if self.earlier else total
