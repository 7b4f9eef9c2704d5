"""From a folder of runs to tables and figures: numbers, damage, determinism."""

import json
import shutil
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from roundoff.analysis import AnalysisError, against, plot, read_experiment
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.figures.drawing.style import SIZES, look, ordered_looks, wrap
from roundoff.analysis.figures.relative import relative_table
from roundoff.analysis.paper.measured import gradients
from roundoff.analysis.plot import read_table
from roundoff.analysis.tables.summary import summarize
from roundoff.cli import app

FIXES = ["hadam", "softplus_fix", "normal_fix", "kahan_momentum", "compound_loss_scaling", "kahan_gradients"]
LEVEL = {"fp32": 800, "e5m10": 790, "e5m5": 700, "e5m2": 50}


def write_run(root, fmt, seed, *, task="cartpole_swingup", fixes=FIXES, score=None, status="done", name=None, **keys):
    identity = f"{task}-{fmt}-s{seed}-{name or ('all' if fixes else 'none')}"
    folder = root / "runs" / identity
    folder.mkdir(parents=True)
    config = {"task": task, "format": fmt, "seed": seed, "fixes": fixes, "lr": 1e-3, "steps": 3000, **keys}
    (folder / "config.json").write_text(json.dumps({"config": config, "version": "0.1.0"}))
    score = LEVEL[fmt] + 10.0 * seed if score is None else score
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in (1000, 2000, 3000):
            metrics.write(json.dumps({"kind": "train", "step": step, "episode_return": 1.0}) + "\n")
            point = {"kind": "eval", "step": step, "return_mean": score * step / 3000, "return_std": 1.0}
            metrics.write(json.dumps(point) + "\n")
    crash = {"step": 1500, "reason": "the policy took a non-finite action"} if status == "crashed" else None
    result = {"status": status, "return": 0.0 if crash else score, "return_std": 2.0, "step": 3000, "crash": crash}
    if status in ("done", "crashed"):
        (folder / "result.json").write_text(json.dumps(result))
    return {"id": identity, "config": config}


def write_sweep(root, runs):
    marker = {"layout": 1, "name": "demo", "description": "", "varying": ["format", "seed"], "runs": runs}
    (root / "sweep.json").write_text(json.dumps(marker))


def draw(name, experiment, size="screen"):
    table = FIGURES[name].table(experiment, summarize(experiment), [])
    return FIGURES[name].draw("", table, size=SIZES[size])


def test_exponents_are_read_and_drawn(sweep):
    assert [path.name for path in plot(sweep, figures=["exponents", "gradients"])[0]] == ["summary.csv", "runs.csv"]
    for seed in (0, 1):
        with (sweep / "runs" / f"cartpole_swingup-e5m10-s{seed}-all" / "metrics.jsonl").open("a") as metrics:
            for step in (1000, 2000):
                counts = {"results": 30, "exponents": {"-20": 10, "3": 20}}
                metrics.write(json.dumps({"kind": "numerics", "step": step, "backward": counts}) + "\n")
            metrics.write('{"kind": "numerics", "step": 3000, "backward": 4}\n')
    experiment = read_experiment(sweep)
    assert experiment.exponents["results"].sum() == 2 * 2 * 30
    assert [w.partition(": ")[2] for w in experiment.warnings] == ["this line is damaged; left out"] * 2
    written, _ = plot(sweep, figures=["exponents", "gradients"], types=["svg"])
    assert [path.name for path in written[-3:]] == ["exponents.svg", "gradients.csv", "gradients.svg"]
    lying = pd.read_csv(sweep / "gradients.csv")
    assert lying[["exponent", "results"]].to_numpy().tolist() == [[-20, 20], [3, 40]]  # of the last interval
    assert lying["share"].tolist() == pytest.approx([1 / 3, 2 / 3])
    svg = written[-3].read_text()
    assert "<!-- Where results lie, e5m10: backward -->" in svg
    assert "forward" not in svg  # of which there are no results


def test_gradients_of_networks_are_drawn_apart_where_they_were_counted(sweep):
    counts = {"actor": {"-9": 3, "-8": 1}, "critic": {"2": 4}}
    record = {f"gradients of {name}": {"exponents": found} for name, found in counts.items()}
    for seed in (0, 1):
        with (sweep / "runs" / f"cartpole_swingup-e5m10-s{seed}-all" / "metrics.jsonl").open("a") as metrics:
            record |= {"kind": "numerics", "step": 2000, "backward": {"results": 9, "exponents": {"7": 9}}}
            metrics.write(json.dumps(record) + "\n")
    experiment = read_experiment(sweep)
    plot(sweep, figures=["gradients"], types=["svg"])
    table = pd.read_csv(sweep / "gradients.csv")
    assert table[["role", "exponent", "results", "share"]].to_numpy().tolist() == [
        ["gradients of actor", -9, 6, 0.75], ["gradients of actor", -8, 2, 0.25], ["gradients of critic", 2, 8, 1.0],
    ]  # fmt: skip
    assert set(FIGURES["exponents"].table(experiment, summarize(experiment), [])["role"]) == {"backward"}
    measured = gradients(experiment, summarize(experiment))
    assert [(row.cells["gradients"], row.cells["median"]) for row in measured] == [("actor", "2^-9"), ("critic", "2^2")]


