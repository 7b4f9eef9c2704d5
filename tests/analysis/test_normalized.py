"""Scores on a scale that tasks share, against rliable's numbers; areas under curves; the highest return there is."""

import json
import math

import numpy as np
import pytest

from roundoff.analysis import against, report
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.runs.records import area, areas
from roundoff.analysis.statistics.comparisons import probability_of_improvement
from roundoff.analysis.tables.against_fp32 import against_reference
from roundoff.analysis.tables.sides import interquartile_mean_of
from roundoff.analysis.tables.summary import summarize

# By rliable 1.2.0: get_interval_estimates of aggregate_iqm, 50 000 repetitions; of probability_of_improvement, 5000.
A = [
    [1.0, 0.911, 1.006, 0.938, 1.011, 1.07, 0.81, 0.976, 1.016, 0.946],
    [0.69, 0.464, 1.002, 0.747, 0.321, 0.197, 0.213, 0.22, 0.544, 0.585],
    [0.845, 0.702, 0.802, 0.971, 0.894, 0.808, 0.532, 0.954, 0.397, 0.923],
]
B = [
    [0.747, 0.819, 0.897, 0.889, 0.777, 0.745, 0.836, 0.78, 0.881, 0.967],
    [0.557, 1.018, 0.965, 0.733, 0.723, 0.958, 1.3, 0.722, 0.905, 1.132],
    [0.304, 0.338, 0.383, 0.513, 0.772, 0.524, 0.652, 0.615, 0.487, 0.365],
]


@pytest.mark.parametrize(
    ("scores", "value", "low", "high"), [(A, 0.816875, 0.7288125, 0.888375), (B, 0.7590625, 0.7016875, 0.8154375)]
)
def test_the_interquartile_mean_is_rliables(scores, value, low, high):
    found = interquartile_mean_of(scores, np.random.default_rng(0), replicates=20_000)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.interval == pytest.approx((low, high), abs=0.003)


def test_the_probability_of_improvement_is_rliables():
    found = probability_of_improvement(A, B, np.random.default_rng(0))
    assert found.value == pytest.approx(0.6466666667)
    assert found.interval == pytest.approx((0.5566666667, 0.7333333333), abs=0.01)


def test_a_crash_has_learned_nothing_and_one_run_has_no_interval():
    assert interquartile_mean_of([[1, 1, 1, -math.inf]], np.random.default_rng(0)).value == 1
    assert interquartile_mean_of([[0.5, -math.inf]], np.random.default_rng(0)).value == 0.25
    assert all(map(math.isnan, interquartile_mean_of([[0.5], [1, 2]], np.random.default_rng(0)).interval))


def write(root, task, fmt, seed, score, curve=(), **known):
    folder = root / f"{task.replace(':', '-')}-{fmt}-{seed}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": {"task": task, "format": fmt, "seed": seed}}))
    status = {"status": "done", "crash": None} if score is not None else {}
    status = status or {"status": "crashed", "crash": {"step": 60, "reason": "the policy took a non-finite action"}}
    result = {"return": score or 0.0, "return_std": 0.0, "step": 100, "updates": 90}
    (folder / "result.json").write_text(json.dumps(status | result | known))
    lines = [json.dumps({"kind": "eval", "step": step, "return_mean": value}) for step, value in curve]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in [*lines, '{"kind": "eval", "ret']))


