"""What is said of integers that are made of rounded numbers, and of counts that rounding stops."""

import warnings

import pytest
import torch
from each import each

import roundoff
from roundoff import SimulationWarning, simulate


def told(compute, fmt="e8m7"):
    """The warnings of a computation in a simulation."""
    with warnings.catch_warnings(record=True) as said, simulate(fmt):
        warnings.simplefilter("always")
        compute()
    return [str(one.message) for one in said if issubclass(one.category, SimulationWarning)]


MADE = {
    "sizes": lambda: (torch.tensor([2401, 100]) / 200).ceil().int(),
    "of counts as floats": lambda: torch.floor(torch.tensor([299]).float() / 300 * 300).long().clone(),
    "ranks": lambda: torch.quantile(torch.arange(2001) / 1.0, torch.tensor(0.51)),
    "edges": lambda: torch.searchsorted(torch.full((300,), 0.7).cumsum(0), torch.tensor([3.0])),
    "buckets": lambda: (torch.arange(1200).float() / 37).log().mul(20).trunc().to(torch.int64),
    "large numbers of data": lambda: (torch.full((3,), 0.7) * 1500).round().long(),
}


@pytest.mark.parametrize("name", MADE)
def test_integers_of_rounded_numbers_are_spoken_of(name):
    (text,) = told(MADE[name])
    assert "values changed by rounding to e8m7 become integers here" in text
    assert "roundoff.exact()" in text


def table(index):
    """An activation function as a table, whose index saturates."""
    return torch.arange(64.0)[index.long().clamp(0, 63)]


SATURATED = {
    "q3.4": lambda: table((torch.linspace(-8, 7.9, 32) * 2).round() + 16),
    "posit8": lambda: (torch.full((3,), 30.7) * 10).round().long(),
    "mxfp4": lambda: (torch.full((32,), 0.7) * 100).round().long(),
    "fp8_e4m3": lambda: torch.full((3,), 300.0).mul(100).long()[0],  # NaN
    "e4m3": lambda: torch.full((3,), 300.0).mul(100).long()[0],  # infinity
    "e5m10": lambda: (torch.arange(9000.0) / 3 * 3.1).round().long(),  # only the last ones have no neighbours
}


@each("fmt", SATURATED)
def test_integers_of_saturated_and_large_values_are_spoken_of_in_every_family(fmt):
    texts = told(SATURATED[fmt], fmt)
    assert any(f"values changed by rounding to {roundoff.Format.parse(fmt)} become integers" in x for x in texts)


def mac(x, y):
    total = torch.zeros(())
    for a, b in zip(x, y, strict=True):
        total = total + a * b
    return total


@each("fmt", ["q6.6", "e3m4_saturate", "posit8", "e4m3"])
def test_integers_beyond_the_format_are_counted_and_named(fmt):
    numbers = torch.arange(-3, 28)
    with warnings.catch_warnings(record=True) as said, simulate(fmt, observe=True) as simulation:
        warnings.simplefilter("always")
        total = mac(numbers.float(), numbers.float())
    largest = roundoff.Format.parse(fmt).max
    assert (total.item() > largest) == any(
        'whole="rounded" rounds integers like data' in str(one.message) for one in said
    )
    sums = (numbers * numbers).cumsum(0)
    steps = torch.cat([numbers, numbers, sums]).float(), (numbers * numbers).float()
    unrepresented = sum(int((roundoff.round(x, fmt) != x).sum()) for x in steps)
    assert 0 < simulation.report().table["unrounded"].sum() <= unrepresented
    assert f"integers that {simulation.report().format} does not represent" in str(simulation.report())


def gradient():
    """The gradient of a mean, which PyTorch makes of a number that is one and of how many there are."""
    x = torch.full((77,), 0.3, requires_grad=True)
    x.square().mean().backward()
    return x.grad


NOT_CHANGED = {
    "gradients": lambda: torch.bucketize(gradient(), torch.tensor([0.0, 0.01])),
    "counts": lambda: torch.arange(1000.0).long(),
    "a sum of counts": lambda: (torch.arange(1000) > 7).float().sum().int(),
    "exact division": lambda: (torch.tensor([2400, 100]) / 100).ceil().int(),
    "bytes": lambda: (torch.rand(3) * 255).round().to(torch.uint8),
    "labels": lambda: (torch.rand(8) * 9).round().long(),
    "exact": roundoff.exact()(MADE["sizes"]),
}


