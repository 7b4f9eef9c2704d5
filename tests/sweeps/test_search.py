"""Searches for the fewest bits by bisection: what is run, what is found, and that both can be continued."""

import json
import math

import pytest

from roundoff.formats import Format
from roundoff.sweeps import SweepFileError, plan_file
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.search import run_search
from roundoff.sweeps.workers.local import LocalProcesses

PROGRAM = """
import roundoff

def train(format: str, seed: int, need: int = 4, fails: bool = False):
    bits = roundoff.Format.parse(format).significand_bits
    if fails and bits == 5:
        raise RuntimeError("at five")
    return (0.99 if bits >= need else 0.5) + 0.001 * seed if bits > 1 else float("nan")
"""


class Watcher:
    def __init__(self):
        self.started = []

    def begin(self, *_):
        pass

    def notice(self, text):
        raise AssertionError(text)

    def event(self, event, state, score):
        if event.kind == "started":
            self.started.append(event.run.config.format)


def plan(folder, text):
    (folder / "search_program.py").write_text(PROGRAM)
    (folder / "s.yaml").write_text(f"program: search_program.py:train\n{text}")
    return plan_file(folder / "s.yaml")


@pytest.fixture
def search(tmp_path):
    def run(text):
        watcher = Watcher()
        _, found = run_search(plan(tmp_path, text), tmp_path / "out", lambda: LocalProcesses(2), watcher)
        return found, watcher.started

    return run


def test_a_bisection_finds_what_the_whole_grid_would(search, tmp_path):
    text = "metric: x\nsearch: {until: within 2 %}\ngrid: {need: [4, 20], format: {e5mX: 1..8}, seed: [0, 1]}"
    found, started = search(text)
    enough = {finding.given["need"]: finding.enough for finding in found}
    assert enough == {4: "e5m4", 20: None}
    for finding in found:
        assert len(finding.means) <= math.ceil(math.log2(8)) + 1
        assert finding.reference == pytest.approx(0.9905)
        assert finding.finished
    assert len(started) < 2 * 9 * 2 * 0.6
    assert search(text) == (found, [])  # continued: nothing is left to do
    told = json.loads((tmp_path / "out" / "search.json").read_text())["findings"]
    assert [finding["enough"] for finding in told] == [finding.enough for finding in found]
    listed = {run["config"]["format"] for run in SweepDirectory(tmp_path / "out").read()["runs"]}
    assert listed == set(started)
    assert "e5m4 is enough (fp32 0.9905; " in str(found[0])
    assert str(found[1]).startswith("need 20: none is good enough")


def test_exponent_bits_and_a_goal_to_minimize(search):
    text = (
        "metric: {name: x, goal: minimize, crash: 1}\nsearch: {bits: exponent, until: within 150 %}\n"
        "grid: {need: [2], format: [e3m2, e5m2, e8m2], seed: [0]}"
    )
    (finding,), started = search(text)
    assert finding.enough == "e3m2"
    assert set(started) == {"fp32", "e8m2", "e3m2"}
    assert Format.parse("e3m2").significand_bits == 2


def test_runs_that_fail_end_a_search(search):
    (finding,), started = search("search: {}\nbase: {fails: true}\ngrid: {need: [4], format: {e5mX: 2..9}, seed: [0]}")
    assert started == ["e5m9", "fp32", "e5m5"]
    assert finding.enough == "e5m9"
    assert "e5m5" not in finding.means
    assert not finding.finished
    assert "not finished, so far e5m9 is enough" in str(finding)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: 3", "search must be a mapping with the keys bits, until"),
        ("search: {until: nearly}", "search.until: must be a share of fp32's mean, such as 'within 2 %', got 'nearly'"),
        ("search: {bits: all}", "search.bits: must be 'significand' or 'exponent', got 'all'"),
        ("search: {}\ngrid: {format: [e5m2]}", "search needs at least two formats"),
        ("search: {}\ngrid: {format: [e5m2, int8]}", "int8 is none"),
        ("search: {}\ngrid: {format: [e5m2, e4m3]}", "formats that differ in nothing else, got e5m2 and e4m3"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, text, message):
    with pytest.raises(SweepFileError) as caught:
        plan(tmp_path, text)
    assert message in str(caught.value)
