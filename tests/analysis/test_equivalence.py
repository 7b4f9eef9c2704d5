"""Two one-sided tests: by scipy, by a published example, by their error rate, and where nothing can be said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from roundoff.analysis.statistics.equivalence import equivalence, in_words
from roundoff.analysis.statistics.means import sum_of_means


def rng(seed=0):
    return np.random.default_rng(seed)


def by_seed(scores, first=0):
    return [{first + i: float(score) for i, score in enumerate(scores)}]


X, Y = rng(1).normal(790, 60, 9), rng(2).normal(800, 50, 9)


def test_pairs_are_scipys():
    """The margin is a share of fp32's mean in each test, so a pair is x - 0.93 y, or 1.07 y - x."""
    found = equivalence(by_seed(X), by_seed(Y), 0.07)
    worse = stats.ttest_rel(X, 0.93 * Y, alternative="greater").pvalue
    better = stats.ttest_rel(X, 1.07 * Y, alternative="less").pvalue
    assert found.p_worse == pytest.approx(worse)
    assert found.p == pytest.approx(max(worse, better))
    assert found.share == pytest.approx((X.mean() - Y.mean()) / Y.mean())
    for end, side in zip(found.interval, ("greater", "less"), strict=True):
        assert stats.ttest_rel(X, (1 + end) * Y, alternative=side).pvalue == pytest.approx(0.05)


def test_runs_of_other_seeds_are_welchs():
    found = equivalence(by_seed(X[:6]), by_seed(Y, first=100), 0.1)
    worse = stats.ttest_ind(X[:6], 0.9 * Y, equal_var=False, alternative="greater").pvalue
    better = stats.ttest_ind(X[:6], 1.1 * Y, equal_var=False, alternative="less").pvalue
    assert (found.p_worse, found.p) == pytest.approx((worse, max(worse, better)))
    low, high = found.interval
    assert stats.ttest_ind(X[:6], (1 + low) * Y, equal_var=False, alternative="greater").pvalue == pytest.approx(0.05)
    assert stats.ttest_ind(X[:6], (1 + high) * Y, equal_var=False, alternative="less").pvalue == pytest.approx(0.05)


def test_a_published_example():
    """Moery and Calin-Jageman against Eskine, as in Lakens (2017): t(182) = -2.69, p = 0.004 within d = 0.43."""

    def sample(mean, std, n):
        drawn = rng().normal(size=n)
        return mean + std * (drawn - drawn.mean()) / drawn.std(ddof=1)

    mean = sum_of_means([sample(5.25, 0.95, 95), -sample(5.22, 0.83, 89)])
    upper = mean._replace(value=mean.value - 0.43 * math.sqrt((0.95**2 + 0.83**2) / 2))
    assert upper.value / upper.error == pytest.approx(-2.69, abs=0.005)
    assert (-upper).p_greater == pytest.approx(0.004, abs=5e-4)
    assert mean.freedom == pytest.approx(182, abs=1)
    assert mean.p_two_sided == pytest.approx(stats.ttest_ind_from_stats(5.25, 0.95, 95, 5.22, 0.83, 89, False).pvalue)


def test_tasks_weigh_the_same():
    """A calculation by hand: two tasks of 2 and 3 pairs, the variances of whose means are 1 and 1/3, over 2^2."""
    x, y = [{0: 99.0, 1: 101.0}, {0: 9.0, 1: 10.0, 2: 11.0}], [{0: 100.0, 1: 100.0}, {0: 10.0, 1: 10.0, 2: 10.0}]
    found = equivalence(x, y, 0.1)
    freedom = (1 + 1 / 3) ** 2 / (1 / 1 + (1 / 9) / 2)
    t = 0.1 * 55 / math.sqrt((1 + 1 / 3) / 4)
    assert found.p == pytest.approx(stats.t.sf(t, freedom))
    assert found.share == 0


def test_a_negative_reference():
    """Pendulum's returns: the margin is a share of the magnitude, and worse is further below."""
    up, down = equivalence(by_seed(X), by_seed(Y), 0.07), equivalence(by_seed(-X), by_seed(-Y), 0.07)
    assert down.p == pytest.approx(up.p)
    assert down.p_worse == pytest.approx(stats.ttest_rel(-X, -1.07 * Y, alternative="greater").pvalue)
    assert (-down.interval.high, -down.interval.low, -down.share) == pytest.approx((*up.interval, up.share))


def test_crashes():
    """A score of 0 is one; a crash without a score is never equivalent; nothing is compared with such an fp32."""
    most = [800, 810, 790, 805]
    assert equivalence(by_seed(most), by_seed([801, 808, 793, 801])).p < 0.01
    assert equivalence(by_seed([*most[:3], 0]), by_seed([801, 808, 793, 801])).p > 0.5
    for gone in (-math.inf, math.nan):
        found = equivalence(by_seed([*most[:3], gone]), by_seed(most))
        assert (found.p, found.p_worse) == (1, 1)
        assert math.isnan(found.share)
        assert all(map(math.isnan, equivalence(by_seed(most), by_seed([*most[:3], gone]))[2:]))