@pytest.fixture
def sweep(tmp_path):
    runs = [write_run(tmp_path, fmt, seed) for fmt in LEVEL for seed in (0, 1, 2)]
    write_sweep(tmp_path, runs)
    return tmp_path


def test_another_folder_may_be_written_into(sweep, tmp_path_factory, capsys):
    """The folder of the runs may be somebody else's, or only for reading."""
    out = tmp_path_factory.mktemp("out") / "new"
    before = sorted(path.name for path in sweep.iterdir())
    app(["plot", str(sweep), "--figures", "degradation", "--out", str(out)], standalone_mode=False)
    app(["report", str(sweep), "-o", str(out / "pages" / "mine.html")], standalone_mode=False)
    assert {"degradation.png", "degradation.csv", "summary.csv"} <= {path.name for path in out.iterdir()}
    assert "report" in (out / "pages" / "mine.html").read_text()
    assert sorted(path.name for path in sweep.iterdir()) == before
    assert str(out / "degradation.png") in capsys.readouterr().out
    (out / "file").touch()
    with pytest.raises(AnalysisError, match="file: cannot be made a folder"):
        plot(sweep, figures=["degradation"], out=out / "file")


def test_records_are_read_once_and_only_by_those_who_need_them(sweep, monkeypatch):
    """A folder of thousands of runs is read within seconds where final scores are all that is asked for."""
    read = []
    monkeypatch.setattr("roundoff.runs.log.read_bytes", lambda path: read.append(path) or path.read_bytes())
    plot(sweep, figures=["degradation"], types=["svg"])
    assert read == []
    against(sweep)  # reads evaluations, for the areas under curves
    assert len(read) == len(set(read)) > 0
    read.clear()
    plot(sweep, types=["svg"])
    assert len(read) == len(set(read)) == 12


def test_summary(sweep):
    table = summarize(read_experiment(sweep)).set_index("format")
    assert list(table.index) == ["fp32", "e5m10", "e5m5", "e5m2"]
    assert list(table["significand_bits"]) == [23, 10, 5, 2]
    assert list(table["mean"]) == [810, 800, 710, 60]
    assert list(table["std"]) == [10, 10, 10, 10]
    assert list(table["drop"]) == [0, 10, 100, 750]
    assert list(table["n"]) == [3, 3, 3, 3]
    assert ((table["ci_low"] < table["mean"]) & (table["mean"] < table["ci_high"])).all()
    assert ((table["ci_low"] >= table["min"]) & (table["ci_high"] <= table["max"])).all()


def test_crashes_count_as_zero_and_are_counted(sweep):
    runs = json.loads((sweep / "sweep.json").read_text())["runs"]
    runs.append(write_run(sweep, "e5m2", 3, status="crashed"))
    write_sweep(sweep, runs)
    row = summarize(read_experiment(sweep)).set_index("format").loc["e5m2"]
    assert (row["n"], row["crashed"], row["mean"], row["min"]) == (4, 1, 45.0, 0.0)


def test_several_tasks_are_averaged_with_equal_weight(tmp_path):
    runs = [
        write_run(tmp_path, fmt, seed, task=task, score=score + seed)
        for fmt, shift in (("fp32", 0), ("e5m10", -20))
        for task, score in (("cartpole_swingup", 800 + shift), ("finger_spin", 400 + shift))
        for seed in range(3 if task == "finger_spin" else 2)
    ]
    write_sweep(tmp_path, runs)
    table = summarize(read_experiment(tmp_path)).set_index(["task", "format"])
    assert table.loc[("all", "fp32"), "mean"] == pytest.approx((800.5 + 401) / 2)
    assert table.loc[("all", "e5m10"), "drop"] == pytest.approx(20)
    assert table.loc[("all", "fp32"), "std"] == pytest.approx((np.std([0, 1], ddof=1) + 1) / 2)
    assert table.loc[("all", "fp32"), "n"] == 5
    figure = draw("degradation", read_experiment(tmp_path))
    assert [axis.get_title() for axis in figure.axes][-1] == "mean over tasks"


