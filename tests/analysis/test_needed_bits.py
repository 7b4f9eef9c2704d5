"""The smallest width that is not worse than fp32: by hand, by simulation, and where nothing can be said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from roundoff.analysis.tables.needed_table import needed_bits


def rng(seed=0):
    return np.random.default_rng(seed)


def by_seed(*scores, first=0):
    return [{first + i: float(score) for i, score in enumerate(scores)}]


FP32 = by_seed(800, 810, 790, 800)
GOOD = by_seed(790, 800, 795, 780)
BAD = by_seed(300, 500, 400, 600)


def test_the_smallest_width_of_an_unbroken_row_of_good_ones():
    found = needed_bits(FP32, {10: GOOD, 7: GOOD, 5: BAD, 4: GOOD})
    assert (found.bits, found.by_means) == (7, 7)  # 4 is good by luck: 5 is not
    pairs = [stats.ttest_rel(x, 0.95 * np.array([800, 810, 790, 800]), alternative="greater").pvalue
             for x in ([790, 800, 795, 780], [300, 500, 400, 600])]  # fmt: skip
    good, bad = (1 - p for p in pairs)
    assert found.confidences == pytest.approx({10: good, 7: good, 5: bad, 4: bad})
    assert found.confidence == found.confidences[7] > 0.95
    assert found.paired
    assert found.reason == ""
    nothing = needed_bits(FP32, {10: BAD, 7: GOOD})
    assert (nothing.bits, nothing.by_means, nothing.confidence) == (None, None, pytest.approx(bad))


def test_the_margin_is_a_fraction_of_fp32():
    assert needed_bits(by_seed(100, 100), {5: by_seed(91, 91)}, margin=0.1).bits == 5
    assert needed_bits(by_seed(100, 100), {5: by_seed(89, 89)}, margin=0.1).bits is None
    assert needed_bits(by_seed(-100, -100), {5: by_seed(-109, -109)}, margin=0.1).bits == 5  # Pendulum
    assert needed_bits(by_seed(-100, -100), {5: by_seed(-111, -111)}, margin=0.1).bits is None


def test_means_at_the_margin_are_no_evidence():
    tie = needed_bits(by_seed(100, 100), {5: by_seed(90, 90)}, margin=0.1)
    assert (tie.bits, tie.by_means, tie.confidence) == (None, 5, 0)


def test_runs_of_other_seeds_are_compared_unpaired():
    found = needed_bits(FP32, {10: by_seed(790, 800, 795, 780, first=5)})
    assert not found.paired
    scores = np.array([800, 810, 790, 800])
    p = stats.ttest_ind([790, 800, 795, 780], 0.95 * scores, equal_var=False, alternative="greater").pvalue
    assert found.confidence == pytest.approx(1 - p)


def test_little_data():
    one = needed_bits(by_seed(100), {5: by_seed(99)})
    assert (one.bits, one.by_means, one.runs) == (None, 5, 1)
    assert math.isnan(one.confidence)
    assert "one seed" in one.reason
    gap = needed_bits(FP32, {10: GOOD, 7: by_seed(800), 5: GOOD})  # a sweep that is not finished
    assert (gap.bits, gap.by_means, gap.runs) == (10, 5, 4)
    assert gap.confidence > 0.95
    assert [math.isnan(share) for share in gap.confidences.values()] == [False, True, True]
    assert needed_bits(by_seed(0, 0), {5: by_seed(0, 0)}).reason == "fp32 itself scores 0"
    assert needed_bits(FP32, {}).reason == "nothing to compare"


def test_it_is_seldom_wrong():
    """A width that is worse by just the margin is called good in about 5 % of experiments, however many follow."""
    wrong = 0
    for seed in range(200):
        data = rng(seed)
        fp32, *narrow = data.normal(1000, 60, 4), *(data.normal(900, 60, 4) for _ in range(3))
        widths = dict(zip((7, 6, 5), (by_seed(*scores) for scores in narrow), strict=True))
        wrong += needed_bits(by_seed(*fp32), widths, margin=0.1).bits is not None
    assert wrong / 200 < 0.1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.floats(1, 1000), min_size=3, max_size=3), min_size=2, max_size=4), st.floats(0, 0.5))
def test_laws(scores, margin):
    widths = dict(zip((10, 7, 5), (by_seed(*row) for row in scores[1:]), strict=False))
    found = needed_bits(by_seed(*scores[0]), widths, margin=margin)
    shares = list(found.confidences.values())
    assert found.reason == ""
    assert shares == sorted(shares, reverse=True)
    assert (found.bits is None) == (shares[0] <= 0.95)
    assert found.bits is None or found.by_means <= found.bits
