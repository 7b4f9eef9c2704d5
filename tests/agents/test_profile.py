"""The profile of a run's time: what counts for what, what is printed, and what is known after an interruption."""

import json
from types import SimpleNamespace

import pytest
import torch

from roundoff.agents import FileError, TrainConfig, train
from roundoff.agents.run.profile import Profile, Stopwatch, read_profile
from roundoff.agents.run.stopping import Stopped, StopRequest

SMALL = {
    "steps": 2000,
    "action_repeat": 20,
    "hidden_units": 8,
    "batch_size": 8,
    "seed_steps": 20,
    "eval_every": 1000,
    "eval_episodes": 1,
}
ACTIVITIES = {"actions", "copies", "environment", "replay", "updates", "first update", "evaluation", "checkpoints"}


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("roundoff.agents.run.profile.time", SimpleNamespace(perf_counter=lambda: self.now))

    def pass_by(self, seconds):
        self.now += seconds


def test_what_is_waited_for_counts_for_the_activity_that_gave_it_to_the_device(monkeypatch):
    clock = Clock(monkeypatch)
    work = []

    def wait():
        clock.pass_by(sum(work))
        work.clear()

    stopwatch = Stopwatch(wait)
    stopwatch.continue_from(1000.0)
    with stopwatch.measure("evaluation"):
        clock.pass_by(1)
        with stopwatch.measure("actions"):
            clock.pass_by(2)
            work.append(10)
        clock.pass_by(3)
        work.append(20)
    clock.pass_by(4)
    assert stopwatch.seconds == {"evaluation": 24.0, "actions": 12.0}
    assert stopwatch.spent() == {"evaluation": 24.0, "actions": 12.0, "other": 4.0}
    assert stopwatch.total == 1040
    stopwatch.pause()
    clock.pass_by(100)
    stopwatch.go_on()
    stopwatch.count(-1.0)  # a second of the 4 was another's
    assert stopwatch.spent()["other"] == 3
    assert stopwatch.total == 1039


def test_the_table():
    profile = Profile({"updates": 6.0, "environment": 3.0, "copies": 1.0}, 2000)
    assert str(profile).splitlines() == [
        "                 seconds    share   ms per agent step",
        "updates             6.00   60.0 %               3.000",
        "environment         3.00   30.0 %               1.500",
        "copies              1.00   10.0 %               0.500",
        "together           10.00  100.0 %               5.000",
        "The limit of this run is updates: 60 % of the time.",
    ]


def test_what_limits_several_runs():
    one = Profile({"updates": 4.0, "environment": 3.0}, 100)
    both = Profile.of_all([one, Profile({"environment": 3.0, "actions": 3.0}, 50)])
    assert both == Profile({"updates": 4.0, "environment": 6.0, "actions": 3.0}, 150, None, 2)
    assert str(both).splitlines()[-1] == (
        "No single activity limits these 2 runs; most goes to the environment: 46 % of the time."
    )
    unknown = Profile.of_all([one, Profile({"updates": 1.0}, None)])  # by an earlier version
    assert unknown.agent_steps is None
    assert str(unknown).splitlines()[:2] == ["                 seconds    share", "updates             5.00   62.5 %"]


def test_what_is_said_of_a_gpu():
    def said(*waited):
        return str(Profile.of_all([Profile({"updates": 1.0}, 1, each) for each in waited])).splitlines()[-1]

    assert said(True, True, None).startswith("The GPU was waited for after each activity")
    assert said(True, False).startswith("The GPU was not waited for")
    assert said(None).startswith("The limit of")


@pytest.mark.parametrize("seconds", [{}, {"updates": 0.0}])
def test_no_time_at_all(seconds):
    assert str(Profile(seconds, 0)) == "No time was measured."


def test_a_run_that_is_stopped_and_continued(tmp_path):
    profiles = []
    stop = StopRequest()

    def stop_in_the_middle(progress):
        if progress.step >= 1000:
            stop.make()

    with pytest.raises(Stopped) as stopped:
        train(TrainConfig(**SMALL), tmp_path, stop_in_the_middle, stop, on_profile=profiles.append)
    train(TrainConfig(**SMALL), tmp_path, on_profile=profiles.append)
    first, second = profiles
    assert first.agent_steps == stopped.value.step // 20
    assert first.agent_steps + second.agent_steps == 100
    for profile in profiles:
        assert set(profile.seconds) == ACTIVITIES | {"logging", "other"}
        assert all(seconds > 0 for seconds in profile.seconds.values())
        assert profile.waited is None
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert timing["agent_steps"] == second.agent_steps
    assert sum(timing["spent"].values()) < timing["seconds"]  # which has those of the first stretch, too
    # On a busy machine more time passes between two readings of the clock.
    parts = sum(map(sum, (profile.seconds.values() for profile in profiles)))
    assert parts == pytest.approx(timing["seconds"], abs=0.1, rel=0.05)
    train(TrainConfig(**SMALL), tmp_path, on_profile=profiles.append)  # has ended: it says what it has written
    assert profiles[2] == read_profile(tmp_path / "timing.json")
    assert profiles[2].as_json() == {key: timing[key] for key in ("spent", "agent_steps")}


@pytest.mark.parametrize(
    "damage",
    [
        {"spent": None},
        {"spent": {"updates": "12"}},
        {"spent": {"updates": -1.0}},
        {"spent": {"updates": True}},
        {"spent": {"updates": 10**400}},
        {"agent_steps": 1.5},
        {"agent_steps": 10**400},
        {"waited_for_gpu": "no"},
    ],
)
def test_a_damaged_file_is_one_message(tmp_path, damage):
    path = tmp_path / "timing.json"
    path.write_text(json.dumps({"spent": {"updates": 1.0}, "agent_steps": 3, "waited_for_gpu": True}))
    assert read_profile(path) == Profile({"updates": 1.0}, 3, True)
    path.write_text(json.dumps({"spent": {"updates": 1.0}, **damage}))
    with pytest.raises(FileError, match=r"timing\.json: says not where a run's time has gone"):
        read_profile(path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_on_a_gpu_waits_while_it_is_profiled_and_ends_the_same(tmp_path):
    profiles = []
    config = TrainConfig(**SMALL, device="cuda")
    train(config, tmp_path / "profiled", on_profile=profiles.append)
    train(config, tmp_path / "plain")
    assert profiles[0].waited is True
    assert read_profile(tmp_path / "plain" / "timing.json").waited is False
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "profiled" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