def test_conditions_get_rows_and_lines_of_their_own(tmp_path):
    runs = [
        write_run(tmp_path, fmt, seed, fixes=fixes, score=LEVEL[fmt] if fixes else 0)
        for fmt in ("fp32", "e5m10", "e5m5")
        for seed in (0, 1)
        for fixes in (FIXES, [])
    ]
    write_sweep(tmp_path, runs)
    experiment = read_experiment(tmp_path)
    table = summarize(experiment)
    assert set(zip(table["fixes"], table["format"], strict=True)) == {
        (fixes, fmt) for fixes in ("all", "none") for fmt in ("fp32", "e5m10", "e5m5")
    }
    assert table.set_index(["fixes", "format"]).loc[("none", "e5m10"), "drop"] == 0
    labels = [text.get_text() for text in draw("degradation", experiment).legends[0].get_texts()]
    assert [label for label in labels if "e5mX" in label] == [
        "e5mX, six fixes: mean, 95 % bootstrap interval",
        "e5mX, no fixes: mean, 95 % bootstrap interval",
    ]


def test_scores_are_shares_of_those_of_fp32_of_the_same_task_and_condition(tmp_path):
    scores = {("fp32", 0): 400, ("e5m10", 0): 400, ("e5m2", 0): 100, ("fp32", 6): 10, ("e5m10", 6): 5, ("e5m2", 6): 0}
    runs = [
        write_run(tmp_path, fmt, seed, fixes=FIXES[:count], score=score * (1 + 0.1 * seed), name=f"{count}")
        for (fmt, count), score in scores.items()
        for seed in (0, 1)
    ]
    runs += [
        write_run(tmp_path, fmt, 0, task="pendulum_swingup", fixes=FIXES[:0], score=0.0, name="0")
        for fmt in ("fp32", "e5m2")
    ]
    write_sweep(tmp_path, runs)
    table = relative_table(read_experiment(tmp_path))
    found = {(row.series, row.format): (row.share, row.share_low, row.share_high) for row in table.itertuples()}
    assert {key: round(value[0], 6) for key, value in found.items()} == {
        ("e5mX, no fixes", "e5m10"): 1.0, ("e5mX, no fixes", "e5m2"): 0.25,
        ("e5mX, six fixes", "e5m10"): 0.5, ("e5mX, six fixes", "e5m2"): 0.0,
    }  # fmt: skip
    assert set(table["task"]) == {"cartpole_swingup"}  # of the other one, nothing is a share of 0
    low, high = found["e5mX, no fixes", "e5m10"][1:]
    assert (round(low, 3), round(high, 3)) == (round(1 / 1.1, 3), 1.1)
    assert found["e5mX, six fixes", "e5m2"][1:] == (0, 0)
    (axis,) = draw("relative", read_experiment(tmp_path)).axes
    assert axis.get_ylim()[0] == 0


@pytest.mark.parametrize("long", ["x" * 1000, "\x1b[2J" * 30, "a$b " * 100])
@pytest.mark.parametrize("key", ["format", "fixes"])
def test_long_names_leave_room_for_what_is_drawn(tmp_path, key, long):
    runs = [write_run(tmp_path, "e5m10", seed, score=90.0, **{key: long}) for seed in (0, 1)]
    write_sweep(tmp_path, [*runs, write_run(tmp_path, "fp32", 0)])
    written, _ = plot(tmp_path, types=["svg"])  # matplotlib warns of a panel without room, an error in tests
    assert {"degradation.svg", "curves.svg"} <= {path.name for path in written}


def test_figures_of_runs_that_are_all_of_formats_nobody_knows(tmp_path):
    write_sweep(tmp_path, [write_run(tmp_path, "no such", seed, score=90.0) for seed in (0, 1)])
    assert "summary.csv" in {path.name for path in plot(tmp_path, types=["svg"])[0]}


def test_conditions_are_compared_by_short_names(tmp_path):
    """Six of six fixes are all, five are all but one; what a condition settles is not said again."""
    without = [name for name in FIXES if name != "hadam"]
    runs = [
        write_run(tmp_path, "e5m10", seed, fixes=fixes, score=score, status=status, name=f"{len(fixes)}")
        for fixes, score, status in ((FIXES, 800, "done"), (without, 300, "done"), ([], 0, "crashed"))
        for seed in (0, 1)
    ]
    for run in runs:  # follows from the fixes
        run["config"]["lr"] = 1e-3 if run["config"]["fixes"] else 1e-4
    write_sweep(tmp_path, runs)
    experiment = read_experiment(tmp_path)
    (axis,) = draw("comparison", experiment).axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["e5m10, no fixes", "e5m10, without hAdam", "e5m10, six fixes"]
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert [len(line.get_xdata()) for line in crosses] == [2]
    (axis,) = draw("comparison", experiment, "single").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["no fixes", "without hAdam", "six fixes"]