def test_tasks_of_unlike_units_are_only_taken_together_normalized(tmp_path):
    """Pendulum's returns are no thousandths of the suite's: 8 of 10 learned there, and 1 of 1 here, are 0.9."""
    for seed in range(3):
        write(tmp_path, "gym:Pendulum-v1", "fp32", seed, -100.0 - seed, untrained=-1101.0)
        write(tmp_path, "gym:Pendulum-v1", "e5m10", seed, -300.0 - seed)
        write(tmp_path, "cartpole_swingup", "fp32", seed, 800.0 + seed, untrained=1.0)
        write(tmp_path, "cartpole_swingup", "e5m10", seed, 800.0 + seed)
    table = against_reference(read_experiment(tmp_path)).set_index("task")
    assert table["normalized"].to_dict() == {"cartpole_swingup": False, "gym:Pendulum-v1": False, "all": True}
    assert table.loc["all", "difference"] == pytest.approx(-0.1)
    assert table.loc["all", "share"] == pytest.approx(-0.1)
    assert table.loc["gym:Pendulum-v1", "difference"] == -200
    assert table.loc["gym:Pendulum-v1", "normalized_iqm"] == pytest.approx(0.8)
    assert table.loc["all", "normalized_iqm"] == pytest.approx((2 * 0.8 + 2 * 1) / 4, abs=0.01)  # the middle four
    assert "all" not in set(summarize(read_experiment(tmp_path))["task"])
    assert "mean over tasks, normalized" in against(tmp_path)[1]
    assert "mean over tasks, normalized" in report(tmp_path)[0].read_text()
    for path in tmp_path.glob("*-fp32-*/result.json"):  # not known what was learned
        path.write_text(json.dumps({**json.loads(path.read_text()), "untrained": None}))
    assert "all" not in set(against_reference(read_experiment(tmp_path))["task"])


def test_areas_see_how_fast_runs_learned(tmp_path):
    """Both end at 800; the one that is there half of the way earlier has 200 more in the mean."""
    for seed in range(3):
        fast = [(0, 0.0), (50, 800.0 + seed), (100, 800.0 + seed)]
        write(tmp_path, "cartpole_swingup", "fp32", seed, 800.0 + seed, fast)
        write(tmp_path, "cartpole_swingup", "e5m10", seed, 800.0 + seed, [fast[0], (50, 400.0 + seed), fast[2]])
        write(tmp_path, "cartpole_swingup", "e5m4", seed, None, fast[:2])  # which crashed in the middle
    table = against_reference(read_experiment(tmp_path)).set_index("format")
    assert table.loc["e5m10", "difference"] == 0
    assert table.loc["e5m10", "area_difference"] == pytest.approx(-200)
    assert table.loc["e5m10", "area_p_holm"] < 0.01
    assert math.isnan(table.loc["e5m4", "area_difference"])


def test_an_area_is_a_mean_return(tmp_path):
    assert area([(10, 1.0), (20, 3.0)]) == 2
    assert area([(20, 3.0), (10, 1.0), (40, 3.0)]) == pytest.approx((2 * 10 + 3 * 20) / 30)
    assert area([(10, 9.0), (10, 1.0), (20, 3.0)]) == 2  # a run that went on evaluates again
    assert math.isnan(area([(10, 1.0)]))
    assert math.isnan(areas({"a": tmp_path / "none"})["a"])
    assert math.isnan(area([(0, 1.7e308), (1, 1.7e308), (2, 1.7e308)]))


@pytest.mark.parametrize(
    ("task", "scores", "untrained", "said"),
    [
        ("cartpole_balance", [999.0, 985.0, 700.0], None, "cartpole_balance"),
        ("cartpole_balance", [999.0, 900.0, 700.0], None, ""),
        ("gym:CartPole-v1", [500.0, 500.0, 499.0], 9.0, "gym:CartPole-v1"),
        ("gym:CartPole-v1", [500.0, 499.0, 498.0], 9.0, ""),
        ("gym:Pendulum-v1", [-150.0, -151.0], -1400.0, ""),
        ("gym:MountainCar-v0", [-200.0, -200.0], None, ""),  # the lowest, for all that is known
    ],
)
def test_the_highest_return_is_named(tmp_path, task, scores, untrained, said):
    for seed, score in enumerate(scores):
        write(tmp_path, task, "fp32", seed, score, **({} if untrained is None else {"untrained": untrained}))
        write(tmp_path, task, "e5m10", seed, score)
    (row,) = against_reference(read_experiment(tmp_path)).to_dict("records")
    assert row["ceiling"] == said
    assert row["answer"] == ("equivalent within 5 %, at the highest return" if said else "equivalent within 5 %")
