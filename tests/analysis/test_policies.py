"""Policies as conditions: what they make of one format is never added up, and fp32, which they leave alone, is one."""

import json
import re

import pytest
from program_runs import write_run, write_sweep

from roundoff.analysis import read_experiment, report, table
from roundoff.analysis.against import against
from roundoff.analysis.figures.catalogue import FIGURES
from roundoff.analysis.figures.relative import relative_table
from roundoff.analysis.runs.conditions import duplicates_in_fp32
from roundoff.analysis.tables.summary import summarize

pytestmark = pytest.mark.usefixtures("same_figures_are_drawn_once")

POLICIES = [{"preset": "every-op"}, {"preset": "mixed-precision"}]
LEAST = {"every-op": -24, "mixed-precision": -36}
LEVELS = {"fp32": 0.9, "e5m10": 0.8, "e8m7": 0.6}


@pytest.fixture(params=["by every policy", "once"])
def swept(tmp_path, request):
    """Two formats under two policies, observed, at two rates; fp32 as versions ran it that knew no better, and now."""
    runs = []
    for number, policy in enumerate(POLICIES):
        for fmt, score in LEVELS.items():
            if fmt == "fp32" and number and request.param == "once":
                continue
            for seed, lr in ((seed, lr) for seed in range(3) for lr in (0.1, 0.2)):
                run = write_run(tmp_path, fmt, seed, score + lr / 10 + seed / 1000, policy=policy, lr=lr, observe=True)
                runs.append(run)
                folder = tmp_path / "runs" / run["id"]
                counts = {"exponents": {str(LEAST[policy["preset"]]): 10, "0": 30}}
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"kind": "numerics", "step": 300, "backward": counts}) + "\n")
                (folder / "numerics.csv").write_text(
                    "role,results,overflow,underflow,subnormal,infinite,nan,inexact,additions,absorbed\n"
                    "backward,40,0,0,0,0,0,0,0,0\n"
                )
    return write_sweep(tmp_path, runs)


def drawn(name, experiment):
    return FIGURES[name].table(experiment, summarize(experiment), [])


@pytest.mark.parametrize(
    ("states", "left_out"),
    [
        (("done", "done", "crashed"), "bc"),
        (("failed", "waiting", "done"), "ab"),
        (("waiting", "crashed", "done"), "ac"),
    ],
)
def test_of_runs_in_fp32_that_are_one_the_first_that_has_ended_is_kept(states, left_out):
    configs = {
        name: {"format": "fp32", "seed": 0, "policy": {"preset": preset}}
        for name, preset in zip("abc", ("every-op", "storage", "mixed-precision"), strict=True)
    }
    outcomes = {name: {"status": state} for name, state in zip("abc", states, strict=True)}
    assert sorted(duplicates_in_fp32(configs, outcomes)) == list(left_out)


@pytest.mark.parametrize("figure", ["exponents", "gradients"])
def test_results_under_different_policies_are_not_added_up(swept, figure):
    found = drawn(figure, read_experiment(swept))
    of_format = found[found["format"] == "e5m10"]
    words = {"every-op": "every operation rounded", "mixed-precision": "products only"}
    assert of_format.groupby("series")["exponent"].min().to_dict() == {
        f"e5m10, lr {lr}, {words[policy]}": least for policy, least in LEAST.items() for lr in (0.1, 0.2)
    }


def test_fp32_is_one_run_and_the_reference_of_all_policies(swept):
    experiment = read_experiment(swept)
    plain = experiment.runs[experiment.runs["format"] == "fp32"]
    assert (len(plain), set(plain["policy"])) == (6, {"none"})
    summary = summarize(experiment)
    assert summary["n"].tolist() == [3] * 10
    assert summary["drop"].notna().all()
    compared = against(swept)[0]
    assert len(compared) == 8
    assert (compared["pairs"] == 3).all()
    assert {f"lr {lr:g}" for lr in compared["lr"]} == set(compared["reference"])
    shares = relative_table(experiment)
    assert len(shares) == 8
    assert (shares["share"] < 1).all()
    for figure in ("degradation", "curves"):
        names = drawn(figure, experiment)["series" if figure == "degradation" else "line"]
        assert len({name for name in names if name.startswith("fp32")}) == (2 if figure == "degradation" else 1)
    assert len(table(swept)) == len(experiment.runs)


def test_a_policy_that_only_some_of_one_name_have_is_left_as_it_is(tmp_path):
    """One policy is no condition, and fp32's rules about other formats round there, too."""
    rules = {"rules": [{"role": "forward", "format": "e5m2"}]}
    runs = [write_run(tmp_path, fmt, 0, 0.9, policy=policy) for fmt in LEVELS for policy in (POLICIES[0], rules)]
    experiment = read_experiment(write_sweep(tmp_path, runs))
    assert len(experiment.runs) == len(runs)


def test_the_report_has_one_fp32_and_one_row_a_policy(swept):
    text = report(swept)[0].read_text()
    assert not re.search("fp32, (policy|every|products)", text)
    assert "e5m10, lr 0.1, products only" in text


@pytest.mark.parametrize("figure", ["exponents", "gradients", "degradation", "heatmap", "plane"])
def test_figures_have_one_fp32(swept, figure):
    experiment = read_experiment(swept)
    FIGURES[figure].draw("mine", drawn(figure, experiment))