@pytest.mark.parametrize("name", NOT_CHANGED)
def test_of_others_nothing_is_said(name):
    assert told(NOT_CHANGED[name]) == []


def test_it_is_said_once_for_each_line():
    def compute():
        for _ in range(3):
            (torch.tensor([2401]) / 200).int()

    assert len(told(compute)) == 1


def test_labels_from_outside_are_as_they_are():
    times = torch.tensor([1001.0, 70001.0])
    assert told(times.long) == []


COUNTING = [
    lambda c: c.add_(1),  # each on a line of its own, for which it is said
    lambda c: c + 1,
    lambda c: c.sub_(-1.0),
]


@pytest.mark.parametrize("count", COUNTING)
def test_a_count_that_has_stopped_is_spoken_of(count):
    outside = torch.tensor([255.5])  # no whole number when it comes in
    (text,) = told(lambda: count(count(outside)))
    assert text.startswith("256 stays 256 when")


def test_small_numbers_that_are_added_are_no_counts():
    assert told(lambda: torch.full((1,), 300.7).add_(1e-8)) == []
    assert told(lambda: torch.full((3,), 300.7) + 1) == []


@pytest.mark.parametrize("how", ["add_", "foreach"])
def test_absorbed_additions_of_numbers_are_counted(how):
    x = torch.tensor([1.5])
    with simulate("e5m3", observe=True) as simulation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(40):
            x.add_(1) if how == "add_" else torch._foreach_add_([x], 1)
    row = simulation.report().table.set_index("operation").loc["add_" if how == "add_" else "_foreach_add_"]
    assert (row["additions"], row["absorbed"]) == (40, 25)


ANGLES = [
    lambda p, f: (p[:, None] * f).cos(),  # each on a line of its own, for which it is said
    lambda p, f: torch.cat([torch.outer(p, f)] * 2, -1).sin(),
    lambda p, f: (p.expand(1, 1, -1).transpose(1, 2) @ f.expand(1, 1, -1)).cos(),
]


@pytest.mark.parametrize("angles", ANGLES)
def test_angles_of_positions_that_the_format_cannot_tell_apart_are_spoken_of(angles):
    frequencies = 10000.0 ** -(torch.arange(4) / 4)
    (text,) = told(lambda: angles(torch.arange(1000, 1003).float(), frequencies))
    assert text.startswith("angles are computed here (")
    assert "positions that e8m7 cannot distinguish" in text


MANY_ANGLES = {
    "many positions": lambda f: torch.outer(torch.arange(32768).float(), f).sin(),
    "integers": lambda f: (torch.arange(8192)[:, None] * f).sin(),
    "a time axis": lambda f: (torch.arange(44100).float() / 44100 * 2764.6).sin(),
    "a time axis of integers": lambda f: (torch.arange(44100) / 44100 * 2764.6).sin(),
    "linspace": lambda f: (torch.linspace(0, 1, 5000) * 2764.6).sin(),
    "arange": lambda f: (torch.arange(0, 1, 1 / 5000) * 2764.6).sin(),
}


@each("name", MANY_ANGLES)
def test_angles_of_many_positions_and_times_are_spoken_of(name):
    texts = told(lambda: MANY_ANGLES[name](10000.0 ** -(torch.arange(4) / 4)))
    assert any(text.startswith("angles are computed here (") for text in texts)


OTHER_ANGLES = {
    "few positions": lambda f: (torch.arange(100).float()[:, None] * f).cos(),
    "a mask": lambda f: ((torch.arange(1000) > 7).float()[:, None] * f).cos(),
    "one number": lambda f: (torch.arange(1001, 1002).float() * f).cos(),
    "far apart": lambda f: (torch.tensor([256, 512, 1024]).float()[:, None] * f).cos(),
    "no angles": lambda f: torch.arange(1000).float()[:, None] * f,
    "exact": lambda f: roundoff.exact()(ANGLES[0])(torch.arange(1000).float(), f),
}


@pytest.mark.parametrize("name", OTHER_ANGLES)
def test_of_other_angles_nothing_is_said(name):
    frequencies = torch.tensor([0.1, 0.01])
    assert told(lambda: OTHER_ANGLES[name](frequencies)) == []
