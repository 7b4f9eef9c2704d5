"""Score against cost: fronts by hand, answers, what has no cost, the figures and the command."""

import csv
import json
import math
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.text import Text
from program_runs import LOSS, write_run, write_sweep

from roundoff.analysis import AnalysisError, pareto, plot, report
from roundoff.analysis.figures.pareto import draw_pareto
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.tables.pareto import with_costs
from roundoff.analysis.tables.summary import ALL_TASKS, summarize
from roundoff.cli import main
from roundoff.sweeps import plan_file
from roundoff.sweeps.costs import count_program

from . import test_plot as agents

SCORES = {"fp32": 0.90, "e5m10": 0.902, "e5m7": 0.89, "e5m3": 0.60, "e5m2": 0.55}
MOVED = {"fp32": 400.0, "e5m10": 200.0, "e5m7": 160.0, "e5m3": 110.0, "e5m2": 120.0}


def write(root, scores=SCORES, moved=MOVED, **how):
    runs = [
        write_run(root, fmt, seed, score + 0.001 * seed, **how) for fmt, score in scores.items() for seed in range(5)
    ]
    write_sweep(root, runs, **({"metric": how["metric"]} if "metric" in how else {}))
    entries = []
    for fmt, size in moved.items():
        models = {
            "horowitz-45nm": {
                "value": size / 2 if fmt in ("fp32", "e5m10") else None, "unit": "pJ", "source": "Horowitz",
                "without": [] if fmt in ("fp32", "e5m10") else ["e5m7 x e5m7, added in fp32"],
            },
            "chip": {"value": size * 3, "unit": "nJ", "source": "a bench", "without": []},
        }  # fmt: skip
        names = [run["id"] for run in runs if run["config"]["format"] == fmt]
        entries.append(
            {
                "config": {"format": fmt}, "runs": names, "macs": 5.0, "bops": size**2, "bytes_read": size / 2,
                "bytes_written": size / 2, "bytes_kept": size / 10, "bytes_peak": size, "uncounted": [],
                "models": models,
                "kept": {}, "products": [],
            }
        )  # fmt: skip
    (root / "costs.json").write_text(json.dumps({"layout": 1, "source": "", "costs": entries}))
    return root


def by_format(table, column):
    return dict(zip(table["format"], table[column], strict=True))


def test_the_front_and_the_answers(tmp_path):
    table, text, warnings = pareto(write(tmp_path), "bytes")
    assert by_format(table, "cost") == MOVED
    # e5m2 costs more than e5m3 and scores less; fp32 costs twice what e5m10 does, which scores more
    assert by_format(table, "front") == {"fp32": False, "e5m10": True, "e5m7": True, "e5m3": True, "e5m2": False}
    answers = by_format(table, "answer")
    assert answers["fp32"] == "reference"
    assert "equivalent within 5 %" in answers["e5m10"]
    assert "equivalent" not in answers["e5m3"]
    assert list(table["cost"]) == sorted(table["cost"])
    assert text.startswith("Cost: bytes moved in a step.\n\n| task ")
    assert not warnings


