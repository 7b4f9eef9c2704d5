"""Significant digits by random rounding: the statistics, the roundings, textbook programs, and scripts."""

import json
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from each import each

import roundoff
from roundoff.simulate.significance.digits import certain_digits, significant_digits
from roundoff.simulate.significance.rounding import Randomness, RandomRounding


def test_estimates_and_their_bound_cover_the_digits_of_known_distributions():
    """Sohier et al., Table 1: 30 samples, probability 0.99, confidence 0.95 take 1.792 bits off the estimate."""
    assert 5 - certain_digits(5, 30, 0.99, 0.95) == pytest.approx(1.792 * math.log10(2), abs=1e-3)
    generator = np.random.default_rng(0)
    for count in (3, 8, 30):
        samples = 1 + 1e-4 * generator.standard_normal((count, 4000))
        estimates = significant_digits(samples)
        assert np.median(estimates) == pytest.approx(4, abs=0.15)
        # Of the errors 95 % are below 1.96 standard deviations, half a unit of the last of this many digits.
        true = -math.log10(1e-4 * 1.959964)
        covered = np.mean([certain_digits(one, count) <= true for one in estimates])
        assert 0.96 <= covered <= 0.985, (count, covered)  # a one-sided bound from a two-sided interval of 95 %
    assert significant_digits(np.array([[1.0, 0, 1, 2], [1, 0, np.nan, -2]])).tolist()[:2] == [math.inf, math.inf]
    assert np.isnan(significant_digits(np.array([[1.0], [np.nan]]))).all()
    assert significant_digits(np.array([[2.0], [-2.0]])).tolist() == [0.0]


def sampled(function, randomness, seeds=40, policy="fp32"):
    """The results of a function, for several seeds."""
    found = []
    for seed in range(seeds):
        with roundoff.simulate(policy, watchers=[RandomRounding(randomness, seed)]):
            found.append(function())
    return torch.stack(found).double()


@each("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_the_neighbours_of_the_exact_result_with_the_right_probabilities(dtype):
    x = torch.full((400,), 1.0, dtype=dtype)
    exact = torch.tensor(1 / 3, dtype=torch.float64)
    near = exact.to(dtype)
    other = torch.nextafter(near, torch.tensor(1.0 if near < exact else 0.0, dtype=dtype))
    low, high = sorted((near.double().item(), other.double().item()))
    fraction = (1 / 3 - low) / (high - low)
    for randomness, probability in ((Randomness.RESULTS, fraction), (Randomness.UP_OR_DOWN, 0.5)):
        found = sampled(lambda: x / 3, randomness, 10)
        assert set(found.unique().tolist()) == {low, high}
        assert (found == high).double().mean().item() == pytest.approx(probability, abs=0.04)
    for randomness in (Randomness.RESULTS, Randomness.UP_OR_DOWN):  # exact results stay: sums, views, copies, in place
        found = sampled(lambda: torch.cat([(x + x).view(20, 20).sum(1), x.clone().mul_(3)]), randomness, 3)
        assert (found == found[0]).all()
        assert set(found.unique().tolist()) == {3.0, 40.0}
    moved = sampled(x.clone, Randomness.OPERANDS, 3)
    assert (moved == 1).all()
    products = sampled(lambda: x * x, Randomness.OPERANDS, 10)
    assert 0.1 < (products != 1).double().mean() < 0.9
    assert ((products - 1).abs() <= 2 * torch.finfo(dtype).eps).all()


def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(32, 8)
    for _ in range(3):
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss, "weights": net[0].weight}


def test_programs_train_in_samples_and_without_randomness_nothing_changes():
    plain = train()
    with roundoff.simulate("fp32", watchers=[RandomRounding(None, 0)]):
        watched = train()
    assert torch.equal(plain["weights"], watched["weights"])
    report = roundoff.digits(train, 3)
    loss, weights = report.results
    assert (loss.name, weights.elements) == ("loss", 128)
    assert 4 < weights.digits < 8
    assert loss.mean == pytest.approx(plain["loss"].item(), rel=1e-5)
    assert {row.name for row in report.modules} >= {"forward Sequential.0", "backward Sequential.2", "optimizer"}
    assert json.loads(json.dumps(report.as_json()))["results"][1]["elements"] == 128
    again, few = (roundoff.digits(train, 3, format=fmt) for fmt in (None, "e8m4"))
    assert again.results == report.results
    assert few.results[1].digits < 2.5
    for settings in ({"samples": 1}, {"randomness": "none"}, {"format": "e5m2", "randomness": "operands"}):
        with pytest.raises(roundoff.FormatError, match=r"must be|leave out"):
            roundoff.digits(train, **settings)


