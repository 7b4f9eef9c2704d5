"""The observer names sums in place that rounding has stopped."""

import torch
from each import each

import roundoff
from roundoff import simulate
from roundoff.simulate.watching import cancellation
from roundoff.simulate.watching import stopped as stopping


def average(format, steps, rounding="nearest-even", tau=0.01, views=False):
    """A moving average that goes from 0 to 1."""
    with simulate(format, observe=True, rounding=rounding, seed=0) as simulation:
        average, source = torch.zeros(4, 5), torch.ones(4, 5)
        for _ in range(steps):
            (average.data if views else average).lerp_(source, tau)
    return simulation.report(), average


@each("views", [False, True])
def test_an_average_that_stops_is_named_with_its_line(views):
    report, found = average("e8m7", 600, views=views)
    assert 0.6 < found.mean() < 0.99
    (one,) = report.stopped
    assert (one.operation, one.tensors, one.numbers) == ("lerp_", 1, 20)
    assert 50 <= one.calls < 600
    assert "test_stopped.py" in one.line
    assert "lerp_(source, tau)" in one.line
    assert (
        f"stopped by rounding: a tensor of 20 numbers, to which lerp_ (forward) added {one.calls} times in a row"
        in str(report)
    )


def test_what_arrives_or_moves_on_is_not_named():
    assert not average("e8m7", 45)[0].stopped
    assert not average("e8m7", 600, rounding="stochastic")[0].stopped
    assert not average("fp32", 600)[0].stopped
    report, found = average("e8m7", 600, tau=0.5)
    assert found.mean() > 0.98
    assert not report.stopped


def test_what_is_made_anew_at_every_step_is_no_sum():
    with simulate("e5m10", observe=True) as simulation:
        for _ in range(200):
            torch.ones(10).add_(1e-8)  # the eps of optimizers
    assert not simulation.report().stopped


@each("contiguous", [True, False])
def test_infinities_are_not_stopped_by_rounding(contiguous):
    x = torch.full((3, 4), torch.inf) if contiguous else torch.full((4, 3), torch.inf).t()
    with simulate("e5m10", observe=True) as simulation:
        for _ in range(60):
            x.add_(1.0)
    report = simulation.report()
    assert not report.stopped
    assert report.table["absorbed"].sum() == 0


def test_a_row_begins_again_when_something_arrives():
    x = torch.full((3,), 1024.0)
    with simulate("e5m10", observe=True) as simulation:
        for step in range(98):
            x.add_(4.0 if step == 49 else 0.25)
    assert not simulation.report().stopped
    with simulate("e5m10", observe=True) as simulation:
        for step in range(100):
            x.add_(4.0 if step == 49 else 0.25)
    assert [one.calls for one in simulation.report().stopped] == [50]


def test_all_parameters_of_an_optimizer_are_one_line(monkeypatch):
    monkeypatch.setattr(stopping, "_PURGE_EVERY", 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for foreach in (False, True):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7, foreach=foreach)
        with simulate("e5m3", observe=True) as simulation:
            for _ in range(60):
                optimizer.zero_grad()
                model(torch.ones(8, 8)).sum().backward()
                optimizer.step()
        (one,) = (one for one in simulation.report().stopped if one.role == "optimizer")
        assert 2 <= one.tensors <= 4
        assert "optimizer.step()" in one.line


def test_a_printed_report_ends_somewhere():
    xs = [torch.full((3,), 1024.0) for _ in range(5)]
    with simulate("e5m10", observe=True) as simulation:
        for _ in range(50):
            xs[0].add_(0.1)
            xs[1].add_(0.1)
            xs[2].add_(0.1)
            xs[3].add_(0.1)
            xs[4].add_(0.1)
    report = simulation.report()
    assert len(report.stopped) == 5
    assert str(report).count("stopped by rounding") == 3
    assert "and 2 further lines: report.stopped" in str(report)


def test_differences_that_cancel_are_counted_on_their_line(monkeypatch):
    """All pairs of values of e3m2, against the spacing of the values themselves."""
    fmt = roundoff.Format.parse("e3m2")
    values = [x for x in fmt.values().double().unique().tolist() if abs(x) <= fmt.max and x]
    spacing = {abs(x): min(abs(y - abs(x)) for y in values if y > abs(x)) for x in values if abs(x) < fmt.max}
    spacing[fmt.max] = fmt.max - sorted(values)[-2]
    pairs = [(x, y) for x in values for y in values]
    expected = sum(abs(x - y) < spacing[max(abs(x), abs(y))] for x, y in pairs)
    a, b = (torch.tensor(side, dtype=torch.float32) for side in zip(*pairs, strict=True))
    outside = torch.full_like(a, 1.01)  # not a value of the format
    with simulate("e3m2", observe=True) as simulation:
        _ = a - b
        for _ in range(3):
            near = torch.nn.functional.mse_loss(a, a.clone())
        _ = a.half() - a.half().clone(), a.double() - a.clone()
        _ = (
            torch.sub(a, a.clone(), alpha=2),
            a - a,
            a - 1.5,
            a - outside,
            outside - outside.clone(),
            torch.zeros(99) - torch.zeros(99),
        )
    assert near == 0
    loss, mixed = simulation.report().cancelled  # of all pairs far fewer than a quarter cancel
    assert (mixed.operation, mixed.differences, mixed.cancelled) == ("sub", 2 * len(pairs), 2 * len(pairs))
    assert (loss.operation, loss.differences, loss.cancelled) == ("mse_loss", 3 * len(pairs), 3 * len(pairs))
    monkeypatch.setattr(cancellation, "_MIN_SHARE", 0.0)
    *_, every = simulation.report().cancelled
    assert (every.operation, every.differences, every.cancelled) == ("sub", len(pairs), expected)
    assert "cancelled: 100% of" in str(simulation.report())
    assert "mse_loss(a, a.clone())" in str(simulation.report())
