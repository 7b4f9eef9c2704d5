"""The examples: their sweep files are plans, and their programs run and learn something, made short."""

from pathlib import Path

import pytest

from roundoff.analysis import plot, table
from roundoff.sweeps import plan_file
from roundoff.sweeps.programs.run import run_program

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHORT = {
    "digits": ["epochs=2", "seed=0", "policy=every-op", "format=[fp32, e5m4]"],
    "characters": ["steps=60", "width=32", "layers=1", "seed=0", "accumulate=fp32"],
    "ppo": ["steps=512", "seed=0"],
}
GOOD_ENOUGH = {"digits": (0.5, 1), "characters": (0, 3.3), "ppo": (8, 500)}
"""What the metric of the first run, in fp32, lies between: more than chance, or what any policy gets."""


@pytest.fixture(autouse=True)
def needs():
    pytest.importorskip("sklearn")
    pytest.importorskip("stable_baselines3")


def test_every_folder_is_tested():
    assert {path.parent.name for path in EXAMPLES.glob("*/sweep.yaml")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_an_example(name, tmp_path):
    whole = plan_file(EXAMPLES / name / "sweep.yaml")
    assert whole.name == name
    plan = plan_file(EXAMPLES / name / "sweep.yaml", SHORT[name])
    assert 1 < len(plan.runs) < len(whole.runs)
    first = run_program(plan.runs[0].config, plan.metric, tmp_path / "runs" / plan.runs[0].id)
    low, high = GOOD_ENOUGH[name]
    assert low <= first["return"] <= high
    last = run_program(plan.runs[-1].config, plan.metric, tmp_path / "runs" / plan.runs[-1].id)
    assert last["status"] in ("done", "crashed")
    assert last["values"] != first["values"]
    assert list(table(tmp_path / "runs")["metric"]) == [plan.metric.name] * 2
    written, _ = plot(tmp_path / "runs")
    assert any(path.name == "summary.csv" for path in written)
