"""What marks of figures say, and where: in every SVG of every figure."""

import json
import re
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from roundoff.analysis.figures.actor_time import ACTIVITIES
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.figures.degradation import degradation_table
from roundoff.analysis.plot import FigureFiles, inline_svg, write_figure
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.tables.pareto import pareto_table
from roundoff.analysis.tables.summary import summarize

from .test_plot import write_run, write_sweep

SVG = "{http://www.w3.org/2000/svg}"
LEVEL = {"fp32": 800, "e5m10": 790, "e5m5": 700, "e8m5": 710, "e8m2": 50, "int8": 400}
OBSERVED = {"results": 30, "exponents": {"-20": 10, "3": 20}}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Runs of which almost every figure can be drawn: two conditions of two numbers each, ten seeds, observed."""
    root = tmp_path_factory.mktemp("told")
    runs = []
    for lr, environments in ((1e-3, 1), (1e-4, 1), (1e-4, 2)):
        for fmt, score in LEVEL.items():
            for seed in range(5):
                crashed = fmt == "e8m2" and seed > 2
                run = write_run(
                    root, fmt, seed, score=score + 10.0 * seed, status="crashed" if crashed else "done",
                    name=f"{lr}-{environments}",
                )  # fmt: skip
                run["config"] |= {"lr": lr, "environments": environments}
                with (root / "runs" / run["id"] / "metrics.jsonl").open("a") as metrics:
                    records = [{"kind": "numerics", "step": 1000 * i, "backward": OBSERVED} for i in (1, 2)]
                    records += [
                        {"kind": "train", "step": 3000 + i, "q": 5.0 + i, "critic_norm": 1.0 + i} for i in range(3)
                    ]
                    metrics.write("".join(json.dumps(record) + "\n" for record in records))
                runs.append(run)
    write_sweep(root, runs)
    return read_experiment(root)


def table_of(name, experiment):
    if name == "differences":
        rows = [
            {"task": "t", "format": fmt, "seed": seed, "id": f"{fmt}-{seed}", "reference": "r", "step": step}
            | {"actor_l1": 0.1 * seed + 0.2, "q_difference": 0.5}
            for fmt in ("e5m10", "e5m5") for seed in (0, 1) for step in (1000, 2000)
        ]  # fmt: skip
        return pd.DataFrame(rows)
    if name == "actor-time":
        return pd.DataFrame([{"task": "t", "series": "int8", "n": 2, **dict.fromkeys(ACTIVITIES, 0.5)}])
    if name == "profiles":  # ten runs at least
        line = pd.DataFrame(
            {"return": [0.0, 500.0, 1000.0], "fraction": [1.0, 0.5, 0.0], "ci_low": 0.0, "ci_high": 1.0}
        )
        return line.assign(task="t", series="e5m5", n=10)
    if name == "pareto-bits":  # the figure is of runs with counted costs, which the table of bits needs not
        return pareto_table(experiment, "bits")
    if name == "settings":  # drawn of three values on
        return degradation_table(experiment, summarize(experiment), "lr")
    table = FIGURES[name].table(experiment, summarize(experiment), [])
    panels = {"exponents": "format", "curves-environments": "panel"}  # of which there are many, and one is as another
    return table[table[panels[name]].isin(table[panels[name]].unique()[-2:])] if name in panels else table


def parsed(name, experiment, folder, table=None):
    table = table_of(name, experiment) if table is None else table
    assert table is not None, f"these runs do not have the figure {name}"
    assert len(table)
    write_figure(FigureFiles(name, folder / "t.csv", [folder / "f.svg"]), table, "demo", metric=experiment.metric)
    return ET.parse(folder / "f.svg").getroot(), table


def told_of(root):
    """Every place with a text: its element and text."""
    groups = [group for group in root.iter(f"{SVG}g") if "told" in group.get("class", "").split()]
    return [(place, place.find(f"{SVG}title").text, group.get("class")) for group in groups for place in group]


# Curves across one number are drawn as those across another, and a front of one cost as that of another.
ALIKE = {name for name in FIGURES if name.startswith(("curves-", "pareto-"))} - {"curves-environments", "pareto-bits"}


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ALIKE])
def test_every_figure_tells_its_marks_to_pointer_keyboard_and_screen_reader(name, experiment, tmp_path):
    root, _ = parsed(name, experiment, tmp_path)
    told = told_of(root)
    assert told
    width, height = map(float, root.get("viewBox").split()[2:])
    for place, text, _ in told:
        assert text.strip()
        assert (place.get("tabindex"), place.get("role")) == ("0", "img")
        if place.tag == f"{SVG}circle":
            assert 0 <= float(place.get("cx")) <= width
            assert 0 <= float(place.get("cy")) <= height
        else:
            assert float(place.get("width")) >= 4
            assert float(place.get("height")) >= 4
            assert -1 <= float(place.get("x")) < width
            assert -1 <= float(place.get("y")) < height
    svg = inline_svg(name, table_of(name, experiment), "demo", experiment.metric)
    inline = ET.fromstring(svg.replace(" xlink:href", " href"))
    assert (inline.get("role"), inline.get("aria-label"), inline.get("tabindex")) == ("group", "demo", "0")
    assert svg.count("<title>") >= len(told)
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)) <= {(i, "") for i in ids} | {("", i) for i in ids}


@pytest.mark.parametrize("name", ["degradation", "comparison"])
def test_every_run_is_told_where_it_is_drawn(name, experiment, tmp_path):
    root, table = parsed(name, experiment, tmp_path)
    runs = table[table["kind"] == "run"]
    if name == "degradation":
        runs = runs[~runs["series"].str.startswith("fp32")]  # of which a band is drawn
    told = [(place, text) for place, text, kind in told_of(root) if kind == "told runs"]
    assert len(told) == len(runs)
    uses = [use for use in root.iter(f"{SVG}use") if use.get("x")]
    drawn = [(round(float(use.get("x")), 1), round(float(use.get("y")), 1)) for use in uses]
    near = {(x + dx, y + dy) for x, y in drawn for dx in (-0.1, 0, 0.1) for dy in (-0.1, 0, 0.1)}
    near = {(round(x, 1), round(y, 1)) for x, y in near}
    assert {(float(place.get("cx")), float(place.get("cy"))) for place, _ in told} <= near
    texts = {text for _, text in told}
    condition = "environments 1, lr 0.001" if name == "comparison" else "lr 0.001"
    assert f"e5m5, {condition}, seed 3: 730" in texts
    assert f"e8m2, {condition}, seed 4: crashed, scored 0" in texts
    means = {text for _, text, kind in told_of(root) if kind == "told means"}
    (mean,) = [text for text in means if text.startswith(f"e5m5, {condition}\n")]
    assert re.fullmatch(r".*\nmean 720 \(7\d\d to 7\d\d\)\n5 runs", mean)
    assert any(text.startswith("e8m2") and text.endswith("\n5 runs, 2 crashed") for text in means)


def test_lines_are_told_at_their_points_and_long_ones_at_some_of_them(experiment, tmp_path):
    root, table = parsed("curves", experiment, tmp_path)
    line = table[(table["line"] == "int8") & (table["kind"] == "mean")]
    places = [(place, text) for place, text, _ in told_of(root) if text.startswith("int8, step 2\u2009000\n")]
    assert len(places) == line["panel"].nunique()
    assert re.fullmatch(r"int8, step 2\u2009000\nmean 280 \(\d+ to \d+\)", places[0][1])
    steps = np.arange(1000) * 10
    long = table.iloc[:1].loc[np.zeros(1000, int)].assign(step=steps, steps=9990).reset_index(drop=True)
    root, _ = parsed("curves", experiment, tmp_path, long.assign(kind="mean"))
    texts = [text for _, text, _ in told_of(root)]
    assert len(texts) == 64
    assert "step 0\n" in texts[0]
    assert "step 9\u2009990\n" in texts[-1]


def test_texts_of_files_are_texts(experiment, tmp_path):
    evil = '<g onload="x">&$x_1$"\u202e'
    table = table_of("comparison", experiment)
    renamed = table.assign(series=table["series"].str.replace("lr", f"{evil} lr"))
    root, _ = parsed("comparison", experiment, tmp_path, renamed)
    assert not [key for element in root.iter() for key in element.attrib if key.startswith("on")]
    assert any('<g onload="x">&$x_1$"' in text for _, text, _ in told_of(root))
    svg = inline_svg("comparison", renamed, evil, experiment.metric)
    inline = ET.fromstring(svg.replace(" xlink:href", " href"))
    assert not [key for element in inline.iter() for key in element.attrib if key.startswith("on")]
    assert "\u202e" not in svg


def test_pictures_and_papers_have_nothing_of_it(experiment, tmp_path):
    table = table_of("degradation", experiment)
    names = [tmp_path / f"f.{kind}" for kind in ("png", "pdf")]
    write_figure(FigureFiles("degradation", tmp_path / "t.csv", names), table, "demo", metric=experiment.metric)
    assert all(b"told" not in path.read_bytes() for path in names)