def test_little_data():
    one = equivalence(by_seed([100]), by_seed([100]))
    assert one.share == 0
    assert all(map(math.isnan, (*one.interval, one.p, one.p_worse)))
    assert math.isnan(equivalence(by_seed([1, -1]), by_seed([1, -1])).p)  # fp32's mean is 0
    same = equivalence(by_seed(Y), by_seed(Y), 1e-6)  # the same runs
    assert same.p < 0.05
    assert same.interval == pytest.approx((0, 0), abs=1e-9)
    assert equivalence(by_seed(Y), by_seed(Y), 0).p == 1
    without_spread = [equivalence(by_seed([x, x]), by_seed([100, 100]), 0.1).p for x in (89, 90, 91, 109, 111)]
    assert without_spread == [1, 1, 0, 0, 1]  # the margin itself is too far
    unclear = equivalence(by_seed([1, 2, 3]), by_seed([-50, 40, 30]))  # whether fp32's mean is above 0
    assert any(map(math.isnan, unclear.interval))
    assert unclear.p > 0.05


@pytest.mark.parametrize(
    ("p_difference", "p_equivalence", "said"),
    [
        (0.3, 0.01, "equivalent within 5 %"),
        (0.01, 0.3, "shown to differ"),
        (0.01, 0.01, "shown to differ, yet equivalent within 5 %"),
        (0.3, 0.3, "inconclusive"),
        (0.01, math.nan, "shown to differ"),
        (math.nan, math.nan, "cannot be said"),
        (math.nan, 1.0, "inconclusive"),
    ],
)
def test_answers(p_difference, p_equivalence, said):
    assert in_words(p_difference, p_equivalence, 0.05) == said
    assert "within 2.5 %" in in_words(1, 0, 0.025)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=2, max_size=6),
    st.floats(0.001, 0.5),
    st.booleans(),
)
def test_laws(pairs, margin, paired):
    """Equivalent where the interval lies within the margin; a wider margin is no harder; units do not matter."""
    x, y = zip(*pairs, strict=True)
    first = 0 if paired else 50
    found = equivalence(by_seed(x), by_seed(y, first), margin)
    inside = -margin < found.interval.low and found.interval.high < margin
    edge = min(abs(found.interval.low + margin), abs(found.interval.high - margin))
    assert inside == (found.p < 0.05) or edge < 1e-6
    assert equivalence(by_seed(x), by_seed(y, first), 2 * margin).p <= found.p + 1e-9 or found.p > 0.05
    scaled = equivalence(by_seed(np.multiply(x, 8)), by_seed(np.multiply(y, 8), first), margin)
    assert scaled.p == pytest.approx(found.p)


NORMAL, SKEWED, FAILING = "normal", "skewed", "failing"


def drawn(kind, generator, size):
    """Returns of mean 850: normal, skewed and bounded by 1000, or with one run in ten that learns nothing."""
    if kind == NORMAL:
        return generator.normal(850, 40, size)
    if kind == SKEWED:
        return 1000 * generator.beta(51, 9, size)
    return np.where(generator.random(size) < 0.1, 0, generator.normal(850 / 0.9, 20, size))


@pytest.mark.parametrize("kind", [NORMAL, SKEWED, FAILING])
@pytest.mark.parametrize("runs", [4, 10, 20])
def test_error_rate(kind, runs):
    """Worse by just the margin: called equivalent, or enough bits, in no more than 5 % of experiments.

    400 experiments: 8 % would be seen in one of 250 if the rate were 5 %.
    """
    generator, tries = rng(runs), 400
    wrong = not_worse = differs = 0
    for _ in range(tries):
        fp32, same = drawn(kind, generator, runs), drawn(kind, generator, runs)
        found = equivalence(by_seed(same - 0.05 * 850), by_seed(fp32))
        wrong += found.p < 0.05
        not_worse += found.p_worse < 0.05
        differs += sum_of_means([same - fp32]).p_two_sided < 0.05
    assert wrong / tries <= 0.08
    assert not_worse / tries <= 0.08
    assert differs / tries <= 0.08


@pytest.mark.parametrize("runs", [4, 10, 20])
def test_a_rare_failure_is_not_seen(runs):
    """What docs/reading.md warns of: fp32 never fails, the format in 1 run of 20, which costs just the margin."""
    generator, tries = rng(), 200
    wrong = 0
    for _ in range(tries):
        fp32, same = generator.normal(850, 20, runs), generator.normal(850, 20, runs)
        wrong += equivalence(by_seed(np.where(generator.random(runs) < 0.05, 0, same)), by_seed(fp32)).p < 0.05
    assert wrong / tries > 0.25
