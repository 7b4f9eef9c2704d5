"""Populations: every run has the bytes it has alone, whatever becomes of the others."""

import json
import time
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace

import pytest

from roundoff.agents import TrainConfig, train
from roundoff.agents.errors import FileError
from roundoff.agents.programs import compiled as compiled_updates
from roundoff.agents.programs.population import shared_kind
from roundoff.agents.run.loop import Run
from roundoff.agents.run.stopping import StopRequest
from roundoff.agents.training import together
from roundoff.agents.training.together import Job, train_together
from roundoff.files import directory_lock
from roundoff.runs.result import Result
from roundoff.simulate.compiling.graphs import tracing as graphs
from roundoff.simulate.compiling.step import reason_against_compiling

# Scales that are too large at first and soon grow: steps are skipped, scales halve and double.
TINY = {
    "task": "cartpole_swingup", "hidden_units": 16, "batch_size": 16, "action_repeat": 8, "steps": 800,
    "seed_steps": 20, "eval_every": 400, "eval_episodes": 1, "checkpoint_every": 200, "initial_loss_scale": 2.0**22,
    "loss_scale_growth_interval": 3, "kahan_momentum_scale": 2.0**15,
}  # fmt: skip
MEMBERS = [
    {"format": "e5m10", "lr": 3e-3, "tau": 0.02},
    {"format": "e5m7", "seed": 1, "discount": 0.9, "steps": 600, "seed_steps": 60, "evaluate_in": ["quarl4", "e4m3"]},
    {"format": "e4m3", "seed": 2, "initial_temperature": 1.0, "lr": 2.5, "eval_every": 200},
]


def configs(*members, **keys):
    return [TrainConfig(**{**TINY, **member, **keys}) for member in members]


def jobs(folder, runs, **callbacks):
    return [Job(config, folder / str(i), **callbacks) for i, config in enumerate(runs)]


def bytes_of(folder, count):
    names = ("metrics.jsonl", "result.json", "agent.pt")
    return [[(folder / str(i) / name).read_bytes() for name in names] for i in range(count)]


def trained_alone(folder, runs):
    return {i: train(config, folder / str(i), compiled=False) for i, config in enumerate(runs)}


@pytest.mark.usefixtures("short_episodes")
def test_runs_have_the_bytes_they_have_alone(tmp_path):
    """One of them ends before the others, one crashes, one begins to learn later."""
    runs = configs(*MEMBERS)
    notices = []
    outcomes = {}
    for i, outcome in train_together(jobs(tmp_path / "together", runs, on_notice=notices.append), compiled=True):
        with directory_lock(tmp_path / "together" / str(i)):  # it is free as soon as the run has ended
            outcomes[i] = outcome
    assert outcomes == trained_alone(tmp_path / "alone", runs)
    assert [outcomes[i].status for i in range(3)] == ["done", "done", "crashed"]
    assert bytes_of(tmp_path / "together", 3) == bytes_of(tmp_path / "alone", 3)
    assert notices == ["updates are compiled, of 3 runs together"] * 3


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize("roles", [["backward", "optimizer"], ["forward", "backward"]], ids="-".join)
def test_rules_about_roles(tmp_path, roles, uncompiled):
    policy = {"rules": [{"role": roles, "format": "fp32"}]}
    members = {"format": "e5m10"}, {"format": "e5m7", "seed": 1, "discount": 0.9}
    runs = configs(*members, policy=policy, lr=1e-3, steps=320, eval_every=320)
    notices = []
    outcomes = dict(train_together(jobs(tmp_path / "together", runs, on_notice=notices.append), compiled=True))
    assert outcomes == trained_alone(tmp_path / "alone", runs)
    assert bytes_of(tmp_path / "together", 2) == bytes_of(tmp_path / "alone", 2)
    assert notices == ["updates are compiled, of 2 runs together"] * 2


def of_forward(name, **others):
    rules = [{"role": role, "format": format} for role, format in ({"forward": name} | others).items()]
    return {"format": "fp32", "policy": {"rules": rules}}


