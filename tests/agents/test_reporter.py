"""What runs of every kind tell by one reporter."""

import json

import torch

from roundoff import simulate
from roundoff.agents.run.evaluate import Evaluation
from roundoff.agents.run.profile import Stopwatch
from roundoff.agents.run.reporter import Numerics, Progress, Reporter
from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import MetricsLog
from roundoff.runs.result import Crash


def records(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_evaluations_are_logged_and_known_at_the_end(tmp_path):
    files, seen = RunDirectory(tmp_path), []
    reporter = Reporter(files, Stopwatch(), None, seen.append, 100)
    assert not reporter.is_due
    with reporter.logging(MetricsLog(files, length=0, step=0)):
        reporter.report(0)
        asked = []
        crash = reporter.evaluate(
            50,
            ["fp16"],
            lambda way: asked.append(way) or Evaluation((1.0, 3.0) if way is None else (0.5,)),
            crash_step=60,
        )
        reporter.report(60, lambda: 8.0)
    assert crash is None
    assert [way and way.name for way in asked] == [None, "e5m10"]
    assert [(one["kind"], one["step"], one["return_mean"]) for one in records(tmp_path)] == [
        ("eval", 50, 2.0),
        ("eval_in", 50, 0.5),
    ]
    assert seen == [Progress(0, 100, None, None), Progress(60, 100, 2.0, 8.0)]
    result = reporter.result(None, 60, 7)
    assert (result.return_mean, result.return_std, result.quantized, result.updates) == (2.0, 1.0, {"e5m10": 0.5}, 7)


def test_a_crash_in_an_evaluation_is_one_of_the_moment_and_logs_nothing(tmp_path):
    reporter = Reporter(RunDirectory(tmp_path), Stopwatch(), None, None)
    crash = reporter.evaluate(50, ["fp16"], lambda way: Evaluation((), crashed=True), crash_step=60)
    assert crash == Crash(60, "the policy took a non-finite action in evaluation")
    assert reporter.result(crash, 60, 7).return_mean == 0.0
    reporter.look_at_untrained(Evaluation((), crashed=True))
    assert reporter.untrained is None


def test_a_crash_says_where_the_first_infinity_was_if_the_run_observes(tmp_path):
    simulation = simulate("e5m10", observe=True)
    with simulation:
        torch.full((2,), 60000.0) * 2
    files = RunDirectory(tmp_path)
    reporter = Reporter(files, Stopwatch(), Numerics(simulation), None)
    with reporter.logging(MetricsLog(files, length=0, step=0)):
        assert reporter.crashed(None, 5) is None
        crash = reporter.crashed(Crash(4, "it broke"), 5)
    assert crash.step == 4
    assert crash.reason.startswith("it broke; first non-finite result: overflow in mul")
    assert [(one["kind"], one["step"]) for one in records(tmp_path)] == [("numerics", 5)]


def test_an_error_is_a_crash_where_something_was_not_finite():
    reporter = Reporter(RunDirectory("nowhere"), Stopwatch(), None, None)
    error = ValueError("a sum of\ntwo")
    assert reporter.raised(error, None, 3, "the agent") is None
    crash = reporter.raised(error, "weights of critic are not finite", 3, "the agent")
    assert crash == Crash(3, "weights of critic are not finite, and the agent raised ValueError: a sum of")