@pytest.mark.parametrize(
    ("fixes", "name"),
    [
        (FIXES, "all"),
        ([], "none"),
        (FIXES[1:], "all but hadam"),
        ([*FIXES[1:], "noise_log_prob"], "+".join([*FIXES[1:], "noise_log_prob"])),
        ([*FIXES, "noise_log_prob"], "all+noise_log_prob"),
        (FIXES[:2], "hadam+softplus_fix"),
    ],
)
def test_selections_of_fixes_have_names(tmp_path, fixes, name):
    write_run(tmp_path, "e5m10", 0, fixes=fixes)
    assert read_experiment(tmp_path / "runs").runs["fixes"].tolist() == [name]


def test_a_line_of_one_width_has_its_interval(tmp_path):
    formats = ("e5m10", "e5m5", "e4m3")
    write_sweep(tmp_path, [write_run(tmp_path, fmt, seed, score=700.0 + seed) for fmt in formats for seed in (0, 1, 2)])
    experiment = read_experiment(tmp_path)
    (axis,) = draw("degradation", experiment).axes
    band, bar = axis.collections
    (ends,) = bar.get_segments()
    assert ends[:, 0].tolist() == [3, 3]
    assert 700 <= ends[0, 1] < 701 < ends[1, 1] <= 702
    assert {x for x, _ in band.get_paths()[0].vertices} == {5, 10}
    (axis,) = draw("degradation-bits", experiment).axes  # where exponents differ, too
    assert list(axis.get_xticks()) == [8, 11, 16]


def test_conditions_without_an_fp32_of_their_own_are_shares_of_the_only_one(tmp_path):
    """Titles of their panels stand in lines within them, and a panel has the seeds that were evaluated."""
    more = [*FIXES, "stochastic_compensation", "stochastic_targets", "stochastic_moments"]
    cells = {("fp32", 6): 800, ("e5m10", 6): 790, ("e4m3", 6): 300, ("e4m3", 9): 700, ("e5m3", 9): 600}
    runs = [
        write_run(tmp_path, fmt, seed, fixes=more[:count], score=score, name=f"{count}")
        for (fmt, count), score in cells.items()
        for seed in (0, 1)
    ]
    open_one = write_run(tmp_path, "fp32", 2, status="waiting", score=1.0)
    (tmp_path / "runs" / open_one["id"] / "metrics.jsonl").unlink()
    write_sweep(tmp_path, [*runs, open_one])
    experiment = read_experiment(tmp_path)
    table = FIGURES["relative"].table(experiment, summarize(experiment), [])
    told = "six fixes + stochastic compensation + stochastic targets + stochastic moments"
    assert table.set_index("series")["share"].to_dict() == {
        "e4mX, six fixes": 300 / 800, "e5mX, six fixes": 790 / 800, f"e4mX, {told}": 700 / 800,
        f"e5mX, {told}": 600 / 800,
    }  # fmt: skip
    drops = summarize(experiment).set_index(["format", "fixes"])["drop"]
    assert drops["e4m3", "all+stochastic_compensation+stochastic_targets+stochastic_moments"] == 100
    assert drops["e4m3", "all"] == 500
    title = draw("curves", experiment).get_suptitle()
    assert title.partition("\n")[0] == "Learning curves, cartpole swingup (2 seeds)"
    canvas = draw("plane", experiment)
    canvas.draw_without_rendering()
    panels = canvas.axes[:2]
    boxes = [axis.title.get_window_extent() for axis in panels]
    assert all(box.width < 1.1 * axis.bbox.width for box, axis in zip(boxes, panels, strict=True))
    assert panels[0].get_title() == "cartpole swingup, six fixes, fp32: 800"  # it fits
    assert "".join(panels[1].get_title().split()) == f"cartpoleswingup,{told},fp32:800".replace(" ", "")


@pytest.mark.parametrize(("rates", "drawn"), [(12, True), (13, False)])
def test_more_lines_than_can_be_told_apart_are_not_drawn(tmp_path, rates, drawn):
    formats = ("e5m10", "e5m2", "int8", "int4")
    grid = [(fmt, rate) for fmt in formats for rate in range(rates)]
    write_sweep(tmp_path, [write_run(tmp_path, fmt, 0, score=1.0, lr=rate, name=f"{rate}") for fmt, rate in grid])
    experiment, warnings = read_experiment(tmp_path), []
    table = FIGURES["degradation-bits"].table(experiment, summarize(experiment), warnings)
    assert (table is not None) == drawn
    told = [] if drawn else ["degradation-bits: 26 lines would be too many to tell apart; it is not drawn"]
    assert warnings == told


