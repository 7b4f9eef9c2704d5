"""Digits against figures that others published: the significantdigits package, and Fuzzy PyTorch's harmonic series."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import roundoff
from roundoff.simulate.significance.digits import certain_digits, significant_digits
from roundoff.simulate.significance.rounding import Randomness, RandomRounding


def population(samples, probability=0.95, confidence=0.95):
    """Our bound for each element, with the deviation of significantdigits, which divides by n and not n - 1."""
    count = len(samples)
    shift = 0.5 * math.log10(count / (count - 1))
    return [certain_digits(x + shift, count, probability, confidence) for x in significant_digits(samples)]


def gaussian(count):
    return 3 + 1e-3 * np.random.default_rng(1).standard_normal((count, 3))


# significant_digits(gaussian(n), reference=mean, probability=p, confidence=c, basis=10) of significantdigits 0.6.0
RECORDED = (
    (3, 0.95, 0.95, (2.5580771043, 3.2486168512, 3.6995898783)),
    (8, 0.95, 0.95, (3.0846441817, 3.1487323813, 3.2248304201)),
    (8, 0.90, 0.80, (3.2729699554, 3.3370581551, 3.4131561939)),
    (30, 0.99, 0.95, (2.9714603298, 2.9830182856, 3.115238106)),
)


def test_bounds_are_those_of_significantdigits():
    """The figures that its version 0.6.0 gave, and its published example of Kahan's linear system."""
    for count, probability, confidence, theirs in RECORDED:
        assert population(gaussian(count), probability, confidence) == pytest.approx(theirs, abs=1e-9)
    # 10,000 runs in Verificarlo of Cramer's rule: 27.0946 bits, in tests/test_cramer.py (CNH, relative) of
    # github.com/verificarlo/significantdigits at e0c6edc; the mean and deviation are those of its data/cramer-x0-10000.
    runs = 1.99999999908671 + 5.342739375763122e-9 * np.resize([1.0, -1.0], (10_000, 1))
    (digits,) = population(runs, 0.99, 0.95)
    assert digits / math.log10(2) == pytest.approx(27.094599370144074, abs=1e-5)


def test_bounds_are_those_of_the_installed_significantdigits():
    theirs = pytest.importorskip("significantdigits")
    for count in (2, 3, 8, 30):
        for probability, confidence in ((0.95, 0.95), (0.99, 0.95), (0.9, 0.8)):
            x = gaussian(count)
            how = {"reference": x.mean(0), "probability": probability, "confidence": confidence, "basis": 10}
            found = theirs.significant_digits(x, method="cnh", error="relative", **how)
            assert population(x, probability, confidence) == pytest.approx(found.tolist(), abs=1e-9)


# Means and deviations of float32 sums of 1/k, in experiments/harmonic/harmonic-numerics.csv of
# github.com/big-data-lab-team/fuzzy-pytorch at 4670875 ("Fuzzy PyTorch", TMLR 2026, figure 1), which has three runs of
# each of two builds. Here are averages over tools and builds; deviations divide by n - 1. Its Verificarlo runs perturb
# both operands and results, and PRISM's up-down mode also moves exact results; neither is one of our modes.
TERMS = (100, 126, 159, 200, 253, 319, 403, 509)
PUBLISHED = {
    Randomness.RESULTS: (  # stochastic rounding of PRISM, Verrou and the library SR
        18,
        (5.18737806, 5.41746028, 5.64926132, 5.87803078, 6.11258038, 6.34397321, 6.57739316, 6.81064479),
        (1.01e-6, 2.46e-6, 2.09e-6, 2.11e-6, 2.51e-6, 2.22e-6, 3.51e-6, 3.18e-6),
    ),
    Randomness.UP_OR_DOWN: (  # CESTAC of Verrou
        6,
        (5.18737984, 5.41746529, 5.64926362, 5.87803419, 6.11258809, 6.34397745, 6.57739456, 6.81065543),
        (3.02e-6, 1.20e-6, 1.96e-6, 1.79e-6, 2.27e-6, 2.94e-6, 4.30e-6, 4.49e-6),
    ),
}


def harmonic_sums(copies=500):
    """Partial sums, each with independent roundings in every copy."""
    total, one, found = torch.zeros(copies), torch.ones(copies), []
    for k in range(1, TERMS[-1] + 1):
        total = total + one / k
        if k in TERMS:
            found.append(total)
    return torch.stack(found, 1)


def test_digits_of_the_harmonic_series_are_those_of_fuzzy_pytorch():
    for randomness, (runs, means, deviations) in PUBLISHED.items():
        with roundoff.simulate("fp32", watchers=[RandomRounding(randomness, 0)]):
            samples = harmonic_sums().double().numpy()
        digits = significant_digits(samples)
        freedom = runs * 2 // 3
        low, high = (np.sqrt(freedom / chi2.ppf(p, freedom)) for p in (0.9995, 0.0005))
        for mine, mean, deviation in zip(digits, means, deviations, strict=True):
            published = math.log10(mean / deviation)
            assert published - math.log10(high) <= mine <= published - math.log10(low), (randomness, mine, published)
        # All lengths together: the published variances, in units of ours, have the mean 1 within their confidence.
        ratio = np.mean((np.array(deviations) / samples.std(0, ddof=1)) ** 2)
        freedom *= len(TERMS)
        assert chi2.ppf(0.005, freedom) < freedom * ratio < chi2.ppf(0.995, freedom), (randomness, ratio)
        # Random rounding has no bias, and up or down has one.
        scores = (np.array(means) - samples.mean(0)) / samples.std(0, ddof=1) * math.sqrt(runs)
        assert (scores**2).sum() < chi2.ppf(0.999, len(TERMS)), (randomness, scores)
