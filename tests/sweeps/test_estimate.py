"""How long a sweep will take: from finished runs, or measured."""

from processes import PATIENCE

from roundoff.agents import TrainConfig
from roundoff.files import make_directory, write_json
from roundoff.sweeps import estimate as estimating
from roundoff.sweeps import plan_text
from roundoff.sweeps.estimate import TimeEstimate, _Calibration, _Speed, _speed_key, estimate

BASE = "base: {action_repeat: 50, steps: 100000, seed_steps: 10, hidden_units: 8, batch_size: 8, eval_every: 50000}\n"


def finished(run, folder, seconds):
    path = make_directory(folder / "runs" / run.id)
    write_json(path / "config.json", {"config": run.config.as_json(), "version": "0"})
    write_json(path / "timing.json", {"seconds": seconds, "steps_per_second": 1.0})
    write_json(path / "result.json", {"status": "done"})


def test_runs_take_as_long_as_finished_ones_like_them(tmp_path):
    plan = plan_text(BASE + "grid: {seed: [0, 1], lr: [1e-3, 1e-4], format: [e5m10, e5m5]}", "f")
    finished(plan.runs[0], tmp_path, 100.0)
    finished(plan.runs[2], tmp_path, 300.0)
    damaged = make_directory(tmp_path / "runs" / "damaged")
    (damaged / "timing.json").write_text("{")
    guess = estimate(plan.runs[3:], [tmp_path])
    assert guess.seconds == {run.id: 200.0 for run in plan.runs[3:]}
    assert guess.notes == ("5 runs estimated by finished ones",)


def test_formats_are_as_fast_as_others_that_are_simulated_in_the_same_carrier():
    def key(format, **keys):
        return _speed_key({"format": format, **keys}, frozenset())

    assert key("e5m10") == key("e4m3") == key("posit8")
    assert len({key("e5m10"), key("e11m30"), key("fp32"), key("fp64")}) == 4
    assert key("fp16", native=True) != key("bf16", native=True)


def test_steps_before_the_first_update_and_evaluations_are_counted_apart():
    config = TrainConfig(task="gym:Pendulum-v1", steps=1000, action_repeat=2, seed_steps=100, eval_every=300)
    assert _Speed(0.5, 7.0, crashed=False).seconds(config) == (500 - config.steps_before_learning) * 0.5 + 4 * 7.0
    assert config.steps_before_learning >= 50


def test_what_is_unknown_is_measured_and_what_is_impossible_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(estimating, "_MOST_SECONDS", PATIENCE)  # the machine may be busy
    plan = plan_text(BASE + "cases: [{}, {steps: 200000}, {device: 'cuda:99'}]", "f")
    guess = estimate(plan.runs, [tmp_path])
    one, two = list(guess.seconds.values())
    assert 0.1 < one < 600
    assert abs(two / one - 2) < 0.1  # both follow from one measurement
    assert "no estimate for 1 runs: device is cuda:99" in guess.notes[0]
    assert "1 kind of runs measured" in guess.notes[1]
    assert list(tmp_path.iterdir()) == []


def test_runs_with_actors_and_slow_ones_are_not_measured(tmp_path, monkeypatch):
    plan = plan_text(BASE + "cases: [{algorithm: td3, actors: {count: 2}}, {lr: 1e-3}]", "f")
    monkeypatch.setattr(estimating, "_MOST_SECONDS", 0.0)
    guess = estimate(plan.runs, [tmp_path])
    assert guess.seconds == {}
    assert guess.notes[0].startswith("no estimate for 1 runs: the time of a run with actors")
    assert guess.notes[1].startswith("no estimate for 1 runs: it takes more than 0 s")


def test_workers_take_runs_in_turn():
    guess = TimeEstimate({"a": 3.0, "b": 1.0, "c": 1.0, "d": 5.0}, ())
    assert [guess.total(workers) for workers in (1, 2, 9)] == [10.0, 7.0, 5.0]


def test_a_first_update_whose_kernels_are_compiled_tells_nothing_of_a_step():
    watch = _Calibration(())
    watch.marks = [(0.0, 0), (4.0, 8), (44.0, 16), (45.0, 216), (45.5, 216)]
    assert watch.seconds_per_step() == 1 / 200