def test_results_have_names_and_types():
    x = torch.arange(1.0, 4.0)

    def nested():
        return {"train": {"loss": x[0] / 3}, "val": [x / 3, (x / 3).numpy()], "none": None, "empty": x[:0]}

    results = roundoff.digits(nested, 2).results
    assert [row.name for row in results] == ["train.loss", "val[0]", "val[1]"]
    (spectrum,) = roundoff.digits(lambda: torch.fft.fft(x / 3), 2).results
    assert spectrum.elements == 6
    # Seeds change the data of a function that leaves seeding to the caller; a second call gets the same ones.
    before = torch.get_rng_state()
    drawn, again = (
        roundoff.digits(lambda: {"mean": torch.randn(50).mean(), "third": x[0] / 3}, 3, seeds=4) for _ in "ab"
    )
    assert drawn.over_seeds == again.over_seeds
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn.over_seeds["mean"] < 1.0 < drawn.results[0].digits
    assert drawn.over_seeds["third"] == np.inf  # no random rounding happens there, so that all are equal
    assert drawn.as_json()["over_seeds"]["third"] == "all"
    assert str(drawn).splitlines()[1].endswith("over seeds")
    with pytest.raises(roundoff.FormatError, match="seeds must be 0, or an integer of at least 2, got 1"):
        roundoff.digits(lambda: x, 2, seeds=1)
    for wrong in ("text", object(), {1, 2}):
        with pytest.raises(roundoff.FormatError, match="loss must be a number or a tensor of numbers, got"):
            roundoff.digits(lambda wrong=wrong: {"loss": wrong}, 2)


def harmonic():
    total = torch.zeros(())
    for k in range(1, 60):
        total = total + 1 / torch.tensor(float(k))
    return total


def muller():
    """Muller's recurrence, which has lost all digits on the way to a false limit."""
    a, b = torch.tensor(4.0), torch.tensor(4.25)
    for _ in range(7):
        a, b = b, 108 - (815 - 1500 / a) / b
    return b


def rump():
    x, y = torch.tensor(77617.0), torch.tensor(33096.0)
    return 333.75 * y**6 + x * x * (11 * x * x * y * y - y**6 - 121 * y**4 - 2) + 5.5 * y**8 + x / (2 * y)


def singular():
    """A division by the determinant 3.3e-6 of a matrix with entries near 1: five to six of seven digits are lost."""
    third = torch.tensor(1.0) / 3
    return 1 / (third * 3.00001 - 1)


def variance():
    torch.manual_seed(0)
    x = 1000 + torch.randn(100)
    return (x * x).mean() - x.mean() ** 2


def test_textbook_programs():
    """The digits of the float32 result, from rational or double precision, are what the samples say."""
    exact = float(sum(Fraction(1, k) for k in range(1, 60)))
    cases = (
        (harmonic, -math.log10(abs(float(harmonic()) / exact - 1)), 1.0),
        (muller, 0.0, 0.5),
        (rump, 0.0, 0.1),
        (singular, 7.2 - 5.6, 1.0),
        (variance, 7.2 - 6, 1.0),
    )
    for function, digits, tolerance in cases:
        for randomness in Randomness:
            if (function, randomness) == (muller, Randomness.RESULTS):
                continue  # one rounding decides nearly all, and nearly always goes the same way
            (found,) = roundoff.digits(function, 8, randomness=randomness).results
            assert found.digits == pytest.approx(digits, abs=tolerance), (function.__name__, randomness, found)


@pytest.mark.usefixtures("forked_interpreters")
def test_scripts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch, roundoff\n"
        "x = torch.ones(())\n"
        "for _ in range(20):\n"
        "    x = x / 3 * 3.1\n"
        "print(f'\x1b[32mloss\x1b[0m {x.item()} (12.5s) of', 7, *sys.argv[1:])\n"
        "roundoff.log(1, loss=x)\n"
        "print('sample', 'up' if x.item() > 1.9266764203 else 'down')\n"
        "os._exit(0) if sys.argv[1:] == ['leave'] else None\n"
        "sys.exit(3 if sys.argv[1:] == ['fail'] else 0)\n"
    )
    command = [sys.executable, "-m", "roundoff", "digits", "-n", "2", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, "5"], capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout)
    assert "sample 2 of 2" in done.stderr
    first, second = found["lines"]
    assert first.startswith("loss 1.92")
    assert first.endswith("] (12.5s) of 7 5")
    assert second.startswith("sample ")
    printed, logged = found["results"]
    assert logged["name"] == "loss at step 1"
    assert printed["digits"] == logged["digits"]
    assert 6 < printed["digits"] < 8
    done = subprocess.run(
        [*command, "--seeds", "2", script, "{seed}"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr.splitlines()[-1] == "seed 1 of 2"
    assert json.loads(done.stdout)["lines"][0].endswith("of 7 0")
    over_seeds = json.loads(done.stdout)["over_seeds"]
    assert over_seeds["loss at step 1"] == "all"
    assert over_seeds[printed["name"]] == "all"  # the seeds print the same number, though samples differ
    wrong = ("fail", "ended with exit status 3"), ("leave", "ended before it left its values"), ("--seeds=2", "{seed}")
    for argument, message in wrong:
        failed = subprocess.run(
            [*command, *([argument, script] if argument.startswith("-") else [script, argument])],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert failed.returncode == 2
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