def test_names_that_would_run_into_each_other_are_slanted(tmp_path):
    cells = {f"e5m{m}": FIXES for m in range(3, 11)} | {"e5m2": [*FIXES, "stochastic_compensation"]}
    write_sweep(tmp_path, [write_run(tmp_path, fmt, 0, fixes=fixes, score=10.0) for fmt, fixes in cells.items()])
    for size, angle in (("screen", 0), ("single", 40)):
        axis = draw("heatmap", read_experiment(tmp_path), size).axes[0]
        assert {label.get_rotation() for label in axis.get_xticklabels()} == {angle}


@pytest.mark.parametrize(
    "text",
    ["a+b_c, " * 9, "x" * 70, "word " + "y" * 24 + " z", r"a\$b " * 20, "--" * 40, "a" * 24, "lr 1e-5 1e-5, " * 9],
)
def test_lines_of_names_are_short_and_lose_nothing(text):
    shown = wrap(text, 24)
    assert max(len(line.replace(r"\$", "$")) for line in shown.split("\n")) <= 24
    assert "".join(shown.split()) == "".join(text.split())
    assert "1e-\n" not in shown
    assert all(line.count("$") == line.count(r"\$") for line in shown.split("\n"))


def log(folder, **values):
    """What a run logs at the end of two episodes, instead of what it did."""
    records = [{"kind": "train", "step": step, **values} for step in (1000, 2000)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_what_runs_log_is_found_in_their_files(tmp_path):
    """An algorithm says which of its values are drawn; of one that says nothing, all are."""
    known, unknown = (tmp_path / name for name in ("known", "unknown"))
    for root, values in (
        (known, {"q": 5.0, "critic_loss_scale": 1e4, "entropy": 1.0, "episode_return": 3.0}),
        (unknown, {"epsilon": 0.5, "loss": None, "note": "text"}),
    ):
        for seed in (0, 1):
            log(root / "runs" / write_run(root, "fp32", seed)["id"], **values)
    (run, _) = sorted((unknown / "runs").iterdir())
    log(run, epsilon=1, regret=2)
    plot(known / "runs", figures=["training"], types=["svg"])
    drawn = draw("training", read_experiment(known / "runs"))
    assert [axis.get_ylabel() for axis in drawn.axes] == ["mean Q value", "loss scale of the critics"]
    assert [axis.get_yscale() for axis in drawn.axes] == ["linear", "log"]
    table = FIGURES["training"].table(read_experiment(known / "runs"), None, [])
    assert list(table.columns) == ["id", "step", "q", "critic_loss_scale", "task", "format", "series"]
    drawn = draw("training", read_experiment(unknown / "runs"))
    assert [axis.get_ylabel() for axis in drawn.axes] == ["epsilon", "loss", "regret"]
    assert [list(line.get_ydata()) for line in drawn.axes[0].lines[:2]] == [[1, 1], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("values", "drawn"),
    [({}, None), ({"task": 1, "format": 2, "loss": 3}, 1), ({f"value {i}": i for i in range(1000)}, 12)],
)
def test_odd_names_of_logged_values(tmp_path, values, drawn):
    log(tmp_path / "runs" / write_run(tmp_path, "fp32", 0)["id"], **values)
    written, warnings = plot(tmp_path / "runs", figures=["training"], types=["svg"])
    assert any("log 1000 values" in warning for warning in warnings) == (len(values) == 1000)
    table = FIGURES["training"].table(read_experiment(tmp_path / "runs"), None, [])
    assert (table is None) == (drawn is None) == (len(written) == 2)
    assert drawn is None or len(table.columns) == 5 + drawn


def test_how_a_run_is_carried_out_is_no_condition(tmp_path):
    for seed, threads in ((0, 1), (1, 2)):
        folder = tmp_path / "runs" / write_run(tmp_path, "fp32", seed)["id"]
        content = json.loads((folder / "config.json").read_text())
        content["config"] |= {"threads": threads, "environment_workers": seed, "checkpoint_every": 10 + seed}
        (folder / "config.json").write_text(json.dumps(content))
    assert read_experiment(tmp_path / "runs").conditions.keys == []


def test_returns_of_other_environments_have_their_own_range(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "all", "fp32", seed, task="gym:Pendulum-v1".replace(":", "_"), score=-1400.0 + 100 * seed)
    for path in (tmp_path / "all" / "runs").glob("*/config.json"):
        path.write_text(path.read_text().replace("gym_Pendulum", "gym:Pendulum"))
    experiment = read_experiment(tmp_path / "all" / "runs")
    for drawn in (draw("curves", experiment), draw("degradation", experiment)):
        low, high = drawn.axes[0].get_ylim()
        assert -1500 < low < -1400
        assert 0 < high < 100
    plot(tmp_path / "all" / "runs", figures=["degradation"], types=["svg"])  # nor any warning


def test_colours_are_seen_on_white_and_told_apart_by_readers_without_green_cones():
    """Checks relative luminance (WCAG 2.1) and distances in CIELAB with deuteranopia (Machado et al., 2009)."""
    deuteranopia = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]

    def lab(light):
        x, y, z = np.cbrt(np.maximum(np.array(to_xyz) @ np.clip(light, 0, 1) / [0.9505, 1.0, 1.089], 0.008856))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    for styles, least in (([look(i) for i in range(8)], 15), (ordered_looks(4), 15), (ordered_looks(8), 8)):
        colors = np.array([to_rgb(style.color) for style in styles])
        lights = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
        assert (1.05 / (lights @ to_xyz[1] + 0.05)).min() >= 3  # contrast with white
        for seen in (lights, lights @ np.transpose(deuteranopia)):
            assert min(np.linalg.norm(lab(one) - lab(other)) for one, other in combinations(seen, 2)) > least


