"""Searches for the best candidate by successive halving: what is run, what is found, what a candidate is."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundoff.searches import FEW, FIRST, ask, halving
from roundoff.sweeps import SweepFileError, plan_file
from roundoff.sweeps.folder.directory import SweepDirectory
from roundoff.sweeps.language.candidates import candidates
from roundoff.sweeps.search import run_search
from roundoff.sweeps.workers.local import LocalProcesses

from .test_search import QUICK, Watcher, plan

NEEDS = "base: {format: e5m5}\ngrid: {need: [4, 6, 7, 8, 9, 10, 11, 12], seed: 0..7}"
"""A sweep in which ``need 4`` alone scores 0.99, other candidates 0.5; one seed more is 0.001 more."""


@pytest.fixture
def search(tmp_path):
    def run(text):
        watcher = Watcher()
        made = plan(tmp_path, text)
        summary, (found,) = run_search(made, tmp_path / "out", lambda: LocalProcesses(2, QUICK), watcher)
        return found, watcher.started, summary

    return run


def test_the_best_gets_all_seeds_and_the_worse_half_two(search, tmp_path):
    text = f"metric: x\nsearch: {{for: best}}\n{NEEDS}"
    found, started, summary = search(text)
    assert len(started) == summary.done == 8 * 2 + 4 * 6
    assert found.finished
    assert found.standings[0].candidate == "need 4"
    assert found.standings[0].scores == pytest.approx([0.99 + 0.001 * seed for seed in range(8)])
    assert found.standings[0].mean == pytest.approx(0.9935)
    assert [len(one.scores) for one in found.standings] == [8] * 4 + [2] * 4
    assert [one.candidate for one in found.standings[1:4]] == ["need 6", "need 7", "need 8"]  # equal: as in the file
    assert "best: need 4; chosen by these seeds" in str(found)
    assert search(text)[:2] == (found, [])  # continued: nothing is left to do
    told = json.loads((tmp_path / "out" / "search.json").read_text())["findings"][0]["standings"]
    assert [one["candidate"] for one in told] == [one.candidate for one in found.standings]


def test_what_is_to_be_minimized_and_what_crashed(search):
    found, *_ = search(f"metric: {{name: x, goal: minimize, crash: 2}}\nsearch: {{for: best}}\n{NEEDS}")
    assert found.standings[0].candidate == "need 6"
    assert found.standings[-1].candidate == "need 4"
    found, *_ = search(
        "metric: x\nsearch: {for: best}\nbase: {need: 2}\ngrid: {format: [e5m1, e5m5, e5m6], seed: 0..7}"
    )
    assert [one.candidate for one in found.standings] == ["format e5m5", "format e5m6", "format e5m1"]
    assert found.standings[-1].crashed == 8


@given(
    scores=st.lists(st.lists(st.integers(0, 9), min_size=8, max_size=8), min_size=1, max_size=40),
    seeds=st.integers(2, 8),
)
def test_halving(scores, seeds):
    """Nobody is dropped for a worse one, rounds are of equal size, and the last round has all seeds unless it waits."""

    def mean(name, count):
        return math.fsum(scores[int(name)][:count]) / count

    before, known = [str(i) for i in range(len(scores))], 1
    rounds, best = ask(halving(before, seeds), lambda asked: {name: mean(name, asked[1]) for name in asked[0]})
    assert best == rounds[-1][0]
    for left, count in rounds:
        assert set(left) <= set(before)
        dropped = set(before) - set(left)
        assert all(mean(kept, known) >= mean(gone, known) for kept in left for gone in dropped)
        assert len(left) * count <= max(len(scores) * FIRST + FIRST * count, FEW * seeds)
        before, known = left, count
    assert count == seeds
    waiting = ask(halving([str(i) for i in range(9)], 8), lambda _: None)
    assert waiting == ([([str(i) for i in range(9)], FIRST)], None)


def test_an_agent_that_crashed_is_worst_also_where_returns_are_negative(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "search: {for: best}\nbase: {task: 'gym:Pendulum-v1', steps: 6000}\ngrid: {format: [e5m10, e4m3], seed: [0, 1]}"
    )
    made = plan_file(tmp_path / "s.yaml")
    SweepDirectory(tmp_path / "out").claim(made)
    for run in made.runs:
        crash = {"step": 1, "reason": "NaN"} if run.config.format == "e4m3" else None
        result = {"status": "crashed", "return": 0.0} if crash else {"status": "done", "return": -150.0}
        path = tmp_path / "out" / "runs" / run.id
        path.mkdir(parents=True)
        (path / "result.json").write_text(json.dumps(result | {"crash": crash, "step": 1}))
    _, (found,) = run_search(made, tmp_path / "out", lambda: LocalProcesses(1), Watcher())
    assert [(one.candidate, one.crashed) for one in found.standings] == [("format e5m10", 0), ("format e4m3", 2)]
    assert "best: format e5m10; chosen" in str(found)
    assert "no candidate is best: each has" in str(replace(found, standings=found.standings[1:]))


def test_another_metric_is_asked_for_after_the_end(search, monkeypatch):
    """A search by another metric wants as many runs as before, and others."""
    monkeypatch.setattr(Watcher, "notice", lambda *_: None)
    search(f"metric: x\nsearch: {{for: best}}\n{NEEDS}")
    found, started, _ = search(f"metric: y\nsearch: {{for: best}}\n{NEEDS}")
    assert found.finished
    assert len(started) == 6  # of one that was dropped before
    assert found.standings[0].candidate == "need 6"


def test_candidates_are_what_varies_but_tasks_and_seeds_and_what_follows_from_them(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "search: {for: best}\nbase: {steps: 60000}\ncases:\n  - {name: a, format: e5m2}\n  - {name: b, lr: 1e-3}\n"
        "zip: {task: [cartpole_swingup, finger_spin], action_repeat: [8, 2]}\ngrid: {tau: [0.1, 0.2], seed: [0, 1]}"
    )
    made = plan_file(tmp_path / "s.yaml")
    found = candidates(made.runs, made.varying)
    assert list(found) == ["a, tau 0.1", "a, tau 0.2", "b, tau 0.1", "b, tau 0.2"]
    assert {len(runs) for runs in found.values()} == {4}
    assert sorted(run.id for runs in found.values() for run in runs) == sorted(run.id for run in made.runs)


def test_candidates_have_names_though_a_case_has_none(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "search: {for: best}\nbase: {task: cartpole_swingup}\n"
        "cases: [{name: a, lr: 1e-3}, {lr: 2e-3}]\ngrid: {seed: [0, 1]}"
    )
    made = plan_file(tmp_path / "s.yaml")
    assert list(candidates(made.runs, made.varying)) == ["a, lr 0.001", "lr 0.002"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: {for: all}", "search.for: must be 'fewest bits', 'best' or 'cheapest', got 'all'"),
        ("search: {fr: best}", "unknown key in search 'fr'; did you mean 'for'?"),
        ("search: {for: best, bits: width}\ngrid: {need: [1, 2]}", "for: best takes no other keys, got bits"),
        ("search: {for: best}\ngrid: {seed: [1, 2]}", "something else than task and seed must vary"),
        (
            "search: {for: best}\ngrid: {need: [1, 2], seed: [0, 1]}\nexclude: [{need: 1, seed: 1}]",
            "takes candidates with the same tasks and seeds, each once; 'need 1' and 'need 2' have others",
        ),
    ],
)
def test_mistakes(tmp_path, text, message):
    with pytest.raises(SweepFileError) as caught:
        plan(tmp_path, text)
    assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0