def storing(weights, moments, rounding="nearest-even"):
    return {
        "format": "fp32",
        "storage": {"weights": weights, "second_moments": {"format": moments, "rounding": rounding}},
    }


STORED = {"storage": storing("e5m10", "e5m2")["storage"]}


@pytest.mark.usefixtures("short_episodes")
def test_formats_of_parts_are_data(tmp_path, uncompiled):
    """Formats of a role, and of what is stored, are inputs of one program."""
    members = [of_forward("e5m9") | STORED, of_forward("e5m3") | {"storage": storing("e5m5", "e5m4")["storage"]}]
    runs = configs(*members, initial_loss_scale=1e4, steps=320, eval_every=320)
    notices = []
    outcomes = dict(train_together(jobs(tmp_path / "together", runs, on_notice=notices.append), compiled=True))
    assert outcomes == trained_alone(tmp_path / "alone", runs)
    assert bytes_of(tmp_path / "together", 2) == bytes_of(tmp_path / "alone", 2)
    assert notices == ["updates are compiled, of 2 runs together"] * 2


@pytest.mark.parametrize(
    ("members", "together"),
    [
        ([of_forward("e5m10"), of_forward("e5m3")], True),
        ([storing("e5m10", "e5m2"), storing("e5m5", "e5m4")], True),
        ([storing("e5m10", "e5m2"), storing("e5m10", "e4m3fn_saturate")], False),  # rounded by another loop
        ([storing("e5m10", "e5m2"), storing("e5m10", "e5m10")], False),  # one format is one input
        ([storing("e5m7", "e5m3", "stochastic"), storing("e5m7", "e5m2", "stochastic")], False),
        ([of_forward("fp32"), of_forward("e5m3")], False),  # where nothing is rounded
        ([of_forward("fp32", backward="e5m3"), of_forward("e5m3", backward="fp32")], False),
        # The same three formats; another one stands for two of them.
        ([of_forward("e5m10") | STORED, of_forward("e5m2") | STORED], False),
    ],
    ids=["roles", "stored", "loops", "the-same", "stochastic", "fp32", "swapped", "which"],
)
def test_which_runs_can_be_together(members, together):
    one, other = (shared_kind(config) for config in configs(*members))
    assert (one is not None and one == other) == together


@pytest.mark.usefixtures("short_episodes")
def test_stopped_and_continued(tmp_path):
    runs = configs(*MEMBERS, lr=1e-3, seed_steps=20, steps=480, eval_every=240, checkpoint_every=120)
    stop, notices = StopRequest(), []

    def stop_in_the_middle(progress):
        if progress.step >= 240:
            stop.make()

    outcomes = train_together(jobs(tmp_path / "together", runs, on_progress=stop_in_the_middle), stop, compiled=True)
    assert {str(outcome) for _, outcome in outcomes} == {"stopped at step 240"}
    continued = dict(train_together(jobs(tmp_path / "together", runs, on_notice=notices.append), compiled=True))
    assert notices == ["updates are compiled, of 3 runs together"] * 3
    assert continued == trained_alone(tmp_path / "alone", runs)
    assert bytes_of(tmp_path / "together", 3) == bytes_of(tmp_path / "alone", 3)


@pytest.mark.usefixtures("short_episodes")
def test_others_go_on_when_one_fails_or_cannot_begin(tmp_path):
    runs = configs(*({"format": "e5m7", "seed": seed} for seed in range(4)), steps=800)
    together = jobs(tmp_path / "together", runs)

    def fail(progress):
        if progress.step >= 400:
            raise RuntimeError("a bug")

    together[1] = Job(runs[1], together[1].directory, on_progress=fail)
    (tmp_path / "together" / "2").mkdir(parents=True)
    (tmp_path / "together" / "2" / "config.json").write_text("{")
    outcomes = dict(train_together(together, compiled=True))
    assert str(outcomes[1]) == "a bug"
    assert isinstance(outcomes[2], FileError)
    alone = trained_alone(tmp_path / "alone", runs[:1])
    assert outcomes[0] == alone[0]
    assert bytes_of(tmp_path / "together", 1) == bytes_of(tmp_path / "alone", 1)
    assert dict(train_together([together[0]])) == {0: outcomes[0]}  # it has ended


