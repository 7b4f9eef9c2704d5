"""Statistics against scipy, by simulation, and where there is little data."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from roundoff.analysis.statistics.intervals import (
    bootstrap_interval,
    bootstrap_intervals,
    draw_counts,
    interquartile_mean,
    mean_and_std,
    performance_profile,
)

scores = st.lists(st.floats(0, 1000), min_size=2, max_size=12)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_interval_is_scipys_for_one_task():
    data = rng(1).normal(500, 100, 10)
    ours = bootstrap_interval([data], rng(), replicates=50_000)
    theirs = stats.bootstrap((data,), np.mean, method="percentile", n_resamples=50_000, rng=rng()).confidence_interval
    assert ours == pytest.approx(theirs, abs=1.5)


def test_interval_is_stratified():
    """Two tasks on different levels: the spread between them is no uncertainty."""
    low, high = rng(1).normal(100, 1, 5), rng(2).normal(900, 1, 5)
    interval = bootstrap_interval([low, high], rng())
    assert 498 < interval.low < interval.high < 502
    pooled = bootstrap_interval([np.concatenate([low, high])], rng())
    assert pooled.high - pooled.low > 300


def test_tasks_have_equal_weight_whatever_their_number_of_runs():
    interval = bootstrap_interval([np.zeros(2), np.full(50, 100.0)], rng())
    assert interval == (50.0, 50.0)


def test_interval_covers_the_mean_about_as_often_as_it_says():
    """With ten runs the percentile bootstrap is a little too narrow: about 90 % for a nominal 95 %."""
    covered = 0
    for seed in range(300):
        interval = bootstrap_interval([rng(seed).normal(0, 1, 10)], rng(seed + 1000), replicates=1000)
        covered += interval.low <= 0 <= interval.high
    assert 0.86 < covered / 300 < 0.96


@given(scores, st.integers(0, 2**32))
def test_interval_laws(data, seed):
    interval = bootstrap_interval([data], rng(seed), replicates=500)
    assert min(data) - 1e-9 <= interval.low <= interval.high <= max(data) + 1e-9
    assert interval == bootstrap_interval([data], rng(seed), replicates=500)
    moved = bootstrap_interval([np.array(data) + 10], rng(seed), replicates=500)
    assert moved == pytest.approx((interval.low + 10, interval.high + 10))


def test_little_data():
    assert all(math.isnan(end) for end in bootstrap_interval([], rng()))
    assert all(math.isnan(end) for end in bootstrap_interval([[5.0]], rng()))
    assert all(math.isnan(end) for end in bootstrap_interval([[5.0, 6.0], [7.0]], rng()))
    assert bootstrap_interval([[5.0, 5.0]], rng()) == (5.0, 5.0)


def test_columns_have_the_interval_of_their_scores_alone():
    """Runs that a column lacks are not drawn for it; those with the same runs are drawn together, bit for bit."""
    table = rng(1).normal(500, 100, (12, 4))
    table[[0, 5], 1] = np.nan
    table[1:, 2] = np.nan
    table[:, 3] = table[:, 0]
    found = bootstrap_intervals(table, rng(), replicates=20_000)
    for column in (0, 1):
        scores = table[~np.isnan(table[:, column]), column]
        theirs = stats.bootstrap((scores,), np.mean, method="percentile", n_resamples=20_000, rng=rng(7))
        assert found[column] == pytest.approx(theirs.confidence_interval, abs=3)
    assert np.isnan(found[2]).all()
    assert (found[3] == found[0]).all()
    infinite = table.copy()
    infinite[3, 0] = np.inf  # as what a program logged and was not finite
    assert np.isnan(bootstrap_intervals(infinite, rng())[0]).all()
    assert (bootstrap_intervals(infinite, rng(), replicates=100)[3] > 0).all()
    assert bootstrap_intervals(np.zeros((0, 2)), rng()).shape == bootstrap_intervals(np.zeros((3, 2)), rng()).shape


def test_runs_are_drawn_as_often_as_independent_draws_make_it():
    """A replicate's numbers are multinomial: their sum is fixed, each is binomial, and two correlate by -1/(n-1)."""
    runs, replicates = 6, 50_000
    drawn = draw_counts(runs, rng(), replicates)
    assert (drawn.sum(axis=1) == runs).all()
    expected = stats.binom.pmf(range(4), runs, 1 / runs)
    for run in range(runs):
        shares = np.bincount(drawn[:, run], minlength=runs + 1)[:4] / replicates
        assert shares == pytest.approx(expected, abs=0.01)
    apart = np.corrcoef(drawn.T)[~np.eye(runs, dtype=bool)]
    assert apart == pytest.approx(-1 / (runs - 1), abs=0.02)


def test_interquartile_mean():
    assert interquartile_mean([0, 10, 20, 1000]) == 15
    assert interquartile_mean([3]) == 3
    assert math.isnan(interquartile_mean([]))
    data = rng().normal(size=101)
    assert interquartile_mean(data) == pytest.approx(np.sort(data)[25:76].mean())


def test_aggregation_as_the_paper_does_it():
    """Stds of single tasks, then their average: not the std of all runs together."""
    mean, std = mean_and_std([[100, 102], [500, 504, 508]])
    assert mean == (101 + 504) / 2
    assert std == pytest.approx((math.sqrt(2) + 4) / 2)
    assert math.isnan(mean_and_std([[1.0], [2.0, 3.0]])[1])


def test_many_scores_are_resampled_a_part_at_a_time():
    """A hundred thousand runs are more than is drawn at once: less memory, and the numbers of one drawing."""
    data = rng(1).normal(size=100_000)
    tracemalloc.start()
    interval = bootstrap_interval([data], rng(), replicates=100)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    generator = rng()
    means = [data[generator.integers(data.size, size=data.size)].mean() for _ in range(100)]
    assert interval == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
    assert most < 8 * 100 * data.size  # bytes of all that is drawn


def test_performance_profile():
    profile = performance_profile([[0, 10, 20, 30], [10, 10]], [-1, 0, 10, 25, 30])
    assert profile.tolist() == [1, (0.75 + 1) / 2, 0.25, 0.125, 0]
