"""Our faster tolerance is the suite's, bit for bit, and only our tasks have it."""

import itertools

import numpy as np
import pytest
from dm_control import suite
from dm_control.utils import rewards

from roundoff.agents.environments.control_suite import load_task, tolerance

BOUNDS = [(0, 0), (-0.25, 0.25), (1.2, float("inf")), (-float("inf"), 0.3)]
NUMBERS = [0.0, -0.0, 0.25, -3.3, 1.7, np.nan, np.inf, *np.random.default_rng(0).normal(scale=3, size=20)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of infinities
@pytest.mark.parametrize(
    "sigmoid", ["gaussian", "hyperbolic", "long_tail", "reciprocal", "cosine", "linear", "quadratic", "tanh_squared"]
)
def test_same_bits(sigmoid):
    for bounds, margin, at_margin, x in itertools.product(BOUNDS, [0, 0.7, 5], [0.1, 0.6], NUMBERS):
        arrays = (np.array([x]), np.array(x), np.array([[x]]), np.float32([x]), np.array([x, 1]))
        for given in (float(x), np.float64(x), *arrays):
            mine, theirs = (
                np.asarray(compute(given, bounds, margin, sigmoid, at_margin))
                for compute in (tolerance, rewards.tolerance)
            )
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            assert np.nan_to_num(mine, nan=-1).tobytes() == np.nan_to_num(theirs, nan=-1).tobytes()


def test_mistakes_are_those_of_the_suite():
    with pytest.raises(ValueError, match="Lower bound"):
        tolerance(0.0, (1, 0))
    with pytest.raises(ValueError, match="margin"):
        tolerance(0.0, margin=-1)
    with pytest.raises(ValueError, match="value_at_1"):
        tolerance(2.0, margin=1, value_at_margin=0)


def test_the_suite_itself_is_untouched():
    task = load_task("cartpole", "swingup").task
    assert type(task).get_reward.__globals__["rewards"].tolerance is tolerance
    plain = suite.load("cartpole", "swingup").task
    assert type(plain).get_reward.__globals__["rewards"] is rewards
