"""Runs that failed have no score, and are in every table and figure all the same."""

import pytest
from program_runs import write_failed, write_run, write_sweep

from roundoff.analysis import against, plot, read_experiment, report
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.tables.against_fp32 import against_reference
from roundoff.analysis.tables.summary import summarize


@pytest.fixture
def half_failed(tmp_path):
    """A sweep of two formats and two accumulators: e5m10 failed in both runs with one, in one of two with the other."""
    runs = []
    for seed in range(2):
        for accumulate in ("quire", "e8m7/32"):
            keys = {"accumulate": accumulate}
            runs.append(write_run(tmp_path, "fp32", seed, 0.9 + 0.01 * seed, **keys))
            if seed == 0 or accumulate == "quire":
                runs.append(write_failed(tmp_path, "e5m10", seed, **keys))
            else:
                runs.append(write_run(tmp_path, "e5m10", seed, 0.8, **keys))
    return write_sweep(tmp_path, runs)


def drawn(name, experiment):
    table = FIGURES[name].table(experiment, summarize(experiment), [])
    return FIGURES[name].draw(experiment.name, table, metric=experiment.metric)


def hatched(figure):
    return [patch for axis in figure.axes for patch in axis.patches if patch.get_hatch()]


def test_they_are_counted_beside_those_that_ended(half_failed):
    table = summarize(read_experiment(half_failed)).set_index(["format", "accumulate"])
    assert table["failed"].to_dict() == {
        ("fp32", "e8m7/32"): 0, ("fp32", "quire"): 0, ("e5m10", "e8m7/32"): 1, ("e5m10", "quire"): 2,
    }  # fmt: skip
    assert table["n"].tolist() == [2, 1, 2, 0]
    assert table["mean"].isna().tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", ["heatmap", "comparison", "degradation"])
def test_where_all_failed_figures_are_hatched(half_failed, name):
    figure = drawn(name, read_experiment(half_failed))
    assert len(hatched(figure)) == 1
    if name == "heatmap":
        assert {text.get_text() for text in figure.axes[0].texts} >= {"2 failed", "0.8\n1 failed"}


def test_against_has_a_row_for_them(half_failed):
    table = against_reference(read_experiment(half_failed)).set_index("accumulate")
    assert table["answer"].to_dict() == {"quire": "failed (2 of 2)", "e8m7/32": "cannot be said"}
    assert table["failed"].to_dict() == {"quire": 2, "e8m7/32": 1}
    _, words, _ = against(half_failed)
    assert "| failed (2 of 2)" in words
    assert "failed (2 of 2)" in report(half_failed)[0].read_text()


def test_against_says_so_where_nothing_else_ended(tmp_path):
    runs = [write_run(tmp_path, "fp32", 0, 0.9), write_failed(tmp_path, "e5m10", 0)]
    table, _, _ = against(write_sweep(tmp_path, runs))
    assert table[["format", "answer"]].to_numpy().tolist() == [["e5m10", "failed (1 of 1)"]]


def test_everything_is_drawn(half_failed):
    written, warnings = plot(half_failed, types=["svg"], tables=["md", "tex"])
    assert {"heatmap.svg", "summary.md"} <= {path.name for path in written}
    assert warnings == (f"{half_failed}: 3 runs have no score in the degradation plot (3 failed)",)
