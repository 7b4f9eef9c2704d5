"""The smallest width that is not worse than fp32: by hand, by simulation, and where nothing can be said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.analysis.statistics.needed_bits import needed_bits


def rng(seed=0):
    return np.random.default_rng(seed)


def by_seed(*scores, first=0):
    return [{first + i: float(score) for i, score in enumerate(scores)}]


FP32 = by_seed(800, 810, 790, 800)
GOOD = by_seed(790, 800, 795, 780)
BAD = by_seed(300, 500, 400, 600)


def test_the_smallest_width_of_an_unbroken_row_of_good_ones():
    found = needed_bits(FP32, {10: GOOD, 7: GOOD, 5: BAD, 4: GOOD}, rng())
    assert (found.bits, found.by_means, found.confidence) == (7, 7, 1)  # 4 is good by luck: 5 is not
    assert found.confidences == {10: 1, 7: 1, 5: 0, 4: 0}
    assert found.paired
    assert found.reason == ""
    nothing = needed_bits(FP32, {10: BAD, 7: GOOD}, rng())
    assert (nothing.bits, nothing.by_means, nothing.confidence) == (None, None, 0)


def test_the_margin_is_a_fraction_of_fp32():
    assert needed_bits(by_seed(100, 100), {5: by_seed(90, 90)}, rng(), margin=0.1).bits == 5
    assert needed_bits(by_seed(100, 100), {5: by_seed(89, 89)}, rng(), margin=0.1).bits is None
    assert needed_bits(by_seed(-100, -100), {5: by_seed(-109, -109)}, rng(), margin=0.1).bits == 5  # Pendulum
    assert needed_bits(by_seed(-100, -100), {5: by_seed(-111, -111)}, rng(), margin=0.1).bits is None


def test_the_confidence_is_the_share_of_replicates():
    """Two pairs, 0 and -20 apart, margin 10: only the replicate of twice the bad pair (1 in 4) is worse."""
    found = needed_bits(by_seed(100, 100), {5: by_seed(100, 80)}, rng(), margin=0.1)
    assert found.confidences[5] == pytest.approx(0.75, abs=0.02)
    assert (found.bits, found.by_means) == (None, 5)
    # unpaired, and all widths at once: 10 is good in 3/4, 5 also and independently
    other = needed_bits(
        by_seed(100, 100), {10: by_seed(100, 80, first=5), 5: by_seed(100, 80, first=9)}, rng(), margin=0.1
    )
    assert not other.paired
    assert other.confidences == pytest.approx({10: 0.75, 5: 0.5625}, abs=0.02)


def test_little_data():
    one = needed_bits(by_seed(100), {5: by_seed(99)}, rng())
    assert (one.bits, one.by_means, one.runs) == (None, 5, 1)
    assert math.isnan(one.confidence)
    assert "one seed" in one.reason
    gap = needed_bits(FP32, {10: GOOD, 7: by_seed(800), 5: GOOD}, rng())  # a sweep that is not finished
    assert (gap.bits, gap.by_means, gap.confidence, gap.runs) == (10, 5, 1, 4)
    assert [math.isnan(share) for share in gap.confidences.values()] == [False, True, True]
    assert needed_bits(by_seed(0, 0), {5: by_seed(0, 0)}, rng()).reason == "fp32 itself scores 0"
    assert needed_bits(FP32, {}, rng()).reason == "nothing to compare"


def test_it_is_seldom_wrong():
    """A width that is worse by a little more than the margin is called good in about 5 % of experiments, not many."""
    wrong = 0
    for seed in range(200):
        data = rng(seed)
        fp32, narrow = data.normal(1000, 60, 10), data.normal(899, 60, 10)
        wrong += needed_bits(by_seed(*fp32), {5: by_seed(*narrow)}, rng(seed), replicates=500).bits == 5
    assert wrong / 200 < 0.12


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1000), min_size=3, max_size=3), min_size=2, max_size=4), st.floats(0, 0.5))
def test_laws(scores, margin):
    widths = dict(zip((10, 7, 5), (by_seed(*row) for row in scores[1:]), strict=False))
    found = needed_bits(by_seed(*scores[0]), widths, rng(), margin=margin, replicates=200)
    shares = list(found.confidences.values())
    if found.reason:
        assert found.bits is None
    else:
        assert shares == sorted(shares, reverse=True)
        assert found.bits is None or found.confidence >= 0.95
        looser = needed_bits(by_seed(*scores[0]), widths, rng(), margin=margin + 0.2, replicates=200)
        assert all(looser.confidences[m] >= share for m, share in found.confidences.items())