def test_figures_show_every_run(sweep):
    runs = json.loads((sweep / "sweep.json").read_text())["runs"]
    runs.append(write_run(sweep, "e5m2", 3, status="crashed"))
    write_sweep(sweep, runs)
    experiment = read_experiment(sweep)
    (axis,) = draw("degradation", experiment).axes
    assert axis.get_xlabel() == "significand bits m"
    assert "return" in axis.get_ylabel()
    assert list(axis.get_xticks()) == [2, 5, 7, 10]  # also the precision of bf16
    assert [label.get_text() for label in axis.get_xticklabels()] == ["2", "5", "7\nbf16", "10\nfp16"]
    assert axis.figure.get_suptitle() == "Return against significand bits, cartpole swingup (4 seeds)"
    assert axis.get_title() == ""  # one title
    dots = [line for line in axis.lines if line.get_marker() == "o" and line.get_linestyle() == "None"]
    assert sum(len(line.get_xdata()) for line in dots) == 9
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xdata()) for line in crosses) == 1
    (axis,) = draw("curves", experiment).axes
    assert axis.get_xlabel() == "environment steps"
    assert {text.get_text() for text in axis.texts} == set(LEVEL)
    crashes = [line for line in axis.lines if line.get_marker() == "x"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in crashes] == [([1500], [0])]
    crashed_mean = next(line for line in axis.lines if line.get_ydata()[-1] == pytest.approx(45))
    assert list(crashed_mean.get_xdata()) == [1000, 2000, 3000]


def test_runs_that_all_crash_before_their_first_evaluation_are_seen(tmp_path):
    for seed in (0, 1):
        identity = write_run(tmp_path, "e5m10", seed, status="crashed")["id"]
        (tmp_path / "runs" / identity / "metrics.jsonl").write_text("")
    drawn = draw("curves", read_experiment(tmp_path / "runs"))
    (axis,) = drawn.axes
    (crosses,) = axis.lines
    assert (list(crosses.get_xdata()), list(crosses.get_ydata())) == ([1500, 1500], [0, 0])
    assert axis.get_xlim() == (0, 3000)
    assert [text.get_text() for text in axis.texts] == ["e5m10"]
    assert "crashed" in drawn.get_suptitle()


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".csv", ".png", ".svg", ".pdf")}


def test_the_same_runs_give_the_same_bytes_in_any_order(sweep, tmp_path_factory):
    options = {"types": ("png", "svg", "pdf"), "figures": ("degradation", "curves")}
    written, warnings = plot(sweep, **options)
    assert not warnings
    assert {"degradation.pdf", "curves.csv", "curves.svg"} <= {path.name for path in written}
    assert {path.name for path in written} == set(files(sweep))
    with Image.open(sweep / "degradation.png") as picture:
        assert picture.mode == "P"  # 256 colours: a small file
        assert [round(dots) for dots in picture.info["dpi"]] == [150, 150]
        assert (255, 255, 255) in {colour for _, colour in picture.convert("RGB").getcolors()}
    other = tmp_path_factory.mktemp("other") / sweep.name
    other.mkdir()
    for path in sorted((sweep / "runs").iterdir(), reverse=True):
        shutil.copytree(path, other / "runs" / path.name)
    runs = json.loads((sweep / "sweep.json").read_text())["runs"]
    write_sweep(other, runs[::-1])
    plot(other, **options)
    assert files(sweep) == files(other)
    table = pd.read_csv(sweep / "runs.csv")
    assert len(table) == 12
    assert {"id", "status", "return", "format", "seed", "lr"} <= set(table.columns)


