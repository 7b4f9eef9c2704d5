"""Two conditions against each other, by hand, by scipy, and where there is little to go by."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from roundoff.analysis.statistics.comparisons import difference, holm, probability_of_improvement


def rng(seed=0):
    return np.random.default_rng(seed)


def by_seed(scores, first=0):
    return {first + i: float(score) for i, score in enumerate(scores)}


def test_probability_of_improvement_is_rliables():
    """Mann-Whitney's U over its maximum, averaged over tasks (Agarwal et al., Section 4.3)."""
    x, y = [[1, 5, 7], [2, 2]], [[5, 0], [2, 3, 1]]
    found = probability_of_improvement(x, y, rng())
    theirs = [stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(x, y, strict=True)]
    assert found.value == pytest.approx(np.mean(theirs)) == pytest.approx((4.5 / 6 + 3 / 6) / 2)


def test_its_interval_resamples_both_sides():
    a, b = rng(1).normal(1, 1, 8), rng(2).normal(0, 1, 6)
    found = probability_of_improvement([a], [b], rng(), replicates=4000)
    generator, drawn = rng(5), []
    for _ in range(4000):
        x, y = generator.choice(a, a.size), generator.choice(b, b.size)
        drawn.append((x[:, None] > y).mean() + 0.5 * (x[:, None] == y).mean())
    assert found.interval == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)


def test_many_runs_are_compared_without_a_table_of_pairs():
    """Ten thousand against as many are a hundred million pairs; ties count half."""
    a, b = np.round(rng(1).normal(0.3, 1, 10_000), 1), np.round(rng(2).normal(0, 1, 10_000), 1)
    tracemalloc.start()
    found = probability_of_improvement([a], [b], rng(), replicates=50)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.value == pytest.approx(stats.mannwhitneyu(a, b).statistic / 1e8, abs=1e-12)
    assert found.interval.low < found.value < found.interval.high
    assert most < a.size * b.size / 10  # bytes


def test_equal_and_single_scores():
    same = probability_of_improvement([[4, 4]], [[4, 4, 4]], rng())
    assert (same.value, same.interval) == (0.5, (0.5, 0.5))
    one = probability_of_improvement([[4]], [[3, 2]], rng())
    assert one.value == 1
    assert all(map(math.isnan, one.interval))
    none = difference([by_seed([3, 3])], [by_seed([3, 3])])
    assert (none.value, none.interval, none.p) == (0, (0, 0), 1)
    single = difference([by_seed([3])], [by_seed([1])])
    assert (single.value, single.pairs) == (2, 1)
    assert all(map(math.isnan, (*single.interval, single.p)))


def test_differences_are_paired_by_seed():
    """What all runs of a seed share cancels out; seeds that only one side has do not count."""
    levels = np.array([100, 400, 700, 900])
    found = difference([by_seed(levels - [1, 2, 3, 4]) | {9: 0.0}], [by_seed(levels)])
    assert (found.value, found.pairs) == (-2.5, 4)
    theirs = stats.ttest_1samp([-1, -2, -3, -4], 0)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval == pytest.approx(tuple(theirs.confidence_interval()))


def test_tasks_weigh_the_same_in_a_difference():
    """Two tasks with means 10 and 2, whose variances are 1 and 1/3; degrees of freedom by Satterthwaite."""
    found = difference([by_seed([9, 11]), by_seed([1, 3, 2])], [by_seed([0, 0]), by_seed([0, 0, 0])])
    assert (found.value, found.pairs) == (6, 5)
    freedom = (1 + 1 / 3) ** 2 / (1 / 1 + (1 / 9) / 2)
    assert found.p == pytest.approx(2 * stats.t.sf(6 / math.sqrt((1 + 1 / 3) / 4), freedom))


def test_without_shared_seeds_all_runs_are_compared():
    x, y = rng(1).normal(1, 1, 5), rng(2).normal(0, 1, 4)
    theirs = stats.ttest_ind(x, y, equal_var=False)
    for first in (100, 4):  # none, and one: a pair says nothing
        found = difference([by_seed(x)], [by_seed(y, first=first)])
        assert found.pairs == 0
        assert (found.value, found.p) == pytest.approx((x.mean() - y.mean(), theirs.pvalue))
        assert found.interval == pytest.approx(tuple(theirs.confidence_interval()))


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm's own arithmetic
    assert holm([0.5, 0.9]).tolist() == [1, 1]
    assert np.isnan(holm([0.2, np.nan])).tolist() == [False, True]
    assert holm([0.2, np.nan])[0] == 0.2
    assert holm([]).size == 0