def test_another_reference(tmp_path, monkeypatch, capsys):
    table, text, _ = pareto(write(tmp_path), "bytes", reference={"format": "e5m7"})
    answers = by_format(table, "answer")
    assert answers["e5m7"] == "reference"
    assert "equivalent within 5 %" in answers["fp32"]
    assert "equivalent" not in answers["e5m3"]
    assert "| against the reference" in text
    with pytest.raises(AnalysisError, match="no run has format e5m9; there are"):
        pareto(tmp_path, "bytes", reference={"format": "e5m9"})

    def said(*arguments):
        monkeypatch.setattr("sys.argv", ["roundoff", "pareto", str(tmp_path), "--reference", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr()

    assert json.loads(said("format=e5m7", "--json").out)[0]["answer"] == table["answer"][0]
    assert "--reference is KEY=VALUE" in " ".join(said("format").err.replace("│", "").split())


def test_each_task_has_a_front_of_its_own_and_their_mean_has_none(tmp_path):
    tasks = {"cartpole_swingup": 100.0, "walker_walk": -100.0}  # what the second format adds
    runs = [
        agents.write_run(tmp_path, fmt, seed, task=task, score=500 + seed + more * (fmt == "e5m10"))
        for task, more in tasks.items() for fmt in ("fp32", "e5m10") for seed in range(3)
    ]  # fmt: skip
    agents.write_sweep(tmp_path, runs)
    table, _, _ = pareto(tmp_path, "bits")
    found = {(row.task, row.format): row.front for row in table.itertuples()}
    front = {"cartpole_swingup": {"e5m10"}, "walker_walk": {"e5m10", "fp32"}}
    assert found == {(task, fmt): fmt in front[task] for task in tasks for fmt in ("fp32", "e5m10")}


def test_each_task_costs_what_its_own_runs_do_and_their_mean_nothing(tmp_path):
    tasks = {"cartpole_swingup": 3.0, "walker_walk": 7.0}
    runs = [agents.write_run(tmp_path, "fp32", seed, task=task) for task in tasks for seed in range(3)]
    agents.write_sweep(tmp_path, runs)
    costs = [
        {
            "config": {}, "runs": [run["id"]], "macs": 1.0, "bops": tasks[run["config"]["task"]], "bytes_read": 2.0,
            "bytes_written": 2.0, "bytes_kept": 2.0, "bytes_peak": 2.0, "uncounted": [], "models": {},
        }
        for run in runs
    ]  # fmt: skip
    (tmp_path / "costs.json").write_text(json.dumps({"layout": 1, "source": "", "costs": costs}))
    table = pareto(tmp_path, "bops")[0]
    assert dict(zip(table["task"], table["cost"], strict=True)) == tasks
    experiment = read_experiment(tmp_path)
    bops = with_costs(summarize(experiment), experiment).set_index("task")["bops"]
    assert math.isnan(bops.pop(ALL_TASKS))
    assert bops.to_dict() == tasks


@pytest.mark.parametrize(
    ("kind", "cost"),
    [
        ("bits", {"fp32": 32, "e5m10": 16, "e5m7": 13, "e5m3": 9, "e5m2": 8}),
        ("bops", {fmt: size**2 for fmt, size in MOVED.items()}),
        ("memory", {fmt: size / 10 for fmt, size in MOVED.items()}),
    ],
)
def test_costs_of_every_kind(tmp_path, kind, cost):
    assert by_format(pareto(write(tmp_path), kind)[0], "cost") == cost


def test_energy_is_a_model_s_with_its_source_and_only_where_it_has_numbers(tmp_path):
    root = write(tmp_path)
    table, text, warnings = pareto(root, "energy")  # the one model of the user's own
    assert "by the model chip (a bench)" in text
    assert by_format(table, "cost")["e5m3"] == 330
    table, text, warnings = pareto(root, "energy", model="horowitz-45nm")
    assert "in pJ, by the model horowitz-45nm (Horowitz)" in text
    known = table[table["cost"].notna()]
    assert set(known["format"]) == {"fp32", "e5m10"}
    assert not table.loc[table["cost"].isna(), "front"].any()
    assert any("without a cost" in warning and "e5m7" in warning for warning in warnings)
    with pytest.raises(AnalysisError, match="was not used"):
        pareto(root, "energy", model="moore")


def test_less_may_be_better(tmp_path):
    losses = {"fp32": 0.5, "e5m10": 0.5, "e5m3": 0.9}
    moved = {fmt: MOVED[fmt] for fmt in losses}
    table, *_ = pareto(write(tmp_path, losses, moved, metric=LOSS), "bytes")
    assert by_format(table, "front") == {"fp32": False, "e5m10": True, "e5m3": True}


def test_equal_points_are_both_on_the_front(tmp_path):
    scores = {"fp32": 0.9, "e5m10": 0.9, "e8m7": 0.9}
    table, *_ = pareto(write(tmp_path, scores, {"fp32": 4.0, "e5m10": 2.0, "e8m7": 2.0}), "bytes")
    assert by_format(table, "front") == {"fp32": False, "e5m10": True, "e8m7": True}


def test_without_costs(tmp_path):
    root = write(tmp_path)
    (root / "costs.json").unlink()
    assert pareto(root, "bits")[0]["front"].any()
    with pytest.raises(AnalysisError, match="roundoff cost"):
        pareto(root, "bytes")
    with pytest.raises(AnalysisError, match="unknown cost"):
        pareto(root, "money")
    plot(root, types=["svg"])
    assert not list(root.glob("pareto*"))


@pytest.mark.parametrize("content", ["{", "[]", '{"costs": [{}]}'])
def test_costs_that_are_damaged_are_not_called_missing(tmp_path, content):
    root = write(tmp_path)
    (root / "costs.json").write_text(content)
    with pytest.raises(AnalysisError, match=r"costs.json: .*`roundoff cost` counts again"):
        pareto(root, "bytes")


def test_the_figures_and_the_report(tmp_path):
    root = write(tmp_path)
    written, _ = plot(root, types=["svg", "png"])
    names = {path.name for path in written}
    kinds = ("bits", "bytes", "bops", "memory", "energy")
    assert {f"pareto-{kind}.{end}" for kind in kinds for end in ("svg", "csv", "png")} <= names
    svg = (root / "pareto-bytes.svg").read_text()
    assert "e5m7\ncost 160, mean 0.892" in svg
    assert "on the Pareto front" in svg
    page = report(root)[0].read_text()
    assert "The line is the Pareto front" in page


def test_conditions_and_tasks(tmp_path):
    runs = [
        write_run(tmp_path, fmt, seed, 0.9 - 0.1 * (fmt != "fp32") * (eps > 0.1), eps=eps)
        for fmt in ("fp32", "e5m10")
        for eps in (0.1, 0.2)
        for seed in range(3)
    ]
    write_sweep(tmp_path, runs)
    costs = [
        {
            "config": {}, "runs": [run["id"]], "macs": 1, "bops": 2, "bytes_read": 3 + run["config"]["eps"],
            "bytes_written": 4, "bytes_kept": 5, "bytes_peak": 6, "uncounted": ["twice"], "models": {},
        }
        for run in runs
    ]  # fmt: skip
    (tmp_path / "costs.json").write_text(json.dumps({"layout": 1, "source": "", "costs": costs}))
    table, text, warnings = pareto(tmp_path, "bops")
    assert len(table) == 4
    assert "condition" in text
    assert any("twice" in warning for warning in warnings)
    assert set(pareto(tmp_path, "bytes")[0]["cost"]) == {7.1, 7.2}


def test_what_is_sent_is_a_cost_of_those_that_send(tmp_path):
    """Formats of actors change no byte of an update, but those of the messages with their weights."""
    root = write(tmp_path, moved=dict.fromkeys(MOVED, 100.0))
    content = json.loads((root / "costs.json").read_text())
    sizes = {"fp32": 400, "e5m10": 200, "e5m7": 150}
    for entry in content["costs"]:
        if entry["config"]["format"] in sizes:
            size = float(sizes[entry["config"]["format"]])
            entry["sent"] = {"a pull of weights by an actor": size - 1, "gradients of a learner, an update": 1.0}
    (root / "costs.json").write_text(json.dumps(content))
    table, _, warnings = pareto(root, "sent")
    sent = by_format(table, "cost")
    assert {fmt: cost for fmt, cost in sent.items() if not math.isnan(cost)} == sizes
    assert by_format(table, "front")["e5m7"]
    assert any("without a cost" in warning and "e5m3" in warning for warning in warnings)
    (root / "other").mkdir()
    with pytest.raises(AnalysisError, match="no format has a size in bytes of a message"):
        pareto(write(root / "other"), "sent")


def test_names_of_points_are_horizontal_and_do_not_overlap(tmp_path):
    moved = {"fp32": 4e6, "e5m10": 1.62e6, "e5m7": 1.60e6, "e5m3": 1.61e6, "e5m2": 0.6e6}
    figure = draw_pareto("demo", pareto(write(tmp_path, moved=moved), "bytes")[0])
    figure.draw_without_rendering()
    (axis,) = figure.axes
    assert axis.get_xlabel() == "MB moved in a step"
    assert axis.get_xlim() == pytest.approx((0, 4.24))
    assert {text.get_rotation() for text in axis.texts} == {0.0}
    boxes = [Text.get_window_extent(text) for text in axis.texts]
    assert len(boxes) == 5
    assert not [1 for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert "within 5 % of fp32's mean" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_command(tmp_path, monkeypatch, capsys):
    root = write(tmp_path)
    for arguments in (["--cost", "bops"], ["--cost", "energy", "--model", "chip", "--json"]):
        monkeypatch.setattr("sys.argv", ["roundoff", "pareto", str(root), *arguments])
        with pytest.raises(SystemExit, match="0"):
            main()
    first, second = capsys.readouterr().out.split("\n[", 1)
    assert "| on it" in first
    assert json.loads("[" + second)[0]["format"] == "e5m3"


def test_the_figure_of_the_page_is_of_data_that_is_here():
    """Means are those of the example's own table; costs are counted again, of two of its arithmetics."""
    root = Path(__file__).parents[2]
    shown = {(row["format"], row["policy"]): row for row in rows_of(root / "docs/figures/pareto-digits.csv")}
    example = {(row["format"], row["policy"]): row for row in rows_of(root / "examples/digits/summary.csv")}
    assert {key: row["mean"] for key, row in shown.items()} == {key: example[key]["mean"] for key in shown}
    assert shown.keys() == example.keys()
    plan = plan_file(root / "examples/digits/sweep.yaml", only=["format=[fp32, e5m10]", "seed=0"])
    for run in plan.runs:
        counted = count_program(run.config).cost
        fmt = run.config.format
        key = fmt, "none" if fmt == "fp32" else run.config.as_json().get("policy", {}).get("preset", "every-op")
        assert float(shown[key]["cost"]) == counted["bytes_read"] + counted["bytes_written"]
    plain = float(shown["fp32", "none"]["cost"])
    assert float(shown["e5m10", "every-op"]["cost"]) / plain == pytest.approx(0.54, abs=0.005)
    assert float(shown["e5m2", "mixed-precision"]["cost"]) / plain == pytest.approx(0.60, abs=0.005)


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))
