"""Counted steps lead somewhere, beside the same steps in other arithmetic."""

import math

import pytest
import torch

from roundoff.simulate import CountedSteps, learned, simulate


def steps(begin, **end):
    return CountedSteps({}, {name: torch.tensor(begin) for name in end}, {k: torch.tensor(v) for k, v in end.items()})


def test_how_far_steps_lead_astray_is_a_share_of_how_far_they_lead():
    reference = steps([1.0, 1.0], weights=[1.0, 3.0], averages=[1.0, 1.5])
    assert reference.led_astray(reference) == 0
    assert steps([1.0, 1.0], weights=[1.0, 2.5], averages=[1.0, 1.5]).led_astray(reference) == 0.25
    # the worst kind counts, however short its own way is
    assert steps([1.0, 1.0], weights=[1.0, 2.5], averages=[1.0, 1.0]).led_astray(reference) == 1


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_lost_number_leads_infinitely_far_astray(lost):
    reference = steps([1.0], weights=[2.0])
    assert steps([1.0], weights=[lost]).led_astray(reference) == math.inf
    standing = steps([1.0], weights=[1.0])
    assert (standing.led_astray(standing), reference.led_astray(standing)) == (0, math.inf)


def test_what_is_learned_is_copied_as_it_is():
    x, y = torch.ones(2, 2, requires_grad=True), torch.tensor([1.1])
    with simulate("e5m2"):
        copied = learned({"weights": [x, y], "none": []})
    x.detach().zero_()
    assert set(copied) == {"weights"}
    assert copied["weights"].tolist() == [1, 1, 1, 1, torch.tensor(1.1).item()]