def test_single_runs_and_plain_folders_are_read_too(sweep):
    assert len(read_experiment(sweep / "runs").runs) == 12
    (one,) = (sweep / "runs").glob("*e5m5-s1*")
    assert read_experiment(one).runs["return"].tolist() == [710.0]
    plot(one, types=["svg"], figures=["degradation", "curves"])  # one format, no fp32, no interval


def test_a_torn_last_line_costs_only_itself(sweep):
    (metrics,) = (sweep / "runs").glob("*fp32-s0*/metrics.jsonl")
    text = metrics.read_text()
    metrics.write_text(text[:-20])
    experiment = read_experiment(sweep)
    assert len(experiment.warnings) == 1
    assert "metrics.jsonl:6: this line is torn" in experiment.warnings[0]
    assert len(experiment.curves) == 3 * 12 - 1
    metrics.write_text("garbage\n" + text)
    experiment = read_experiment(sweep)
    assert "metrics.jsonl:1: this line is damaged" in experiment.warnings[0]
    assert len(experiment.curves) == 3 * 12


def test_unfinished_and_damaged_runs_are_reported_and_left_out(sweep):
    (sweep / "runs" / "cartpole_swingup-fp32-s0-all" / "result.json").unlink()
    (sweep / "runs" / "cartpole_swingup-fp32-s1-all" / "result.json").write_text("{]")
    shutil.rmtree(sweep / "runs" / "cartpole_swingup-e5m5-s0-all")
    (sweep / "runs" / "cartpole_swingup-e5m5-s1-all" / "result.json").write_text('{"status": "odd"}')
    _, warnings = plot(sweep, figures=["degradation"], types=["svg"])
    text = "\n".join(warnings)
    assert "4 runs have no score in the degradation plot (2 waiting, 2 failed)" in text
    assert "result.json: is not JSON" in text
    assert "is not the result of a run" in text
    table = pd.read_csv(sweep / "summary.csv").set_index("format")
    assert table["n"].to_dict() == {"fp32": 1, "e5m10": 3, "e5m5": 1, "e5m2": 3}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: p / "missing", "does not exist"),
        (lambda p: p, "holds no runs"),
        (lambda p: ((p / "file").write_text("") and None) or p / "file", "is no folder"),
        (lambda p: (p / "sweep.json").write_text("[]") and p, "not the list of a sweep's runs"),
        (lambda p: write_sweep(p, []) or p, "holds no runs"),
        (lambda p: write_sweep(p, [write_run(p, "fp32", 0, status="waiting")]) or p, "none of its 1 runs has ended"),
    ],
)
def test_folders_without_results_are_refused(tmp_path, prepare, message):
    with pytest.raises(AnalysisError, match=message):
        plot(prepare(tmp_path))


def test_figures_are_drawn_from_their_tables_alone(sweep):
    """The numbers in a figure are those of its table: drawn again from the file, it is the same."""
    plot(sweep, width="single", types=["svg"], figures=["degradation"])
    table = read_table((sweep / "degradation.csv").read_bytes())
    assert list(table.loc[table["kind"] == "mean", "return"]) == [810, 800, 710, 60]
    (axis,) = FIGURES["degradation"].draw("demo", table, size=SIZES["single"]).axes
    svg = (sweep / "degradation-single.svg").read_text()
    assert 'width="234pt"' in svg  # 3.25 in
    line = next(line for line in axis.lines if len(line.get_xdata()) == 3)
    assert list(line.get_ydata()) == [60, 710, 800]


def test_sizes_of_pages(sweep):
    for size, width in (("single", 3.25), ("double", 6.75)):
        figure = draw("degradation", read_experiment(sweep), size)
        assert figure.get_size_inches()[0] == width
        assert figure.get_suptitle() == ""
        assert figure.axes[0].xaxis.label.get_size() == pytest.approx(SIZES[size].font)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "a4"}, "width 'a4': unknown width; allowed are screen, single, double"),
        ({"types": ["gif"]}, "type 'gif': unknown type; allowed are png, svg, pdf"),
        ({"figures": ["pie"]}, "figure 'pie': unknown figure; allowed are degradation, curves"),
    ],
)
def test_other_sizes_formats_and_figures_are_refused(sweep, options, message):
    with pytest.raises(AnalysisError, match=message):
        plot(sweep, **options)


