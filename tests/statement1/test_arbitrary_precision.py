"""Each part of the fixes against arbitrary precision: values and gradients in float64, and error bounds in e5m10.

u is the unit roundoff, 2^-53 in float64 and 2^-11 in e5m10. Every bound is of the textbook kind, roundings counted
along the formula: the tests say how errors behave, and not only that they are small.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from roundoff.agents.models.normal_fix import normal_log_prob, normal_log_prob_naive
from roundoff.agents.models.softplus_fix import softplus, softplus_naive
from roundoff.formats import round
from roundoff.remedies import Adam, HAdam, KahanEMA, PlainEMA, kahan_add_
from roundoff.simulate import simulate

HALF = "e5m10"
U64, U16 = 2.0**-53, 2.0**-11
TINY16 = 2.0**-24  # the smallest positive number of e5m10
LARGEST16 = 65504.0


@pytest.fixture(autouse=True)
def precise():
    with mpmath.workprec(1200):  # exp(-700) beside 700
        yield


def in_half(*values):
    return [float(round(torch.tensor(v), HALF)) for v in values]


def evaluate(function, *arguments, dtype=torch.float64):
    """The value, and the derivative by each argument, at numbers."""
    tensors = [torch.tensor([a], dtype=dtype, requires_grad=True) for a in arguments]
    y = function(*tensors)
    # Not 1, or a gradient that is not passed on would look right.
    gradients = torch.autograd.grad(y, tensors, torch.full_like(y, -1.0))
    return y.item(), [-g.item() for g in gradients]


def evaluate_in_half(function, *arguments, granularity="kernel"):
    with simulate(HALF, granularity=granularity):
        return evaluate(function, *arguments, dtype=torch.float32)


# Softplus


def exact_softplus(x):
    return mpmath.log1p(mpmath.exp(mpf(x))), 1 / (1 + mpmath.exp(-mpf(x)))


@given(st.floats(-700, 700), st.floats(1, 700))
@example(10.5, 10.0)  # a little above the branch, where numbers drawn at random rarely are
def test_softplus_in_float64(x, threshold):
    value, (slope,) = evaluate(lambda t: softplus(t, threshold), x)
    exact, exact_slope = exact_softplus(x)
    if x > threshold:
        # The branch: equal up to exp(-K), and from below, by exactly log(1 + exp(-x)). In value and in slope.
        assert value == x
        assert slope == 1
        assert 0 < exact - mpf(value) < mpmath.exp(-mpf(threshold))
        assert 0 < 1 - exact_slope < mpmath.exp(-mpf(threshold))
    else:
        assert abs(mpf(value) - exact) <= 4 * U64 * exact
        assert abs(mpf(slope) - exact_slope) <= 4 * U64 * exact_slope


@given(st.floats(-700, 700))
def test_naive_softplus_in_float64(x):
    value, (slope,) = evaluate(softplus_naive, x)
    exact, exact_slope = exact_softplus(x)
    # 1 + exp(x) is rounded: an absolute error. The fix has a relative one.
    assert abs(mpf(value) - exact) <= 2 * U64 * (1 + exact)
    assert abs(mpf(slope) - exact_slope) <= 4 * U64 * exact_slope


@pytest.mark.parametrize("granularity", ["kernel", "primitive"])
@given(x=st.floats(-60000, 60000, width=16))
def test_softplus_in_half(granularity, x):
    value, (slope,) = evaluate_in_half(lambda t: softplus(t, 10.0), x, granularity=granularity)
    exact, exact_slope = exact_softplus(x)
    if x > 10:
        assert value == x
        assert slope == 1
        assert abs(mpf(value) - exact) < math.exp(-10)
    else:
        # exp, log1p: two roundings (three by primitives: 1 + exp, with an absolute error); the slope has one more.
        absolute = TINY16 if granularity == "kernel" else 2 * U16
        assert abs(mpf(value) - exact) <= 2.5 * U16 * exact + absolute
        assert abs(mpf(slope) - exact_slope) <= 3.5 * U16 * exact_slope + TINY16


@given(x=st.floats(-60000, 60000, width=16))
def test_naive_softplus_in_half(x):
    value, (slope,) = evaluate_in_half(softplus_naive, x)
    exact, exact_slope = exact_softplus(x)
    if x > math.log(LARGEST16):
        assert value == math.inf
        assert math.isnan(slope)
    else:
        assert abs(mpf(value) - exact) <= 3 * U16 * (1 + exact)
        assert abs(mpf(slope) - exact_slope) <= 4 * U16 * exact_slope + 2 * TINY16


# The normal log-probability


def exact_normal(x, mean, sigma, log_sigma):
    """The value, its derivatives by x, mean, sigma, log sigma (taken for independent), and the squared quotient."""
    q = (mpf(x) - mpf(mean)) / mpf(sigma)
    value = -q * q / 2 - mpf(log_sigma) - mpmath.log(2 * mpmath.pi) / 2
    return value, [-q / mpf(sigma), q / mpf(sigma), q * q / mpf(sigma), mpf(-1)], q * q


@pytest.mark.parametrize("function", [normal_log_prob, normal_log_prob_naive])
@given(mean=st.floats(-10, 10), z=st.floats(-30, 30), log_sigma=st.floats(-20, 10), log_sigma_given=st.floats(-20, 10))
def test_normal_log_prob_in_float64(function, mean, z, log_sigma, log_sigma_given):
    sigma = math.exp(log_sigma)
    x = mean + z * sigma
    value, gradients = evaluate(function, x, mean, sigma, log_sigma_given)
    exact, exact_gradients, square = exact_normal(x, mean, sigma, log_sigma_given)
    # 5 roundings of the square, and 3 of the sum, whose terms may cancel.
    assert abs(mpf(value) - exact) <= 6 * U64 * (square / 2 + abs(log_sigma_given) + 2)
    for got, expected in zip(gradients, exact_gradients, strict=True):
        assert abs(mpf(got) - expected) <= 10 * U64 * abs(expected) + 1e-300


samples_in_half = given(
    mean=st.floats(-4, 4, width=16), z=st.floats(-4, 4, width=16), log_sigma=st.floats(-9, 2, width=16)
)


@pytest.mark.parametrize("granularity", ["kernel", "primitive"])
@samples_in_half
def test_normal_log_prob_in_half(granularity, mean, z, log_sigma):
    """However small sigma is: the error is that of the roundings, given the numbers that come in."""
    (sigma,) = in_half(math.exp(log_sigma))
    (x,) = in_half(mean + z * sigma)
    value, gradients = evaluate_in_half(normal_log_prob, x, mean, sigma, log_sigma, granularity=granularity)
    exact, exact_gradients, square = exact_normal(x, mean, sigma, log_sigma)
    # x was rounded: with mean 4 and sigma 1e-4 it is up to sixteen sigma from the mean, and so be it.
    assert abs(mpf(value) - exact) <= 6.5 * U16 * (square / 2 + abs(log_sigma) + 2)
    for got, expected in zip(gradients[:2], exact_gradients[:2], strict=True):
        assume(abs(expected) < LARGEST16 / 2)
        # The quotient can be subnormal before it is divided by sigma, and the result after.
        assert abs(mpf(got) - expected) <= 6 * U16 * abs(expected) + TINY16 / sigma + TINY16


def test_naive_normal_log_prob_in_half_has_no_such_bound():
    worst = {}
    for log_sigma in (0.0, -3.0, -7.3125, -9.0):
        (sigma,) = in_half(math.exp(log_sigma))
        errors = []
        for x in in_half(*(z / 8 * sigma for z in range(4, 33))):
            exact, _, square = exact_normal(x, 0.0, sigma, log_sigma)
            unit = U16 * (square / 2 + abs(log_sigma) + 2)
            errors.append(
                [
                    float(abs(mpf(evaluate_in_half(function, x, 0.0, sigma, log_sigma)[0]) - exact) / unit)
                    for function in (normal_log_prob, normal_log_prob_naive)
                ]
            )
        worst[log_sigma] = torch.tensor(errors).amax(0).tolist()
    assert all(fixed < 6.5 for fixed, _ in worst.values())
    naive = {log_sigma: error for log_sigma, (_, error) in worst.items()}
    assert naive[0.0] < 6.5
    assert naive[-3.0] < 6.5
    assert naive[-7.3125] > 20  # sigma^2 is subnormal, with three bits left
    assert not math.isfinite(naive[-9.0])


# Adam and hAdam


def exact_adam(gradients, start, *, lr, betas, eps):
    """Algorithm 1 by exact numbers: v = w^2, theta, and the sizes that errors are relative to.

    Returns:
        v; theta; the sum over the steps t of (rate * mean absolute gradient / denominator) * t, and of absolute theta.
    """
    beta1, beta2 = mpf(betas[0]), mpf(betas[1])
    m = v = absolute = moved = held = mpf(0)
    theta = mpf(start)
    for t, gradient in enumerate(gradients, start=1):
        g = mpf(gradient)
        m = beta1 * m + (1 - beta1) * g
        absolute = beta1 * absolute + (1 - beta1) * abs(g)
        v = beta2 * v + (1 - beta2) * g * g
        denominator = mpmath.sqrt(v / (1 - beta2**t)) + mpf(eps)
        rate = mpf(lr) / (1 - beta1**t)
        if denominator:
            theta -= rate * m / denominator
            moved += rate * absolute / denominator * t
        held += abs(theta)
    return v, theta, moved, held


def run_optimizer(optimizer, gradients, start, scale=1.0, dtype=torch.float64, **options):
    p = torch.tensor([start], dtype=dtype)
    made = optimizer([p], **options)
    now = 1.0
    for step, g in enumerate(gradients):
        if step == len(gradients) // 2 and scale != 1:  # with numbers in the buffers, if there are two steps
            made.rescale_(scale)
            now = scale
        p.grad = torch.tensor([g], dtype=dtype) * now
        made.step()
    return p.item(), made.state[p]


both = pytest.mark.parametrize("optimizer", [Adam, HAdam])
gradient_lists = st.lists(st.floats(-1, 1).filter(lambda g: g == 0 or abs(g) > 1e-30), min_size=1, max_size=30)
decays = st.tuples(st.floats(0, 0.95), st.floats(0.5, 0.9999))


@both
@settings(max_examples=50)
@given(gradients=gradient_lists, betas=decays, exponent=st.integers(-100, 100))
def test_second_moments_in_float64(optimizer, gradients, betas, exponent):
    gradients = [math.ldexp(g, exponent) for g in gradients]
    v, *_ = exact_adam(gradients, 0, lr=1, betas=betas, eps=1)
    _, state = run_optimizer(optimizer, gradients, 0.0, betas=betas)
    exact = mpmath.sqrt(v) if optimizer is HAdam else v
    # Each step: the decay (rounded itself, for hAdam), the product, and the hypot or the addition; 1 - b2 is one more.
    units = 4 * len(gradients) + 3 + 1 / (1 - betas[1])
    assert abs(mpf(state["second"].item()) - exact) <= units * U64 * exact


@settings(max_examples=40)
@given(gradients=gradient_lists.filter(any), betas=decays, sign=st.sampled_from([-1, 1]))
def test_hadams_second_moment_has_the_range_of_the_gradient(gradients, betas, sign):
    """Over all of float64's range; Adam's square has half of the exponents."""
    gradients = [math.ldexp(g, 900 * sign) for g in gradients]
    v, *_ = exact_adam(gradients, 0, lr=1, betas=betas, eps=1)
    _, state = run_optimizer(HAdam, gradients, 0.0, betas=betas)
    units = 4 * len(gradients) + 3 + 1 / (1 - betas[1])
    assert abs(mpf(state["second"].item()) - mpmath.sqrt(v)) <= units * U64 * mpmath.sqrt(v)
    assert run_optimizer(Adam, gradients, 0.0, betas=betas)[1]["second"].item() in (0, math.inf)


@both
@pytest.mark.parametrize("kahan", [False, True])
@settings(max_examples=25)
@given(
    gradients=gradient_lists,
    betas=decays,
    eps=st.floats(-8, -1).map(lambda x: 10.0**x),
    lr=st.floats(-5, -1).map(lambda x: 10.0**x),
    start=st.floats(-1, 1),
    scale=st.sampled_from([1.0, 2.0**13, 1e4, 2.0**-20, 3e-7]),
)
def test_algorithm_1_in_float64_at_any_loss_scale(optimizer, kahan, gradients, betas, eps, lr, start, scale):
    """Compound scaling by any gamma: the parameters are those of exact Adam without, eps taken as Algorithm 1 does."""
    _, exact, moved, held = exact_adam(gradients, start, lr=lr, betas=betas, eps=eps)
    theta, _ = run_optimizer(optimizer, gradients, start, scale, lr=lr, betas=betas, eps=eps, kahan=kahan)
    units = 12 + 2 / (1 - betas[0]) + 2 / (1 - betas[1])  # what 1 - b1 and 1 - b2 magnify
    sums = 3 * (abs(mpf(start)) + abs(exact)) if kahan else held
    assert abs(mpf(theta) - exact) <= U64 * (units * moved + sums) + 1e-300


@both
def test_kahan_gradients_keep_steps_far_below_an_ulp(optimizer):
    options = {"lr": 2.0**-56, "betas": (0.9, 0.999), "eps": 1e-8}
    _, exact, *_ = exact_adam([1.0] * 100, 1, **options)
    assert run_optimizer(optimizer, [1.0] * 100, 1.0, **options)[0] == 1
    kahan, _ = run_optimizer(optimizer, [1.0] * 100, 1.0, kahan=True, **options)
    assert abs(mpf(kahan) - exact) <= 3 * U64  # of a way of 12


@both
@settings(max_examples=40)
@given(gradients=gradient_lists, exponent=st.integers(-40, 40), betas=decays)
def test_compound_scaling_by_a_power_of_two_changes_no_bit(optimizer, gradients, exponent, betas):
    options = {"lr": 1e-3, "eps": 1e-8, "betas": betas}
    theta, _ = run_optimizer(optimizer, gradients, 0.5, **options)
    scaled, _ = run_optimizer(optimizer, gradients, 0.5, 2.0**exponent, **options)
    assert scaled == theta


@settings(max_examples=25)
@given(gradients=st.lists(st.floats(2.0**-10, 1, width=16), min_size=1, max_size=30), exponent=st.integers(-10, 10))
def test_hadams_second_moment_in_half(gradients, exponent):
    gradients = [math.ldexp(g, exponent) for g in gradients]
    v, *_ = exact_adam(gradients, 0, lr=1, betas=(0.9, 0.999), eps=1)
    with simulate(HALF):
        _, state = run_optimizer(HAdam, gradients, 0.0, dtype=torch.float32)
    # Three roundings a step, subnormal below 2^-14. A walk, so far less than their sum as a rule.
    t = len(gradients)
    assert abs(mpf(state["second"].item()) - mpmath.sqrt(v)) <= 3 * t * (U16 * mpmath.sqrt(v) + TINY16)


def test_adams_second_moment_in_half_is_zero_where_hadams_is_right():
    for g in (2e-3, 1e-3, 1e-4):
        with simulate(HALF):
            (_, adam), (_, hadam) = (
                run_optimizer(o, [g] * 20, 0.0, dtype=torch.float32, eps=1e-3) for o in (Adam, HAdam)
            )
        v, *_ = exact_adam([g] * 20, 0, lr=1, betas=(0.9, 0.999), eps=1)
        assert adam["second"].item() == 0
        assert hadam["second"].item() == pytest.approx(float(mpmath.sqrt(v)), rel=0.03, abs=40 * TINY16)


# Kahan sums


def kahan_sum(values, dtype):
    total, compensation = torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    for value in values:
        kahan_add_(total, compensation, torch.tensor([value], dtype=dtype))
    return total.item(), compensation.item()


@settings(max_examples=50)
@given(st.lists(st.floats(-1e10, 1e10).filter(lambda x: x == 0 or abs(x) > 1e-200), min_size=1, max_size=200))
def test_kahan_sums_in_float64(values):
    total, compensation = kahan_sum(values, torch.float64)
    exact = sum(map(Fraction, values))
    magnitude = sum(abs(Fraction(v)) for v in values)
    n = len(values)
    # Knuth's bound; what is still to be subtracted makes it no worse.
    bound = (2 * Fraction(U64) + 2 * n * Fraction(U64) ** 2) * magnitude
    assert abs(Fraction(total) - exact) <= bound
    assert abs(Fraction(total) - Fraction(compensation) - exact) <= bound


@settings(max_examples=40)
@given(st.integers(2, 10), st.integers(0, 10**6), st.integers(1, 200))
def test_kahan_sums_of_small_numbers_in_few_bits(m, seed, n):
    """The error is two units of the sum, however many there are; a plain sum stops growing."""
    fmt = f"e5m{m}"
    generator = torch.Generator().manual_seed(seed)
    values = round(torch.rand(n, generator=generator) * 2.0**-m, fmt).tolist()
    with simulate(fmt):
        total, _ = kahan_sum([1.0, *values], torch.float32)
    exact = 1 + sum(map(Fraction, values))
    u = Fraction(2) ** -(m + 1)
    assert abs(Fraction(total) - exact) <= (2 * u + 2 * n * u * u) * exact


# Moving averages


def exact_average(start, sources, tau):
    average = Fraction(start)
    for source in sources:
        average += Fraction(tau) * (Fraction(source) - average)
    return average


def run_average(make, start, sources, dtype):
    average = make(torch.tensor([start], dtype=dtype))
    for source in sources:
        average.update_(torch.tensor([source], dtype=dtype))
    return average


numbers = st.floats(-1, 1).filter(lambda x: x == 0 or abs(x) > 1e-100)


@given(
    start=numbers,
    sources=st.lists(numbers, min_size=1, max_size=40),
    tau=st.floats(1e-3, 1),
    scale=st.sampled_from([1.0, 100.0, 1e4, 2.0**13]),
)
def test_averages_in_float64(start, sources, tau, scale):
    exact = exact_average(start, sources, tau)
    kahan = run_average(lambda a: KahanEMA(a, tau, scale=scale), start, sources, torch.float64).average.item()
    plain = run_average(lambda a: PlainEMA(a, tau), start, sources, torch.float64).average.item()
    largest = max(map(abs, [start, *sources]))
    # A step's error is tau times some units, and the average forgets: a bound without the number of steps.
    assert abs(Fraction(kahan) - exact) <= 12 * Fraction(U64) * Fraction(largest)
    # Here each step adds a unit that is not multiplied by tau.
    assert abs(Fraction(plain) - exact) <= 4 * len(sources) * Fraction(U64) * Fraction(largest)


@settings(max_examples=25)
@given(
    start=st.floats(-16, 16, width=16),  # beyond 4, scale and buffers are halved: when it is made, or on the way
    source=st.floats(-16, 16, width=16),
    steps=st.integers(1, 300),
    tau=st.sampled_from([0.005, 0.01, 0.05]),
)
def test_kahan_average_in_half(start, source, steps, tau):
    with simulate(HALF):
        average = run_average(
            lambda a: KahanEMA(a, tau, scale=2.0**13, largest=LARGEST16), start, [source] * steps, torch.float32
        )
    exact = exact_average(start, [source] * steps, tau)
    largest = max(abs(start), abs(source))
    assert abs(Fraction(average.average.item()) - exact) <= 12 * Fraction(U16) * Fraction(largest) + Fraction(TINY16)
