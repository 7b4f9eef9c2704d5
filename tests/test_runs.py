"""The folder of a run: its description names its files, and every reader of it says the same of the same files."""

import json
import re
from pathlib import Path

import pytest

from roundoff.errors import FileError
from roundoff.runs.folder import RunDirectory
from roundoff.runs.metric import Metric
from roundoff.runs.result import Crash, ProgramResult, Result, read_result

RESULTS = [
    Result("done", 1.5, 0.5, 1000, updates=7, untrained=0.25, quantized={"int8": 1.0}),
    Result("crashed", 0.0, 0.0, 500, Crash(500, "the policy took a non-finite action")),
    ProgramResult("done", 0.5, 3, None, {"loss": 0.5, "size": 7.0}, Metric(name="loss", goal="minimize", range=[0, 1])),
    ProgramResult("crashed", None, 3, Crash(3, "loss is NaN"), {}, Metric(name="loss", goal="minimize", error="crash")),
]


def test_the_description_names_every_file_of_a_run(tmp_path):
    page = Path(__file__).parents[1] / "docs" / "running-sweeps.md"
    files_of_a_run = page.read_text(encoding="utf-8").split("## The files of a run")[1].split("\n## ")[0]
    named = re.findall(r"^\| `([\w.]+)/?` \|", files_of_a_run, flags=re.MULTILINE)
    files = vars(RunDirectory(tmp_path))
    del files["path"]
    assert sorted(named) == sorted(path.name for path in files.values())


@pytest.mark.parametrize("result", RESULTS)
def test_what_was_written_is_read(tmp_path, result):
    files = RunDirectory(tmp_path)
    files.learners.mkdir()
    files.checkpoint.touch()
    files.end(result, {"seconds": 2})
    assert files.read_result() == result
    assert files.outcome()[:3] == (result.status, result.crash.reason if result.crash else "", result)
    assert files.seconds() == 2.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "timing.json"]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_with_one_thing_wrong_is_none(result):
    told = result.as_json()
    damages = [
        {"status": "odd"},
        {"step": 1.5},
        {"step": True},
        {"return": "1"},
        {"return": float("inf")},
        {"crash": 3},
    ]
    damages += [{"crash": {"reason": "no step"}}]
    damages += [{"values": {"loss": "low"}}, {"metric": {"name": 3, "goal": "minimize"}}] * ("values" in told)
    for damage in damages:
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            read_result(told | damage)
    for key in ("status", "return", "step"):
        with pytest.raises(KeyError):
            read_result({name: value for name, value in told.items() if name != key})


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"status": "done"}', '{"status": "odd", "return": 1}'])
def test_a_damaged_result_is_a_failure_with_a_complaint(tmp_path, content):
    files = RunDirectory(tmp_path)
    assert files.outcome().state == "waiting"
    files.record_failure("no luck")
    assert files.outcome()[:2] == ("failed", "no luck")
    files.result.write_text(content)
    outcome = files.outcome()
    assert (outcome.state, outcome.reason) == ("failed", "result.json is damaged; delete it to repeat the run")
    assert outcome.complaint.startswith(f"{files.result}: is ")
    with pytest.raises(FileError, match="delete the file to repeat the run"):
        files.read_result()


def test_a_reason_that_cannot_be_read_is_still_a_failure(tmp_path):
    files = RunDirectory(tmp_path)
    files.failure.write_text("{")
    assert files.outcome()[:2] == ("failed", "unknown")
    assert files.outcome().complaint == f"{files.failure}: is not JSON"
    files.failure.write_text(json.dumps({"reason": None}))
    assert files.outcome() == ("failed", "unknown", None, "")


def test_what_a_learner_saved_last_stays_when_it_makes_room(tmp_path):
    files = RunDirectory(tmp_path)
    for step in (90, 900, 1000):  # by number, and not by their names
        files.room_for_checkpoint_of(1, step).touch()
    files.room_for_checkpoint_of(2, 90).touch()
    assert files.room_for_checkpoint_of(1, 1100) == tmp_path / "learners" / "1-1100.pt"
    assert {path.name for path in files.learners.iterdir()} == {"1-1000.pt", "2-90.pt"}
    # Killed after it saved 1100, and before the leader did; the continued run saves 1100 again.
    files.checkpoint_of(1, 1100).touch()
    files.forget_checkpoints_after(1, 1000)
    files.room_for_checkpoint_of(1, 1100)
    assert files.checkpoint_of(1, 1000).exists()