def test_the_plane_of_exponent_and_significand(tmp_path):
    formats = {"fp32": 800, "e5m10": 790, "e5m2": 50, "e3m10": 300, "e2m2": 0}
    runs = [
        write_run(tmp_path, fmt, seed, score=score, status="done" if score else "crashed")
        for fmt, score in formats.items()
        for seed in (0, 1)
    ]
    write_sweep(tmp_path, runs)
    experiment = read_experiment(tmp_path)
    axis = draw("plane", experiment).axes[0]
    assert axis.figure.get_suptitle().replace("\n", " ").endswith("cartpole swingup, fp32: 800")
    assert {text.get_text(): text.get_position() for text in axis.texts} == {
        "790": (1.5, 2.5), "50": (0.5, 2.5), "300": (1.5, 1.5), "0\n2 x": (0.5, 0.5),
    }  # fmt: skip
    (mesh,) = axis.collections
    assert mesh.get_array().count() == 4  # of 3 x 2; the others were not run
    assert [label.get_text() for label in axis.get_xticklabels()] == ["2", "10"]
    sweep = draw("degradation-exponent", experiment)
    assert [text.get_text() for text in sweep.legends[0].get_texts()][:2] == [
        "eXm10: mean, 95 % bootstrap interval", "eXm2: mean, 95 % bootstrap interval",
    ]  # fmt: skip
    assert list(sweep.axes[0].get_xticks()) == [2, 3, 5]


def test_without_a_second_width_there_is_no_plane(sweep):
    experiment = read_experiment(sweep)
    assert FIGURES["plane"].table(experiment, summarize(experiment), []).empty
    for name in ("degradation-exponent", "degradation-bits"):
        assert FIGURES[name].table(experiment, summarize(experiment), []) is None
    assert FIGURES["hyperparameters"].table(experiment, summarize(experiment), []).empty


def test_random_hyperparameters(tmp_path):
    draws = [(1e-3, 0.01, 800), (1e-4, 0.005, 700), (3e-4, 0.002, 300)]
    runs = []
    for lr, tau, score in draws:
        for fmt, loss in (("fp32", 0), ("e5m10", 20)):
            for seed in (0, 1):
                run = write_run(tmp_path, fmt, seed, score=score - loss + seed, name=f"{lr}")
                run["config"] |= {"lr": lr, "tau": tau}
                runs.append(run)
    write_sweep(tmp_path, runs)
    experiment = read_experiment(tmp_path)
    table = FIGURES["hyperparameters"].table(experiment, summarize(experiment), [])
    assert table[["draw", "lr", "tau", "format", "return"]].to_numpy().tolist() == [
        [draw, lr, tau, fmt, score - loss + 0.5]
        for draw, (lr, tau, score) in enumerate(sorted(draws), 1)
        for fmt, loss in (("fp32", 0), ("e5m10", 20))
    ]
    assert table["std"].tolist() == pytest.approx([np.std([0, 1], ddof=1)] * 6)
    each, spread = draw("hyperparameters", experiment).axes
    assert list(each.get_xticks()) == [1, 2, 3]
    assert list(spread.lines[0].get_xdata()) == [300.5, 700.5, 800.5, 800.5]
    assert list(spread.lines[0].get_ydata()) == pytest.approx([1, 2 / 3, 1 / 3, 0])


def test_profiles(tmp_path):
    runs = [write_run(tmp_path, "fp32", seed, score=100.0 * (seed + 1)) for seed in range(10)]
    runs += [write_run(tmp_path, "e5m10", seed, score=500.0) for seed in range(9)]
    write_sweep(tmp_path, runs)
    axis = draw("profiles", read_experiment(tmp_path)).axes[0]
    (fp32,) = [line for line in axis.lines if len(line.get_xdata())]  # nine runs are too few
    share = dict(zip(fp32.get_xdata(), fp32.get_ydata(), strict=True))
    assert (share[80], share[100], share[300], share[1000]) == (1, 0.9, 0.7, 0)  # above, not at


def test_of_two_algorithms_the_name_is_all_that_is_told(tmp_path):
    """Each has keys of its own; a config of before there were several names none."""
    for fmt in ("fp32", "e5m5"):
        for seed in range(2):
            write_run(tmp_path, fmt, seed, name="old")
            write_run(tmp_path, fmt, seed, name="new")
            path = tmp_path / "runs" / f"cartpole_swingup-{fmt}-s{seed}-new" / "config.json"
            config = json.loads(path.read_text())["config"] | {"algorithm": "td3", "policy_noise": 0.2, "lr": 1e-2}
            path.write_text(json.dumps({"config": config, "version": "0.2.0"}))
    experiment = read_experiment(tmp_path / "runs")
    assert experiment.conditions.keys == ["algorithm"]
    assert set(experiment.runs["algorithm"]) == {"sac", "td3"}
    table = summarize(experiment)
    assert len(table) == 4
    assert set(table["n"]) == {2}
    assert experiment.conditions.series({"format": "e5m5", "algorithm": "td3"}) == "e5m5, algorithm td3"
