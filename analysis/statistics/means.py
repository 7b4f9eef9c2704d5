"""Estimates sums of means of independent samples, with Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from .intervals import NO_INTERVAL, Interval

_ROUNDING = 1e-9  # smaller sums, relative to the largest number, are rounding errors


class Mean(NamedTuple):
    """An estimate of a mean, or of a sum of means.

    Attributes:
        value: the estimate.
        error: its standard error; 0 of samples without spread, NaN if a sample has fewer than two numbers.
        freedom: degrees of freedom of ``error``; infinite if that is 0.
    """

    value: float
    error: float
    freedom: float

    def interval(self, level: float = 0.95) -> Interval:
        """Returns Student's interval at a confidence ``level`` in (0, 1); NaN without a standard error."""
        if math.isnan(self.error):
            return NO_INTERVAL
        reach = self.error * float(stats.t.ppf(0.5 + level / 2, self.freedom)) if self.error else 0.0
        return Interval(self.value - reach, self.value + reach)

    @property
    def p_greater(self) -> float:
        """One-sided p of "the true value is 0 or less"; without spread 0 or 1, NaN without a standard error."""
        if not self.error:
            return 0.0 if self.value > 0 else 1.0
        return float(special.stdtr(self.freedom, -self.value / self.error))

    @property
    def p_two_sided(self) -> float:
        """Two-sided p of "the true value is 0"."""
        return float(np.minimum(1.0, 2 * (self if self.value > 0 else -self).p_greater))

    def __neg__(self) -> Mean:
        return self._replace(value=-self.value)


def sum_of_means(samples: Sequence[ArrayLike]) -> Mean:
    """Estimates the sum of the means of independent samples with possibly different variances.

    Its variance is the sum of a_i = s_i^2 / n_i, with (sum a_i)^2 / sum(a_i^2 / (n_i - 1)) degrees of freedom: for one
    sample Student's t, for two Welch's.

    Args:
        samples: samples of any length; the caller negates numbers to be subtracted.

    Source:
        Welch, "The generalization of 'Student's' problem when several different population variances are involved",
        1947; Satterthwaite, "An approximate distribution of estimates of variance components", 1946.
    """
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(sum(array.mean() for array in arrays))
    largest = max(float(np.abs(array).max()) for array in arrays)
    if abs(value) <= _ROUNDING * largest:
        value = 0.0
    if any(array.size < 2 for array in arrays):
        return Mean(value, float("nan"), float("nan"))
    variances = np.array([array.var(ddof=1) / array.size for array in arrays])
    variances[np.sqrt(variances) <= _ROUNDING * largest] = 0.0
    variance = float(variances.sum())
    if variance == 0:
        return Mean(value, 0.0, math.inf)
    shares = variances / variance  # avoids overflow, and squares of numbers near 0
    freedom = 1 / float((shares**2 / [array.size - 1 for array in arrays]).sum())
    return Mean(value, math.sqrt(variance), freedom)
