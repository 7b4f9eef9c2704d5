"""Stochastic roundings are counted by step: in programs that begin one, and in threads that come later."""

import threading

import pytest
import torch

from roundoff import FormatError, Policy, RandomBits, simulate
from roundoff.simulate.presence.draws import STEP_BITS, bits_after


def test_a_step_that_begins_in_a_program_counts_from_its_first_rounding():
    place = torch.tensor([3, 5, 7])  # the step, the roundings that were made in it, the seed
    assert bits_after(place, 2, 4) == RandomBits(7, (3 << STEP_BITS) + 5 + 2, bits=4)
    assert bits_after(place, (1 << STEP_BITS) + 2) == RandomBits(7, (4 << STEP_BITS) + 2)


def test_a_policy_says_how_many_random_bits_there_are():
    policy = Policy("e5m2", rounding="stochastic", random_bits=4)
    assert Policy.parse(policy.as_json()) == policy
    for wrong in (0, 33, True, 2.5, "four"):
        with pytest.raises(FormatError, match="random_bits must be an integer from 1 to 32"):
            Policy("e5m2", random_bits=wrong)
    found = []
    for first in (policy, Policy("e5m2")):
        simulation = simulate(first)
        simulation.change(policy)
        with simulation:
            found.append(torch.linspace(1, 2, 999) * 1)
    assert torch.equal(*found)


def test_a_thread_that_enters_begins_in_the_step_that_the_simulation_is_at():
    found = []

    def enter():
        with simulation:
            found.append((simulation.step, torch.relu(x)))

    x = torch.linspace(0.1, 0.9, 33)
    with simulate("e5m2", rounding="stochastic") as simulation:
        simulation.step = 5
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        simulation.step = 5
        here = torch.relu(x)
    ((step, there),) = found
    assert step == 5
    assert torch.equal(here, there)
