"""Sweeps of users' own programs: their metric, formats of any family, and folders of several programs."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import yaml
from program_runs import ACCURACY, BIRTH, LOSS, write_run, write_sweep

from roundoff.analysis import AnalysisError, plot, read_experiment, report, table
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.figures.degradation import degradation_table
from roundoff.analysis.figures.drawing.axes import score_limits
from roundoff.analysis.reports.provenance import recipe
from roundoff.analysis.tables.against_fp32 import against_reference
from roundoff.analysis.tables.needed_table import needed_table
from roundoff.analysis.tables.run_table import FIRST, first_failures, first_non_finite
from roundoff.analysis.tables.summary import summarize
from roundoff.analysis.tables.wording import change
from roundoff.runs.metric import RETURN, Metric, read_metric
from roundoff.simulate.watching.report import Birth

pytestmark = pytest.mark.usefixtures("same_figures_are_drawn_once")

FORMATS = ("fp32", "bf16", "e5m3", "posit16", "int8", "mxfp8_e4m3", "fp8_e4m3_imaginary", "mymodule:ternary")


def score(fmt, seed):
    return round(0.97 - 0.05 * FORMATS.index(fmt) + 0.005 * seed, 4)


@pytest.fixture
def families(tmp_path):
    """Formats of all families, in an order of their own, three seeds; e5m3 crashes twice."""
    runs = []
    for fmt in ("mymodule:ternary", "int8", "fp32", "mxfp8_e4m3", "e5m3", "fp8_e4m3_imaginary", "posit16", "bf16"):
        for seed in range(3):
            crash = (150, BIRTH) if fmt == "e5m3" and seed else None
            runs.append(write_run(tmp_path, fmt, seed, score(fmt, seed), crash=crash))
    return write_sweep(tmp_path, runs)


@pytest.fixture
def losses(tmp_path):
    """A metric to be minimized, whose crashes have no score, with two accumulators."""
    runs = []
    for fmt, loss in (("fp32", 2.0), ("e5m10", 2.1), ("e5m7", 2.15), ("e5m3", 4.0)):
        for accumulate in (None, "e8m7/32"):
            for seed in range(4):
                keys = {"accumulate": accumulate} if accumulate else {}
                crash = (9, "the loss became NaN") if fmt == "e5m7" and accumulate and seed == 3 else None
                given = loss + 0.01 * seed + (0.05 if accumulate else 0)
                runs.append(write_run(tmp_path, fmt, seed, given, metric=LOSS, crash=crash, **keys))
    return write_sweep(tmp_path, runs, LOSS)


def draw(name, experiment):
    table = FIGURES[name].table(experiment, summarize(experiment), [])
    return FIGURES[name].draw(experiment.name, table, metric=experiment.metric)


def test_the_metric_the_task_and_the_order_of_formats_come_from_the_files(families):
    experiment = read_experiment(families)
    assert experiment.warnings == ()
    assert experiment.metric == Metric(name="accuracy", goal="maximize", crash=0.0, range=[0, 1])
    assert set(experiment.runs["task"]) == {"train"}
    assert experiment.conditions.keys == []
    assert experiment.formats[:3] == ("mymodule:ternary", "int8", "fp32")
    curves = experiment.curves.merge(experiment.runs[["id", "return", "status"]], on="id", suffixes=("", "_end"))
    assert (curves["return"] == curves["return_end"]).all()  # of the records that have the metric
    assert set(curves["step"]) == {300}
    assert set(experiment.training.columns) == {"id", "step", "train_loss"}
    assert set(experiment.returned.columns) == {"id", "accuracy", "size"}
    table = summarize(experiment).set_index("format")
    assert list(table.index) == ["fp32", "bf16", "e5m3", "mymodule:ternary", "int8", "mxfp8_e4m3",
                                 "fp8_e4m3_imaginary", "posit16"]  # fmt: skip
    assert table.loc["e5m3", ["n", "crashed"]].tolist() == [3, 2]
    assert table.loc["e5m3", "mean"] == pytest.approx(score("e5m3", 0) / 3)
    assert table.loc["int8", "drop"] == pytest.approx(score("fp32", 0) - score("int8", 0))


def test_formats_of_any_family_are_categories(families):
    experiment = read_experiment(families)
    (axis,) = draw("degradation", experiment).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == [
        "bf16", "e5m3", "mymodule:ternary", "int8", "mxfp8_e4m3", "fp8_e4m3_imaginary", "posit16",
    ]  # fmt: skip
    assert axis.get_ylabel() == "accuracy"
    low, high = axis.get_ylim()
    assert (low, high) == pytest.approx((-0.04, 1.04))  # the range of the metric
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses if len(line.get_xdata())] == [[0, 0]]
    bits = degradation_table(experiment, summarize(experiment), "bits")
    means = bits[bits["kind"] == "mean"].set_index("format")
    assert means["bits"].to_dict() == {
        "fp32": 32, "bf16": 16, "e5m3": 9, "int8": 8, "mxfp8_e4m3": 8.25, "posit16": 16,
    }  # fmt: skip
    assert means["series"].to_dict() == {
        "fp32": "fp32", "bf16": "e8mX", "e5m3": "e5mX", "int8": "intX", "mxfp8_e4m3": "mxfpX", "posit16": "positX",
    }  # fmt: skip
    assert FIGURES["degradation-bits"].table(experiment, summarize(experiment), []) is None  # one width of each


def test_bits_per_number_are_an_axis(tmp_path):
    runs = [write_run(tmp_path, f, s, 0.9 + s / 100) for f in ("fp32", "posit16", "posit8", "int8") for s in (0, 1)]
    experiment = read_experiment(write_sweep(tmp_path, runs))
    (axis,) = draw("degradation-bits", experiment).axes
    assert axis.get_xlabel() == "bits per number"
    assert list(axis.get_xticks()) == [8, 16]
    texts = [text.get_text() for text in axis.figure.legends[0].get_texts()]
    assert [text.partition(":")[0] for text in texts] == ["positX", "intX", "fp32", "one run"]  # and no crash
    variants = [
        write_run(tmp_path / "variants", f, s, 0.9 + s / 100)
        for f in ("fp32", "e4m3", "e4m3fn", "e4m2")
        for s in (0, 1)
    ]
    needed = needed_table(read_experiment(write_sweep(tmp_path / "variants", variants)))
    found = [tuple(row) for row in needed[["family", "smallest", "largest"]].to_numpy()]
    assert sorted(found) == [("", 2, 3), ("e4mXfn", 3, 3)]  # no variant replaces another


def test_no_users_module_is_imported_for_a_name(families, monkeypatch):
    monkeypatch.setattr("roundoff.analysis.tables.summary.Format.parse", pytest.fail)
    from roundoff.analysis.tables.summary import parsed

    assert parsed("some_module:a_format") is None


def test_plots_and_the_page_are_made_of_any_family(families):
    written, warnings = plot(families, types=["svg"])
    assert warnings == ()
    assert {"degradation.svg", "curves.svg", "training.svg"} <= {path.name for path in written}
    drawn = (families / "degradation.svg").read_text()
    assert "mymodule:ternary" in drawn
    assert "return" not in drawn
    again = {path: path.read_bytes() for path in written}
    plot(families, types=["svg"])
    assert again == {path: path.read_bytes() for path in written}
    page = report(families)[0].read_text()
    for said in ("Accuracy of each run", "mymodule:ternary", ">positX</th>", ">intX</th>", ">mxfp8_e4m3</th>"):
        assert said in page
    for word in ("return", "Return", "environment steps", "episode"):
        assert word not in page.partition("How to read this</h2>")[0].partition("<main")[2], word


def test_no_difference_of_losses_has_no_sign(tmp_path):
    runs = [write_run(tmp_path, fmt, seed, 2.0 + seed, metric=LOSS) for fmt in ("fp32", "e5m10") for seed in (0, 1, 2)]
    write_sweep(tmp_path, runs, metric=LOSS)
    (row,) = against_reference(read_experiment(tmp_path)).to_dict("records")
    names = [f"{kind}{end}" for kind in ("difference", "share") for end in ("", "_low", "_high")]
    assert {str(row[name]) for name in names[:3]} == {"0.0"}
    assert math.copysign(1, row["share"]) == 1


def test_a_metric_to_be_minimized(losses):
    experiment = read_experiment(losses)
    assert experiment.conditions.keys == ["accumulate"]
    summary = summarize(experiment).set_index(["accumulate", "format"])
    assert summary.loc[("default", "e5m3"), "drop"] == pytest.approx(2.0)  # worse by so much
    crashed = summary.loc[("e8m7/32", "e5m7")]
    assert (crashed["n"], crashed["crashed"]) == (4, 1)
    assert crashed["mean"] == pytest.approx(np.mean([2.2, 2.21, 2.22]))  # of those that have a score
    against = against_reference(experiment).set_index(["accumulate", "format"])
    assert against.loc[("default", "e5m3"), "improvement"] == 0
    assert against.loc[("default", "e5m3"), "difference"] == pytest.approx(2.0)
    low, high = against.loc[("default", "e5m3"), ["difference_low", "difference_high"]]
    assert low <= 2.0 <= high
    assert against.loc[("e8m7/32", "e5m7"), "pairs"] == 3
    shares = against.loc[("default", "e5m10"), ["share", "share_low", "share_high"]].tolist()
    assert shares == pytest.approx([0.1 / 2.015] * 3, abs=0.001)  # of the loss as it is: this is worse
    answers = against_reference(experiment, 0.1).set_index(["accumulate", "format"])["answer"]
    assert answers["default", "e5m10"] == "shown to differ, yet equivalent within 10 %"
    assert answers["e8m7/32", "e5m7"] == "crashed (1 of 4)"
    needed = needed_table(experiment, 0.1).set_index("accumulate")
    assert needed.loc["default", "bits"] == 7  # 2.15 is within 10 % above 2.0
    assert needed.loc["e8m7/32", "bits"] == 10  # a crash without a score is within no margin
    assert needed.loc["e8m7/32", "by_means"] == 10


def test_the_page_of_a_metric_to_be_minimized(losses):
    page = report(losses, 0.1)[0].read_text()
    for said in (
        "On train, accumulate default, e5m10 and e5m7: loss rises by 5 % and 7.4 %, yet equivalent within 10 %.",
        "if its mean loss is below fp32\u2019s plus 10\u2009% of it",
        "are shown to be at most 10\u2009% worse than fp32; better is good",
        "loss (nats)",
        "this \u2212 fp32",
        "A crashed run has no score",
        "crashed (no score)</text>",
        "less is better",
    ):
        assert said in page, said


def test_crashes_without_a_score_stand_at_the_worse_edge(losses):
    experiment = read_experiment(losses)
    drawn = draw("degradation", experiment)
    (axis,) = drawn.axes
    (cross,) = [line for line in axis.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert list(cross.get_ydata()) == [pytest.approx(0.98)]  # of the height: more is worse
    assert "crashed (no score)" in [text.get_text() for text in drawn.legends[0].get_texts()]


def test_all_runs_crash_without_a_score(tmp_path):
    runs = [write_run(tmp_path, f, s, None, metric=LOSS, crash=(5, BIRTH)) for f in ("fp32", "e5m3") for s in (0, 1)]
    write_sweep(tmp_path, runs, LOSS)
    _, warnings = plot(tmp_path, types=["svg"])
    assert warnings == ()
    assert math.isnan(pd.read_csv(tmp_path / "summary.csv")["mean"].iloc[0])
    page = report(tmp_path)[0].read_text()
    assert "e5m3: crashed (2 of 2)." in page
    assert ">fp32 itself crashed</td>" in page
    assert "there are no scores" in page


def test_a_heat_map_of_two_settings(losses):
    experiment = read_experiment(losses)
    table = FIGURES["heatmap"].table(experiment, summarize(experiment), [])
    assert table[["x", "y"]].drop_duplicates().to_numpy().tolist() == [["format", "accumulate"]]
    cells = {(cell.across, cell.up): cell.crashed for cell in table.itertuples()}
    assert len(cells) == 8
    assert cells["e5m7", "e8m7/32"] == 1
    axis = draw("heatmap", experiment).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["fp32", "e5m10", "e5m7", "e5m3"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["default", "e8m7/32"]
    assert "2.21\n1 x" in {text.get_text() for text in axis.texts}
    written, _ = plot(losses, figures=["heatmap"], types=["svg"])  # and from the file
    assert "e8m7/32" in written[-1].read_text()


def test_any_two_keys_make_a_heat_map(tmp_path):
    runs = [
        write_run(tmp_path, "e5m10", 0, lr * width, lr=lr, width=width, opt=opt, metric=LOSS)
        for lr in (0.1, 0.01, 1.0) for width in (16, 8) for opt in ("sgd", "adam")
    ]  # fmt: skip
    experiment = read_experiment(write_sweep(tmp_path, runs, LOSS))
    figure = draw("heatmap", experiment)
    titles = [axis.get_title() for axis in figure.axes[:2]]
    assert titles == ["width 16", "width 8"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0.01", "0.1", "1.0"]


def test_losses_over_decades_have_a_logarithmic_axis():
    loss = read_metric(LOSS)
    low, high = score_limits(loss, ["train"], [1e-3, 1.0, math.nan, math.inf])
    assert 0 < low < 1e-3
    assert 1 < high < 2
    assert score_limits(loss, ["train"], [])[0] < 0
    assert score_limits(read_metric(ACCURACY), ["train"], [0.5, 1.2]) == pytest.approx((-0.048, 1.248))
    assert score_limits(RETURN, ["walker_walk"], [3]) == (-40, 1040)


def test_what_a_program_logs_is_drawn_under_its_name(tmp_path):
    logs = [{"step": step, "loss": 10.0 ** -(step / 100), "lr": 0.1 - step / 1e4} for step in range(1, 500)]
    logs += [{"step": 250, "loss": None}]  # not finite
    logs += [{"step": step, "accuracy": step / 1000, "note": "text"} for step in range(10, 500, 10)]
    runs = [write_run(tmp_path, "e5m10", seed, 0.5, logs=logs) for seed in range(2)]
    experiment = read_experiment(write_sweep(tmp_path, runs))
    assert experiment.warnings == ()
    table = FIGURES["training"].table(experiment, summarize(experiment), [])
    assert table.groupby("id").size().tolist() == [200, 200]
    loss, lr = draw("training", experiment).axes
    assert (loss.get_ylabel(), loss.get_yscale()) == ("loss", "log")
    assert (lr.get_ylabel(), lr.get_yscale()) == ("lr", "linear")
    assert np.isnan(loss.lines[0].get_ydata()).any()  # a gap
    assert not np.isnan(lr.lines[0].get_ydata()).any()
    curve = FIGURES["curves"].table(experiment, summarize(experiment), [])
    assert curve["step"].tolist() == list(range(10, 500, 10))
    assert curve["return"].tolist() == pytest.approx([step / 1000 for step in range(10, 500, 10)])


def test_a_logged_name_is_no_formula(tmp_path):
    logs = [{"step": step, r"a $\foo$ b": step / 10} for step in range(1, 9)]
    write_sweep(tmp_path, [write_run(tmp_path, "e5m10", seed, 0.5, logs=logs) for seed in range(2)])
    plot(tmp_path, types=["svg"])


def test_keys_of_a_program_may_have_any_name(tmp_path):
    """Also those of columns, and of keys that agents have with another meaning."""
    keys = {"task": "mnist", "status": "mine", "n": 3, "mean": 0.5, "algorithm": "adam", "threads": 1, "steps": None}
    runs = [
        write_run(tmp_path, "e5m10", seed, 0.5 + seed / 10, **(keys | {"n": n, "threads": n, "layers": [n, n]}))
        for seed in (0, 1) for n in (3, 4)
    ]  # fmt: skip
    runs.append(write_run(tmp_path, "fp32", 0, 0.9))
    experiment = read_experiment(write_sweep(tmp_path, runs))
    assert set(experiment.runs["task"]) == {"train"}
    assert set(experiment.runs["status"]) == {"done"}
    assert set(experiment.runs["task_"]) == {"mnist", "default"}
    assert "threads" not in experiment.conditions.keys
    assert experiment.conditions.independent  # and some way to tell the runs apart
    assert set(experiment.runs["steps"]) == {"none", "default"}
    assert summarize(experiment)["mean"].tolist() == pytest.approx([0.55, 0.55, 0.9])
    plot(tmp_path, types=["svg"])
    report(tmp_path)


def test_several_programs_in_a_folder_are_told_apart(tmp_path):
    write_run(tmp_path, "fp32", 0, 0.9, program="train.py:train")
    write_run(tmp_path, "fp32", 1, 0.9, program="other.py:train")
    write_run(tmp_path, "fp32", 2, 2.0, metric=LOSS, program="train.py:train")
    experiment = read_experiment(tmp_path / "runs")
    assert set(experiment.runs["task"]) == {"train.py:train", "other.py:train"}
    assert experiment.metric.name == "accuracy"
    (warning,) = experiment.warnings
    assert "train-fp32-s2-x: is scored by loss, not accuracy; left out" in warning


@pytest.mark.parametrize(
    "damage",
    [{"name": 3}, {"goal": "best"}, {"range": [1, 0]}, {"range": [0]}, {"range": 3}, {"crash": "zero"}, {"crash": True},
     {"range": [0, math.nan]}],
)  # fmt: skip
def test_a_metric_that_is_none(tmp_path, damage):
    run = write_run(tmp_path, "fp32", 0, 0.5)
    path = tmp_path / "runs" / run["id"] / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metric": ACCURACY | damage}))
    experiment = read_experiment(tmp_path / "runs")
    assert experiment.runs["status"].tolist() == ["failed"]
    assert any("is not the result of a run" in warning for warning in experiment.warnings)
    write_sweep(tmp_path, [run], ACCURACY | damage)
    with pytest.raises(AnalysisError, match="is not the list of a sweep's runs"):
        read_experiment(tmp_path)


def test_what_failed_first(families):
    written, _ = plot(families, types=["svg"], figures=["curves"], tables=["md", "tex"])
    assert [path.name for path in written[:5]] == [
        "summary.csv", "runs.csv", "failures.csv", "summary.md", "summary.tex",
    ]  # fmt: skip
    (row,) = pd.read_csv(families / "failures.csv").to_dict("records")
    assert row == {
        "task": "train", "format": "e5m3", "crashed": 2, "runs": 3, "first_step": 150, "line": "train.py:12",
        "observed": 2, "share": 1,
        "first_non_finite": "overflow in aten.exp.default (forward in net.1)",
    }  # fmt: skip
    page = report(families)[0].read_text()
    assert '<td role="cell" data-label="first non-finite operation">overflow in aten.exp.default' in page


def test_the_share_of_what_failed_first_is_of_the_crashed_runs_that_were_observed(tmp_path):
    reasons = (BIRTH, BIRTH, BIRTH.replace("aten.exp", "aten.log"), "the loss became NaN")
    runs = [write_run(tmp_path, "e5m3", seed, 0.5, crash=(9, reason)) for seed, reason in enumerate(reasons)]
    (row,) = first_failures(read_experiment(write_sweep(tmp_path, runs))).to_dict("records")
    assert (row["crashed"], row["observed"], row["share"]) == (4, 3, 2 / 3)
    assert "aten.exp" in row["first_non_finite"]


def test_tables_for_people(families):
    plot(families, types=["svg"], figures=["curves"], tables=["md", "tex"])
    head, rule, *rows = (families / "summary.md").read_text().splitlines()
    assert head.split("|")[1:-1][0].strip() == "format"
    assert "| accuracy" in head
    assert set(rule) == set("|- ")
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in rows}
    assert cells["mymodule:ternary"][:3] == ["3", "0", "0.625 \u00b1 0.005"]
    assert cells["e5m3"][1:] == ["2", "0.29 \u00b1 0.5", "0 to 0.87", "0.685",
                                 "overflow in aten.exp.default (forward in net.1)"]  # fmt: skip
    latex = (families / "summary.tex").read_text()
    assert latex.startswith(
        "\\begin{tabular}{lrrlrrl}\n\\toprule\nformat & runs & crashed & accuracy & 95 \\% interval"
    )
    assert "fp8\\_e4m3\\_imaginary & 3 & 0 & 0.675 $\\pm$ 0.005 &" in latex
    with pytest.raises(AnalysisError, match="kind of table 'docx': unknown kind of table; allowed are md, tex"):
        plot(families, tables=["docx"])


def test_a_tidy_table_of_runs(families):
    runs = table(families)
    assert list(runs.columns) == [*FIRST, "program", "value_accuracy", "value_size"]
    assert len(runs) == 24
    assert "_repr_html_" in dir(runs)
    row = runs.set_index("run").loc["train-posit16-s2-x"]
    assert row[["task", "format", "bits", "seed", "status", "metric", "seconds"]].tolist() == [
        "train", "posit16", 16, 2, "done", "accuracy", 3.0,
    ]  # fmt: skip
    assert row["score"] == row["value_accuracy"] == score("posit16", 2)
    assert pd.isna(row["significand_bits"])
    crashed = runs[runs["status"] == "crashed"]
    assert set(crashed["crash_step"]) == {150}
    assert set(crashed["first_non_finite"]) == {"overflow in aten.exp.default (forward in net.1)"}
    assert crashed["value_accuracy"].isna().all()
    assert runs["bits"].isna().sum() == 6  # of two formats that only others know


def test_the_tidy_table_says_what_was_left_out(losses):
    (losses / "runs" / "train-e5m7-s0-x" / "result.json").write_text("{")
    with pytest.warns(UserWarning, match="is not JSON"):
        runs = table(losses)
    assert set(runs["accumulate"]) == {"default", "e8m7/32"}
    assert runs.set_index("run").loc["train-e5m7-s0-x", "status"] == "failed"
    assert runs["score"].isna().sum() == 2  # and the crash that has none


def test_profiles_of_a_metric_to_be_minimized(tmp_path):
    losses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    runs = [write_run(tmp_path, "fp32", seed, loss, metric=LOSS) for seed, loss in enumerate(losses)]
    runs.append(write_run(tmp_path, "fp32", 9, None, metric=LOSS, crash=(3, BIRTH)))
    experiment = read_experiment(write_sweep(tmp_path, runs, LOSS))
    shares = FIGURES["profiles"].table(experiment, summarize(experiment), []).set_index("return")["fraction"]
    assert shares.loc[shares.index[0]] == 0  # below, not at
    assert shares.loc[5.0] == pytest.approx(0.4)
    assert shares.iloc[-1] == pytest.approx(0.8)  # a crash without a score is below nothing
    assert "share of runs below" in draw("profiles", experiment).axes[0].get_ylabel()


def test_many_runs_are_a_mean_with_an_interval(tmp_path):
    logs = [{"step": step, "lr": 0.1} for step in range(1, 11)]
    runs = [
        write_run(tmp_path, fmt, seed, 0.5, logs=[*logs, {"step": 11, "lr": float(seed)}])
        for fmt, seeds in (("fp32", 5), ("e5m10", 2)) for seed in range(seeds)
    ]  # fmt: skip
    experiment = read_experiment(write_sweep(tmp_path, runs))
    (axis,) = draw("training", experiment).axes
    lines = [line for line in axis.lines if len(line.get_xdata())]
    assert len(lines) == 1 + 2  # a mean, and two runs of their own
    assert lines[0].get_ydata()[-1] == pytest.approx(2.0)
    (band,) = axis.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert 0 < low < 2 < high <= 4


def test_long_legends_make_room_for_themselves(tmp_path):
    """Panels keep their size, entries do not overlap panels, and names that fit beside lines stand there."""
    sizes = {}
    for count in (10, 30):
        root = tmp_path / str(count)
        formats = ["fp32", *(f"e{e}m{m}" for e in (5, 6) for m in range(1, 20))][:count]
        logs = [{"step": step, "loss": 2.0} for step in range(5)]
        runs = [write_run(root, fmt, 0, 2.0, metric=LOSS, logs=logs, lr=lr) for fmt in formats for lr in (0.1, 0.2)]
        drawn = draw("curves", read_experiment(write_sweep(root, runs, LOSS)))
        drawn.draw_without_rendering()
        axis = drawn.axes[0]
        sizes[count] = axis.get_window_extent().height
        assert len(axis.texts) == (count if count < 22 else 0)
        legends = drawn.legends
        assert len(legends) == (0 if count < 22 else 1)
        if legends:
            assert len(legends[0].get_texts()) == count
            assert legends[0].get_window_extent().y1 <= axis.get_tightbbox().y0 + 1
    assert sizes[30] > 0.75 * sizes[10]


def test_a_page_with_many_formats_has_a_legend(tmp_path):
    formats = ["fp32", *(f"e5m{m}" for m in range(1, 23))]
    write_sweep(tmp_path, [write_run(tmp_path, fmt, 0, 0.5) for fmt in formats])
    page = report(tmp_path)[0].read_text()
    section = page.partition('id="curves"')[2] or page.partition("Learning curves</h2>")[2]
    legend = re.findall(r">([^<>]+)</text>", section.partition("</section>")[0])[-len(formats) :]
    assert sorted(legend) == sorted(formats)


def test_a_setting_with_numbers_has_a_curve_of_the_score(tmp_path):
    """Step sizes: a line for each format, fp32 too, at places by the logarithm; two values make no curve."""
    steps = (0.1, 0.05, 0.01, 0.001)

    def of(folder, steps):
        runs = [
            write_run(folder, fmt, seed, dt * (2 + seed), metric=LOSS, dt=dt)
            for fmt in ("fp32", "e5m10", "int8") for dt in steps for seed in (0, 1)
        ]  # fmt: skip
        return read_experiment(write_sweep(folder, runs, LOSS))

    experiment = of(tmp_path, steps)
    drawn = draw("settings", experiment)
    (axis,) = drawn.axes
    assert axis.get_xlabel() == "dt"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.001", "0.01", "0.05", "0.1"]
    gaps = np.diff(np.log10(sorted(steps)))
    assert np.diff(axis.get_xticks()) == pytest.approx(gaps / gaps.min())
    means = [line for line in axis.lines if len(line.get_xdata()) == len(steps)]
    assert [list(line.get_ydata()) for line in means] == [pytest.approx([2.5 * dt for dt in sorted(steps)])] * 3
    legend = [text.get_text().partition(":")[0] for text in drawn.legends[0].get_texts()]
    assert legend == ["fp32", "e5m10", "int8", "one run"]
    assert "over seeds against dt" in report(tmp_path)[0].read_text()
    few = of(tmp_path / "few", steps[:2])
    assert FIGURES["settings"].table(few, summarize(few), []) is None


def test_fp32_of_each_condition_has_a_name_and_a_colour(tmp_path):
    runs = [
        write_run(tmp_path, fmt, 0, level + (fmt == "fp32"), metric=LOSS, method=name)
        for level, name in enumerate(("plain", "other"), 1) for fmt in ("fp32", "e5m10", "e5m7")
    ]  # fmt: skip
    drawn = draw("degradation", read_experiment(write_sweep(tmp_path, runs, LOSS)))
    (axis,) = drawn.axes
    assert axis.figure.get_suptitle().endswith(" (1 seed)")
    colors = {text.get_text().partition(":")[0]: line.get_color() for line, text in zip(
        drawn.legends[0].legend_handles, drawn.legends[0].get_texts(), strict=True)}  # fmt: skip
    for name, level in (("plain", 2), ("other", 3)):
        (line,) = [one for one in axis.lines if list(one.get_ydata()) == [level] * 2 and one.get_linestyle() == "--"]
        assert line.get_color() == colors[f"fp32, method {name}"] == colors[f"e5mX, method {name}"]
    assert colors["fp32, method plain"] != colors["fp32, method other"]


def test_a_share_of_almost_nothing_is_a_multiple():
    shares = {0.05: "+5.0 %", -0.5: "-50.0 %", 9.99: "+999.0 %", 1036081.83: "1.04e+06 times", -50.0: "-49 times"}
    assert {share: change(share) for share in (*shares, math.nan)} == shares | {math.nan: ""}


def environment_of(folder):
    page = report(folder)[0].read_text()
    return re.sub("<[^>]*>", " ", page.partition("Environment</h2>")[2].partition("</section>")[0])


def test_the_page_says_what_programs_runs_were_made_by(families):
    told = " ".join(environment_of(families).split())
    assert "program train.py:train source c0ffee commit of the program not recorded roundoff 0.2.0" in told
    assert "torch 2.13.0" in told
    assert "device cpu" in told
    assert "100 to 100 steps per second and run" in told
    (run, *_) = sorted((families / "runs").iterdir())
    timing = json.loads((run / "timing.json").read_text()) | {"source": "0dd", "program_commit": "abc"}
    (run / "timing.json").write_text(json.dumps(timing))
    _, (warning,) = report(families)
    assert warning == (
        "train.py:train was changed between runs (sources 0dd (1 run), c0ffee (23 runs)): what looks like a difference"
        " of formats may be one of programs"
    )
    assert "was changed between runs" in (families / "report.html").read_text()
    assert "commit of the program abc (1 run), not recorded (23 runs)" in " ".join(environment_of(families).split())


def test_the_page_shows_how_to_run_a_program_again(families, tmp_path):
    text, commands = recipe(read_experiment(families))
    content = yaml.safe_load(text)
    assert content["program"] == "train.py:train"
    assert content["metric"] == {"name": "accuracy", "goal": "maximize", "crash": 0.0, "range": [0.0, 1.0]}
    assert content["grid"].keys() == {"format", "seed"}
    assert commands == ["roundoff sweep mine.yaml", "roundoff report results/mine"]
    plan = json.loads((families / "sweep.json").read_text())
    write_sweep(families, plan["runs"][:-1])  # no grid any more
    content = yaml.safe_load(recipe(read_experiment(families))[0])
    assert sorted((case["format"], case["seed"]) for case in content["cases"]) == sorted(
        (run["config"]["format"], run["config"]["seed"]) for run in plan["runs"][:-1]
    )


def test_the_operation_is_read_as_observers_tell_it():
    birth = Birth("backward", "", "aten.mm.default", "NaN", "train.py:3: loss.backward()")
    for reason in (str(birth), f"the loss is not finite; {birth}", f"it is not finite; {birth}".replace("\n ", "")):
        assert first_non_finite(reason) == "NaN in aten.mm.default (backward)"
    inside = birth._replace(module="layers.3", what="overflow")
    assert first_non_finite(str(inside)) == "overflow in aten.mm.default (backward in layers.3)"
    assert first_non_finite("the policy took a non-finite action; no result was infinite or NaN") == ""


def test_a_series_without_a_number_is_in_no_legend(tmp_path):
    runs = [
        write_run(tmp_path, fmt, 0, 0.5, logs=[{"step": step, "loss": loss} for step in (1, 2)])
        for fmt, loss in (("fp32", 1.0), ("e5m3", None))
    ]
    drawn = draw("training", read_experiment(write_sweep(tmp_path, runs)))
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["fp32"]


def test_few_runs_are_counted_by_condition(losses):
    assert "only 4 runs on a task" in report(losses)[0].read_text()
