"""The power of the test of equivalence by simulation: against theory, and against experiments drawn from the truth."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from roundoff.analysis.statistics.equivalence import equivalence
from roundoff.analysis.statistics.power import power_of


def by_seed(scores, first=0):
    return [{first + i: float(score) for i, score in enumerate(scores)}]


def made(mean, std, count, seed=0):
    """Numbers of just this mean and standard deviation."""
    drawn = np.random.default_rng(seed).normal(size=count)
    return mean + std * (drawn - drawn.mean()) / drawn.std(ddof=1)


def power_in_theory(std, n, margin, shift=0.0):
    """The power of two t tests of pairs that differ by normal noise, by integrating over its standard deviation."""
    spread = np.sqrt(stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, n - 1) / (n - 1)) * std / math.sqrt(n)
    reach = margin - stats.t.ppf(0.95, n - 1) * spread
    error = std / math.sqrt(n)
    both = stats.norm.cdf((reach - shift) / error) - stats.norm.cdf((-reach - shift) / error)
    return float(np.where(reach > 0, both, 0).mean())


@pytest.mark.parametrize(("std", "n"), [(20.0, 6), (40.0, 10), (60.0, 16), (50.0, 30)])
def test_pairs_have_the_power_of_theory(std, n):
    """The margin, of 800, is 40. A single sample may have 0.1 in place of 0.05, so this is of eight."""
    y = made(800, 1e-9, n)
    found = [power_of(by_seed(y + made(0, std, n, k)), by_seed(y), np.random.default_rng(0)) for k in range(8)]
    assert np.mean([one.equal for one in found]) == pytest.approx(power_in_theory(std, n, 40), abs=0.04)
    assert np.mean([one.lower for one in found]) == pytest.approx(power_in_theory(std, n, 40, -40), abs=0.02)
    assert all(math.isnan(one.failing) for one in found)


def test_the_seeds_that_it_asks_for_are_those_of_theory():
    n = 12
    y = made(800, 1e-9, n)
    found = power_of(by_seed(y + made(0, 60, n, 1)), by_seed(y), np.random.default_rng(0))
    fewest = next(n for n in range(3, 200) if power_in_theory(60, n, 40) >= 0.8)
    assert found.seeds == pytest.approx(fewest, rel=0.15)
    wild = power_of(by_seed(y + made(0, 900, n, 1)), by_seed(y), np.random.default_rng(0))
    assert math.isnan(wild.seeds)


def test_one_more_failure_in_ten_is_often_not_seen():
    """Against experiments of the truth itself, by the test itself: ten runs, of which one in ten returns 1."""
    n, generator = 10, np.random.default_rng(0)
    x, y = made(800, 8, n, 1), made(800, 8, n, 2)
    found = power_of(by_seed(x), by_seed(y, 50), np.random.default_rng(0), untrained=[1.0])
    called = 0
    for _ in range(300):
        failing = np.where(generator.random(n) < 0.1, 1.0, generator.normal(800, 8, n))
        called += equivalence(by_seed(failing), by_seed(generator.normal(800, 8, n), 50)).p < 0.05
    assert found.failing == pytest.approx(called / 300, abs=0.07)
    assert found.failing > 0.25
    assert found.equal > 0.99
    assert math.isnan(found.correlation)


def test_whether_pairs_help():
    n = 10
    shared, own = made(0, 50, n, 1), made(0, 5, n, 2)
    found = power_of(by_seed(800 + shared + own), by_seed(800 + shared), np.random.default_rng(0))
    assert (found.correlation, found.correlation_p) == pytest.approx(
        tuple(stats.pearsonr(shared + own, shared, alternative="greater"))
    )
    unpaired = power_of(by_seed(800 + shared + own), by_seed(800 + shared, 50), np.random.default_rng(0))
    assert found.equal > unpaired.equal + 0.3
    assert found.seeds < unpaired.seeds


def test_tasks_weigh_the_same_and_less_is_worse_below_zero():
    n = 8
    x, y = by_seed(made(-150, 8, n, 1)), by_seed(made(-150, 8, n, 2), 50)
    below = power_of(x, y, np.random.default_rng(0))
    above = power_of(by_seed(-made(-150, 8, n, 1)), by_seed(-made(-150, 8, n, 2), 50), np.random.default_rng(0))
    assert (below.lower, below.equal) == pytest.approx((above.lower, above.equal), abs=0.04)
    assert 0.02 < below.lower < 0.08
    both = power_of([*x, *x], [*y, *y], np.random.default_rng(0))
    assert both.equal > below.equal


@pytest.mark.parametrize("scores", [[1.0, 2.0], [1.0, 2.0, -math.inf], [1.0, 2.0, math.nan]])
def test_little_data_has_no_power(scores):
    known = by_seed([1.0, 2.0, 3.0])
    for found in (
        power_of(by_seed(scores), known, np.random.default_rng(0)),
        power_of(known, by_seed(scores), np.random.default_rng(0)),
    ):
        assert all(map(math.isnan, found))


def test_without_spread_all_is_certain():
    found = power_of(by_seed([5.0] * 4), by_seed([5.0] * 4), np.random.default_rng(0), untrained=[0.0])
    assert (found.lower, found.equal, found.seeds) == (0, 1, 3)


@pytest.mark.parametrize("unit", [1e200, 1e307, 1e-200, 1e-310])
def test_units_do_not_matter(unit):
    """No square is beyond float64, and none is 0."""
    x, y = made(8, 0.3, 8, 1), made(8, 0.3, 8, 2)
    plain, scaled = (power_of(by_seed(x * by), by_seed(y * by), np.random.default_rng(0)) for by in (1, unit))
    assert tuple(scaled) == pytest.approx(tuple(plain), abs=0.01, nan_ok=True)


def test_many_runs_take_fewer_experiments():
    n = 20_000
    x, y = by_seed(made(1, 0.1, n, 1)), by_seed(made(1, 0.1, n, 2))
    tracemalloc.start()
    found = power_of(x, y, np.random.default_rng(0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.lower, found.equal) == pytest.approx((0.05, 1), abs=0.08)
    assert most < 400e6


def test_what_hardly_differs_has_no_correlation():
    x, y = [1e8, 1e8 + 1e-7, 1e8], [1e8, 1e8, 1e8 + 2e-8]
    assert math.isnan(power_of(by_seed(x), by_seed(y), np.random.default_rng(0)).correlation)
