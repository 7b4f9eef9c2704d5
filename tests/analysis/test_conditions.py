"""What conditions are called in tables and figures: by the names of cases, where a mapping has one."""

import json

import pandas as pd
import pytest

from roundoff.analysis import against, read_experiment
from roundoff.analysis.errors import AnalysisError
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.plot import inline_svg
from roundoff.analysis.runs.conditions import value_text
from roundoff.analysis.tables.summary import summarize
from roundoff.runs.metric import RETURN

from .test_plot import draw, write_run, write_sweep

EIGHT = {"weights": "e4m3", "gradients": {"format": "e5m2", "rounding": "stochastic"}}


@pytest.fixture
def experiment(tmp_path):
    """Cases as of the preset eight-bits: fp32, fp16, and fp16 with storage in a format of its own."""

    def make(*more):
        runs = []
        for case, fmt, storage in [("fp32", "fp32", None), ("fp16", "e5m10", None), ("eight", "e5m10", EIGHT), *more]:
            for seed in (0, 1):
                run = write_run(tmp_path, fmt, seed, name=f"{case}{len(runs)}", score=800.0 + seed)
                run["config"]["storage"] = storage
                path = tmp_path / "runs" / run["id"] / "config.json"
                path.write_text(json.dumps({"config": run["config"], "version": "0.1.0"}))
                runs.append({**run, "case": case})
        write_sweep(tmp_path, runs)
        return read_experiment(tmp_path)

    return make


def table(name, experiment):
    return FIGURES[name].table(experiment, summarize(experiment), [])


def test_few_conditions_share_a_panel_and_have_the_names_of_their_cases(experiment):
    found = experiment()
    curves = table("curves", found)
    assert list(dict.fromkeys(curves["panel"])) == ["cartpole_swingup"]
    assert list(dict.fromkeys(curves["line"])) == ["fp32", "e5m10", "e5m10, eight"]
    (axis,) = draw("curves", found).axes
    assert {text.get_text() for text in axis.texts} >= {"fp32", "e5m10", "e5m10, eight"}


def test_many_conditions_have_panels_of_their_own(experiment):
    more = [(f"{name} weights", "e5m10", {"weights": name}) for name in ("e4m3", "e5m2", "e3m2", "posit8")]
    curves = table("curves", experiment(*more))
    panels = ["cartpole_swingup", *(f"cartpole_swingup, {case}" for case in ("eight", *sorted(c for c, *_ in more)))]
    assert sorted(set(curves["panel"])) == sorted(panels)
    assert set(curves["line"]) == {"fp32", "e5m10"}


def test_the_cells_of_a_heat_map_have_the_names_of_cases(experiment):
    cells = table("heatmap", experiment())
    assert sorted(set(cells["up"])) == ["eight", "none"]


def test_a_mapping_has_the_name_of_a_case_only_if_that_tells_it_from_others(experiment):
    curves = table("curves", experiment(("eight again", "e5m7", EIGHT)))  # two cases have it
    assert any("weights" in line for line in curves["line"])


def test_two_mappings_of_a_case_have_no_name(experiment):
    curves = table("curves", experiment(("eight", "e5m10", {"weights": "e5m2"})))
    assert len({line for line in curves["line"] if "weights" in line}) == 2


def test_a_reference_goes_by_the_name_of_its_case(experiment, tmp_path):
    full = value_text(next(one for one in experiment().runs["storage"] if value_text(one) != "none"))
    table, text, _ = against(tmp_path, reference={"storage": "eight"})
    assert table.equals(against(tmp_path, reference={"storage": full})[0])
    assert "weights" not in text
    with pytest.raises(AnalysisError, match=r"no run has storage six; there are eight, none$"):
        against(tmp_path, reference={"storage": "six"})


def test_numbers_that_are_nearly_the_same_have_words_of_their_own():
    assert value_text(1.234567e-4) != value_text(1.2345671e-4)
    assert value_text(1e-3) == "0.001"


def test_figures_of_unlike_tasks_have_scales_of_their_own(tmp_path):
    runs = [write_run(tmp_path, "fp32", 0)]
    runs.append(write_run(tmp_path, "fp32", 0, task="gym:Pendulum-v1", score=-150.0))
    write_sweep(tmp_path, runs)
    for name in ("curves", "degradation"):
        suite, pendulum, *_ = draw(name, read_experiment(tmp_path)).axes
        assert suite.get_ylim()[1] > 1000
        assert pendulum.get_ylim()[1] < 100


def test_a_line_without_a_name_whose_runs_all_crashed_is_drawn():
    row = {"task": "t", "panel": "t", "seeds": 2, "steps": 100, "format": "e5m2", "line": "", "n": 1, "return": 1.0}
    rows = [{**row, "kind": "crash", "step": 40}, {**row, "kind": "mean", "line": "e5m10", "step": 50}]
    curves = pd.DataFrame(rows).assign(ci_low=0.0, ci_high=2.0)
    assert inline_svg("curves", curves, "curves", RETURN).startswith("<svg")