def no_compiler(patch, traced=0):
    """Has no program compiled; behind the first ones, nothing is traced, which takes no time."""
    assert reason_against_compiling() is None  # which is found out once
    trace, steps = graphs.trace, count()

    def fail(*_):
        raise OSError(28, "No space left on device")

    patch.setattr(graphs, "trace", lambda step, *of: trace(step if next(steps) < traced else lambda _: None, *of))
    patch.setattr(graphs, "compile_graph", fail)
    patch.setattr(compiled_updates, "_PROGRAMS", {})


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize(
    ("keys", "compiled"),
    [
        ({"hidden_units": 8}, True),
        ({"policy": {"rounding": "stochastic"}}, True),
        ({}, False),
        ({}, None),
    ],
    ids=str,
)
def test_what_is_trained_one_by_one(tmp_path, keys, compiled, monkeypatch):
    no_compiler(monkeypatch)
    runs = configs({}, {"lr": 3e-4}, format="e5m7", steps=240, eval_every=240, **keys)
    notices = []
    outcomes = dict(train_together(jobs(tmp_path, runs, on_notice=notices.append), compiled=compiled))
    assert all(outcome.status == "done" for outcome in outcomes.values())
    assert not any("together" in notice for notice in notices)


@pytest.mark.usefixtures("short_episodes")
def test_a_compiler_that_fails(tmp_path, monkeypatch):
    runs = configs({"format": "e5m7"}, {"format": "e5m6"}, steps=320, eval_every=320)
    notices = []
    with monkeypatch.context() as failing:
        no_compiler(failing, traced=1)
        outcomes = dict(train_together(jobs(tmp_path / "together", runs, on_notice=notices.append), compiled=True))
    assert notices[0].startswith("trained one by one, since 2 runs together could not be compiled ([Errno 28]")
    assert outcomes == trained_alone(tmp_path / "alone", runs)
    assert bytes_of(tmp_path / "together", 2) == bytes_of(tmp_path / "alone", 2)


def test_seconds_are_those_of_each(tmp_path):
    """Seconds are also known of a run that has no update."""
    runs = configs(*({"format": "e5m7", "steps": 400},) * 3, eval_every=400)
    runs[2] = runs[2].model_copy(update={"steps": 80})  # which no config may ask for
    began = time.perf_counter()
    outcomes = dict(train_together(jobs(tmp_path, runs), compiled=True))
    elapsed = time.perf_counter() - began
    assert [outcomes[i].step for i in range(3)] == [400, 400, 80]
    timings = [json.loads((tmp_path / str(i) / "timing.json").read_text()) for i in range(3)]
    assert sum(timing["seconds"] for timing in timings) <= elapsed
    for timing in timings[:2]:
        assert {"updates", "first update", "environment"} <= timing["spent"].keys()
        assert sum(timing["spent"].values()) <= timing["seconds"] + 0.01


def test_the_time_of_an_update_is_shared_by_those_who_took_part(monkeypatch):
    class Waiting(Run):
        def __init__(self, updates):
            self.updates = updates

        def training(self):
            for _ in range(self.updates):
                seconds = yield "a batch"
                told.append(seconds)
            return Result("done", None, 0)

    class Updated:
        def update(self, batches):
            return dict.fromkeys(batches)

    told = []
    clock = iter(range(0, 1000, 12))
    monkeypatch.setattr(together, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    runs = [together._OpenRun(i, None, Waiting(updates), ExitStack()) for i, updates in enumerate((1, 1, 3))]
    assert sorted(number for number, _ in together._train(Updated(), runs)) == [0, 1, 2]
    assert told == [(None, 4.0), (None, 4.0), (None, 4.0), (None, 12.0), (None, 12.0)]
