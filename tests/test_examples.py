"""The examples: their sweep files are plans, and their programs run and learn something, made short."""

import json
import math
import runpy
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from roundoff.analysis import plot, table
from roundoff.sweeps import plan_file
from roundoff.sweeps.programs.run import run_program

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHORT = {
    "digits": ["epochs=2", "seed=0", "policy=every-op", "format=[fp32, e5m4]"],
    "characters": ["steps=40", "width=16", "layers=1", "length=24", "seed=0", "accumulate=null"],
    "ppo": ["steps=512", "episodes=2", "seed=0"],
    "reasoning": [
        "steps=20", "asked_at_once=8", "width=32", "layers=1", "count=16", "least=-1", "taught_for=20", "seed=0"
    ],
}  # fmt: skip
GOOD_ENOUGH = {"digits": (0.5, 1), "characters": (0, 3.4), "ppo": (8, 500), "reasoning": (0, 0.5)}
"""What the metric of the first run, in fp32, lies between: more than chance, or what any policy gets."""
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path, tmp_path, monkeypatch):
    """A notebook's cells run, one after the other, and say what the text between them says."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")  # kept in git, and small
    assert path.stat().st_size < 100_000
    names = {"__name__": path.stem}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
    if path.stem == "one-network":
        losses = names["losses"]
        assert losses["fp32"] < 1
        assert losses["e5m4, products"] < 1
        assert losses["e5m10"] < 1  # the second one, with a larger eps
        assert "addcdiv" in str(names["simulation"].report().birth)
    elif path.stem == "recipes":
        plain, *recipes, everything = names["losses"].values()
        assert plain < 3.5  # nats; knowing nothing costs 4.5
        assert [loss for loss in recipes if loss < 1.05 * plain] == recipes
        assert len(recipes) == 4
        assert everything != everything  # NaN  # noqa: PLR0124
    else:
        assert len(names["table"]) == 11 * 3
        assert names["table"].groupby("format")["score"].mean()["fp32"] < 0.2


@pytest.mark.parametrize(("name", "least", "most"), [("digits", 0.2, 1), ("characters", 0, 3.7)])
def test_an_example_wholly_in_eight_bits(name, least, most, tmp_path):
    pytest.importorskip("sklearn")
    small = {"digits": ["epochs=1"], "characters": ["steps=30", "width=16", "layers=1", "length=24"]}[name]
    plan = plan_file(EXAMPLES / name / "eight-bits.yaml", ["seed=0", "fixes=stochastic", *small])
    by_format = {run.config.format: run for run in plan.runs}
    assert list(by_format) == ["fp32", "e5m10", "e4m3", "e5m2"]
    found = run_program(by_format["e5m2"].config, plan.metric, tmp_path / "run")
    assert found["status"] == "done"
    assert least <= found["return"] <= most


def test_every_folder_is_tested():
    assert len(NOTEBOOKS) == 3
    assert {path.parent.name for path in EXAMPLES.glob("*/sweep.yaml")} == set(SHORT)


@pytest.mark.filterwarnings("ignore:the policy has rules about matrix products")  # attention is left alone, as it says
@pytest.mark.parametrize("name", SHORT)
def test_an_example(name, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("stable_baselines3")
    whole = plan_file(EXAMPLES / name / "sweep.yaml")
    assert whole.name == name
    plan = plan_file(EXAMPLES / name / "sweep.yaml", SHORT[name])
    assert 1 < len(plan.runs) < len(whole.runs)
    first = run_program(plan.runs[0].config, plan.metric, tmp_path / "runs" / plan.runs[0].id)
    low, high = GOOD_ENOUGH[name]
    assert low <= first["return"] <= high
    last = run_program(plan.runs[-1].config, plan.metric, tmp_path / "runs" / plan.runs[-1].id)
    assert last["status"] in ("done", "crashed")
    assert last["values"] != first["values"] or _logged(tmp_path, plan.runs[-1]) != _logged(tmp_path, plan.runs[0])
    assert list(table(tmp_path / "runs")["metric"]) == [plan.metric.name] * 2
    written, _ = plot(tmp_path / "runs")
    assert any(path.name == "summary.csv" for path in written)


def _logged(folder, run):
    """What ``run`` has logged: two runs of a few questions may get the same share of them right, or none."""
    return (folder / "runs" / run.id / "metrics.jsonl").read_text(encoding="utf-8")


def test_grpo_clips_the_ratio_and_begins_along_the_policy_gradient():
    example = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "reasoning" / "train.py")))
    torch.manual_seed(0)
    model = example.Model(16, 1)
    prompts = example.questions(24)[0]
    answers = example.rollout(model, prompts)
    advantages = torch.randn(24)
    still = torch.optim.SGD(model.parameters(), lr=0.0)

    def gradient(*more):
        old = example.learn(model, still, prompts, answers, advantages, "none", *more)
        return old, torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    old, plain = gradient()
    assert torch.allclose(gradient(old, 0.2)[1], plain, rtol=1e-4, atol=1e-7)
    assert not gradient(old - advantages.sign()[:, None], 0.2)[1].any()  # all have moved too far already
    assert torch.allclose(gradient(old + 0.1, 0.2)[1], plain * math.exp(-0.1), rtol=1e-4, atol=1e-7)


def test_means_over_hundred_steps_are_those_of_what_ended_runs_have_logged(tmp_path):
    means = runpy.run_path(str(EXAMPLES / "reasoning" / "means.py"))["means"]
    runs = [("b", 1, "b1"), ("a", 0, "a0"), ("b", 0, "b0"), ("a", 1, "not begun"), ("b", 2, "not ended")]
    listed = [{"case": case, "id": name, "config": {"seed": seed, "steps": 200}} for case, seed, name in runs]
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": listed}))
    for case, seed, name in runs:
        if name == "not begun":
            continue
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        shares = [(50, seed), (100, seed + 1), (150, 0.25), (200, 1 / 3)]
        records = [{"kind": "log", "step": step, "reward": x, "unrounded": 2 * x, "kl": x / 1e6} for step, x in shares]
        if case == "a":  # which has crashed
            records = records[:2]
        records.append({"kind": "eval", "step": 200, "return_mean": 1.0, "case": case})
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        if name != "not ended":
            (folder / "result.json").write_text("{}")
    found = means(tmp_path)
    assert [(row["case"], row["seed"], row["step"]) for row in found] == [
        ("b", 0, 100), ("b", 0, 200), ("b", 1, 100), ("b", 1, 200), ("a", 0, 100),
    ]  # fmt: skip
    assert {**found[2]} == {"case": "b", "seed": 1, "step": 100, "unrounded": "3", "reward": "1.5", "kl": "1.5e-06"}
    assert found[1]["reward"] == "0.291667"


def test_means_of_no_sweep_are_refused_and_nothing_is_written(tmp_path, monkeypatch):
    script, written = EXAMPLES / "reasoning" / "means.py", tmp_path / "long.csv"
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "sweep.json").write_text('{"runs": []}')
    for given, said in (
        ([], "takes the folder"),
        ([tmp_path], "takes the folder"),
        ([tmp_path / "begun"], "has ended"),
    ):
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, given), *([str(written)] if given else [])])
        with pytest.raises(SystemExit, match=said):
            runpy.run_path(str(script), run_name="__main__")
    assert not written.exists()


@pytest.mark.filterwarnings("ignore:the policy has rules about matrix products")
def test_the_language_model_learns_by_grpo(tmp_path):
    plan = plan_file(
        EXAMPLES / "reasoning" / "sweep.yaml", [*SHORT["reasoning"][1:], "steps=4", "algorithm=grpo", "epochs=2"]
    )
    found = run_program(plan.runs[-1].config, plan.metric, tmp_path)
    assert found["status"] == "done"
    assert found["values"]["questions"] == 16
