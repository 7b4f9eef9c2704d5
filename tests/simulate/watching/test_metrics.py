"""Numbers that are read inside a simulation: a word on those that rounding has changed in a visible digit."""

# ruff: noqa: PLW0108  what is read is computed when its test runs

import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import roundoff
from roundoff import Policy, Rule, simulate
from roundoff.simulate import SimulationWarning
from roundoff.simulate.presence import user_code
from roundoff.simulate.watching import metrics

LABELS = torch.tensor([1.0] * 999 + [0.0])


@pytest.fixture
def told(monkeypatch):
    """The warnings of a test, which begins as a process does."""
    monkeypatch.setattr(user_code, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def scalar_loss():
    return torch.nn.functional.cross_entropy(torch.full((4, 3), 0.3).tril(), torch.tensor([0, 1, 2, 0]))


def running_mean():
    total = torch.zeros(())
    for _ in range(3):
        total += LABELS.mean() / 3
    return total


READS = {
    "a mean that becomes 1": lambda: LABELS.mean().item(),
    "a sum": lambda: float(LABELS.sum()),
    "a percentage of it": lambda: (LABELS.mean() * 100).item(),
    "a ratio, as text": lambda: f"{torch.tensor(2.0) / 3:.3f}",
    "a loss": lambda: scalar_loss().item(),
    "a view of it": lambda: scalar_loss().detach().view(1)[0].item(),
    "a running mean": lambda: running_mean().item(),
    "an underflow": lambda: (torch.full((2,), 2.0**-15) * 2.0**-2).mean().div(64).item(),
}
QUIET = {
    "a mean that stays": lambda: torch.tensor([0.5, 1.5, 1.0, 1.0]).mean().item(),
    "what is not rounded here": lambda: torch.ones(5)[2].item(),
    "a count": lambda: (LABELS > 0).sum().item(),
    "a decision": lambda: bool(LABELS.mean() > 0.5),
    "what was overwritten": lambda: LABELS.mean().zero_().item(),
    "NaN": lambda: torch.tensor([float("nan"), 1.0]).mean().item(),
    "infinity": lambda: torch.tensor([float("inf"), 1.0]).mean().item(),
    "an overflow": lambda: torch.full((4,), 50000.0).sum().item(),
    "the step of an optimizer": lambda: training(),
    "what was computed exactly": lambda: roundoff.exact()(lambda: LABELS.mean().item())(),
}


def training():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], eps=1e-2, foreach=False)
    for _ in range(20):  # the step, of one number, stays at 16
        weight.grad = torch.ones(3)
        optimizer.step()
        torch.nn.utils.clip_grad_norm_([weight], 1e-3, error_if_nonfinite=True)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_number_that_rounding_changed_is_spoken_of(read, told):
    with simulate("e5m3"):
        read()
    assert [one.category for one in told] == [SimulationWarning]
    assert Path(told[0].filename) == Path(__file__)
    assert "with roundoff.exact():" in str(told[0].message)


@pytest.mark.parametrize("read", QUIET.values(), ids=QUIET)
def test_of_other_numbers_nothing_is_said(read, told):
    with simulate("e5m3"):
        read()
    assert not told


@pytest.mark.parametrize("fmt", ["fp32", "e5m10", "e8m10"])
def test_formats_with_digits_enough_say_nothing(fmt, told):
    generator = torch.Generator().manual_seed(0)
    with simulate(fmt):
        for _ in range(200):
            torch.rand(7, generator=generator).mean().item()
    assert not told


@given(st.floats(2.0**-10, 2.0**10))
@example(0.09999999999999998)
def test_what_is_visible_is_a_difference_of_half_a_unit_of_the_third_digit(number):
    unit = float(f"1e{f'{number:.17e}'.split('e')[1]}") / 100
    assert not metrics._is_visible(number, number + 0.499 * unit)
    assert metrics._is_visible(number, number + 0.501 * unit)
    # e5m10 changes no normal number so much.
    rounded = roundoff.round(torch.tensor(number), "e5m10").item()
    assert not metrics._is_visible(float(torch.tensor(number)), rounded)


def test_it_is_said_once_for_each_line(told):
    with simulate("e5m3") as simulation:
        for _ in range(3):
            LABELS.mean().item()
            LABELS.sum().item()
    assert len(told) == 2
    assert str(told[0].message).startswith("the number 1, rounded from 0.999 to e5m3, is read inside a simulation")
    assert "the number 1024, rounded from 999 to e5m3" in str(told[1].message)
    assert "detach" not in str(simulation.audit())


def test_rules_about_some_operations_are_enough(told):
    with simulate(Policy("fp32").with_rules(Rule("mean", format="e5m3"))):
        LABELS.sum().item()
        assert (LABELS.mean() * 1).item() == 1.0
        assert LABELS.mean().item() == 1.0
    assert len(told) == 1
    assert "rounded from 0.999 to e5m3" in str(told[0].message)


def test_what_has_gone_is_forgotten():
    with simulate("e5m3") as simulation:
        for _ in range(2 * metrics._MANY):
            kept = [LABELS[:3].mean() / 3 for _ in range(2)]
    assert len(simulation._runner._changes._changed) <= metrics._MANY
    del kept
