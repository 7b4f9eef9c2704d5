"""Crashes and runs that have not learned: nothing good is said of them, by no command."""

import json

import pytest

from roundoff.analysis import against, report
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.statistics.against_fp32 import against_reference, needed_table

BIRTH = "first non-finite result: infinity in addcdiv_ (optimizer) at agent.py:116 in step: self.move()"


def write(root, fmt, seed, score, *, task="gym:Pendulum-v1", **known):
    """A run of an agent that has ended; it crashed if it has no score."""
    folder = root / f"{task.replace(':', '-')}-{fmt}-{seed}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": {"task": task, "format": fmt, "seed": seed}}))
    crash = {"step": 60, "reason": f"the policy took a non-finite action; {BIRTH}"} if score is None else None
    result = {"status": "crashed" if crash else "done", "return": score or 0.0, "return_std": 0.0, "step": 100}
    (folder / "result.json").write_text(json.dumps(result | {"crash": crash} | known))


def answers(root):
    return against_reference(read_experiment(root)).set_index("format")["answer"].to_dict()


@pytest.fixture
def negative(tmp_path):
    """Returns below 0, so that the 0 of a crash is the best score there is."""
    for seed in range(2):
        write(tmp_path, "fp32", seed, -150.0 - seed, updates=900, untrained=-1400.0 + seed)
        write(tmp_path, "e5m10", seed, -150.5 - seed, updates=900)
        write(tmp_path, "e5m4", seed, None, updates=3)
    return tmp_path


def test_a_crash_is_worse_than_any_return(negative):
    experiment = read_experiment(negative)
    table = against_reference(experiment).set_index("format")
    assert table["answer"].to_dict() == {
        "e5m10": "shown to differ, yet equivalent within 5 %",
        "e5m4": "crashed (2 of 2)",
    }
    assert table[["crashed", "improvement"]].loc["e5m4"].tolist() == [2, 0]
    (needed,) = needed_table(experiment).to_dict("records")
    assert (needed["bits"], needed["by_means"], needed["reason"]) == (10, 10, "")
    words = against(negative)[1].splitlines()
    assert [cell.strip() for cell in words[0].split("|")][3] == "crashed"
    assert "| 2 of 2 " in words[-1]


def test_the_report_begins_with_what_crashed(negative):
    page = report(negative)[0].read_text()
    page = report(negative)[0].read_text()
    line = "<b>2 of 2 crashed</b>, first infinity in addcdiv_ (optimizer), agent.py:116."
    assert page.index(line) < page.index("How few bits?")


def test_without_an_update_nothing_can_be_said(tmp_path):
    for fmt in ("fp32", "e5m10"):
        for seed in range(3):
            write(tmp_path, fmt, seed, 9.0 + 0.1 * seed, task="gym:CartPole-v1", updates=0)
    assert answers(tmp_path) == {"e5m10": "cannot be said: fp32 itself made no update"}
    (needed,) = needed_table(read_experiment(tmp_path)).to_dict("records")
    assert (needed["bits"], needed["reason"]) == (None, "fp32 itself made no update")
    assert "10 significand bits are enough" not in report(tmp_path)[0].read_text()


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ((-1250.0, -1300.0), "cannot be said: that fp32 has learned is not shown"),
        ((-900.0, -2300.0), "cannot be said: that fp32 has learned is not shown"),
        ((-3150.0, -3153.0), "equivalent within 5 %"),
        ((None, -3153.0), "equivalent within 5 %"),  # not known
    ],
)
def test_what_was_as_good_before_learning_has_learned_nothing(tmp_path, before, said):
    for seed in range(2):
        write(tmp_path, "fp32", seed, -1257.0 - seed, updates=900, untrained=before[seed])
        write(tmp_path, "e5m10", seed, -1257.0 - seed, updates=900)
    assert answers(tmp_path) == {"e5m10": said}


def test_a_reference_that_crashed_is_none(tmp_path):
    for seed in range(2):
        write(tmp_path, "fp32", seed, None if seed else -150.0, updates=900)
        write(tmp_path, "e5m10", seed, -150.0, updates=900)
    assert answers(tmp_path) == {"e5m10": "cannot be said: fp32 itself crashed (1 of 2)"}
