"""Crashes and runs that have not learned: nothing good is said of them, by no command."""

import json

import pytest
from scipy import stats

from roundoff.analysis import against, report
from roundoff.analysis.runs.experiment import read_experiment
from roundoff.analysis.tables.against_fp32 import against_reference, share_interval
from roundoff.analysis.tables.needed_table import needed_table

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
    words = against(negative)[1].partition("\n\n")[2].splitlines()
    assert [cell.strip() for cell in words[0].split("|")][3] == "crashed"
    assert "| 2 of 2 " in words[-1]


def test_the_report_begins_with_what_crashed(negative):
    page = report(negative)[0].read_text()
    assert page.index("e5m4: crashed (2 of 2).") < page.index("infinity in addcdiv_ (optimizer), agent.py:116")


def test_without_an_update_nothing_can_be_said(tmp_path):
    for fmt in ("fp32", "e5m10"):
        for seed in range(3):
            write(tmp_path, fmt, seed, 9.0 + 0.1 * seed, task="gym:CartPole-v1", updates=0)
    assert answers(tmp_path) == {"e5m10": "cannot be said: fp32 itself made no update"}
    (needed,) = needed_table(read_experiment(tmp_path)).to_dict("records")
    assert (needed["bits"], needed["reason"]) == (None, "fp32 itself made no update")
    assert "e5m10: cannot be said: fp32 itself made no update." in report(tmp_path)[0].read_text()


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ((-1250.0, -1300.0), "cannot be said: fp32 is not shown to have learned"),
        ((-900.0, -2300.0), "cannot be said: fp32 is not shown to have learned"),
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


@pytest.mark.parametrize("is_open", [True, False])
def test_the_first_reference_to_end_is_not_the_only_one_while_another_is_open(tmp_path, is_open):
    """A condition without an fp32 of its own is compared with the only one that is planned, not that has ended."""
    for seed in range(2):
        for name, fmt, rate in (("a", "fp32", 0.1), ("b", "e5m10", 0.1), ("c", "e5m10", 0.2), ("d", "fp32", 0.2)):
            if name < "d" or is_open:
                write(tmp_path, fmt, seed, 100.0 + seed, task=f"{name}:x", untrained=0.0)
                folder = tmp_path / f"{name}-x-{fmt}-{seed}"
                config = {"task": "gym:Pendulum-v1", "format": fmt, "seed": seed, "lr": rate}
                (folder / "config.json").write_text(json.dumps({"config": config}))
            if name == "d" and is_open:
                (folder / "result.json").unlink()
    table = against_reference(read_experiment(tmp_path))
    assert table["lr"].tolist() == ([0.1] if is_open else [0.1, 0.2])
    said = [text for text in against(tmp_path)[2] if "can be compared" in text]
    assert said == [f"{tmp_path}: no run in fp32 that can be compared with e5m10, lr 0.2"] * is_open


def test_how_often_a_format_does_not_learn_is_apart_from_what_it_returns(tmp_path):
    """Half of the way from -1400 to the median of fp32, -152, is -776; seed 4 has not learned in fp32 itself."""
    for seed in range(5):
        write(tmp_path, "fp32", seed, -1300.0 if seed == 4 else -150.0 - seed, updates=900, untrained=-1400.0)
        write(tmp_path, "e5m10", seed, [-160.0, -161.0, -1300.0, None, -160.0][seed], updates=900)
        write(tmp_path, "e5m7", seed + 10, -776.0 - (seed > 0), updates=900)
    table = against_reference(read_experiment(tmp_path)).set_index("format")
    names = ["learnable", "unlearned", "learned_difference", "learned_pairs"]
    assert table.loc["e5m10", names].tolist() == [4, 2, -10, 2]  # of seeds 0 and 1
    assert table.loc["e5m7", ["learnable", "unlearned", "learned_pairs"]].tolist() == [5, 4, 0]  # no seed is shared
    exact = stats.binomtest(2, 4).proportion_ci(0.9, method="exact")
    assert table.loc["e5m10", ["unlearned_low", "unlearned_high"]].tolist() == pytest.approx([exact.low, exact.high])
    lines = against(tmp_path)[1].partition("How often runs learn")[2].splitlines()
    header, row, *_ = [line for line in lines if "ended below half way" in line or "e5m10" in line]
    cells = {name.strip(): cell.strip() for name, cell in zip(header.split("|"), row.split("|"), strict=True)}
    assert cells["ended below half way"] == "2 of 4 (9.8 % to 90.2 %)"
    assert cells["difference of the others"] == "-10"
    assert "How often a run learns if its seed learned in fp32" in report(tmp_path)[0].read_text()


@pytest.mark.parametrize("of", [1, 2, 4, 10, 16, 40])
def test_the_interval_of_a_share_covers_it_as_often_as_it_says(of):
    intervals = [share_interval(count, of) for count in range(of + 1)]
    for share in (0.0, 0.01, 0.1, 0.3, 0.5, 0.77, 0.95, 1.0):
        likely = stats.binom.pmf(range(of + 1), of, share)
        assert sum(likely[[low <= share <= high for low, high in intervals]]) >= 0.9
        assert sum(likely[[share < low for low, _ in intervals]]) <= 0.05 + 1e-12  # either end is a bound of 95 %


def test_ten_that_all_learn_leave_a_quarter_that_may_not():
    assert share_interval(0, 10) == pytest.approx((0, 1 - 0.05**0.1))
    assert share_interval(10, 10) == pytest.approx((0.05**0.1, 1))
