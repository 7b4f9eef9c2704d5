"""Runs: the same bytes from the same config, however interrupted; crashes are results; errors are messages."""

import json
import pkgutil
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from processes import TRAINING, wait_until
from runs import SMALL, config, outcome, weights

from roundoff.agents import FileError, Progress, RunError, TrainConfig, train
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.experience.intake import StateIntake
from roundoff.agents.run import checkpoint
from roundoff.runs.folder import RunDirectory
from roundoff.runs.log import MetricsLog
from roundoff.runs.result import read_result


def records(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


class Killed(BaseException):
    """Stands for a kill: nobody catches it."""


def test_a_run_leaves_what_the_architecture_says(tmp_path):
    seen = []
    result = train(config(), tmp_path / "run", seen.append)
    run = tmp_path / "run"
    names = {entry.name for entry in run.iterdir()}
    assert names == {".lock", "config.json", "metrics.jsonl", "agent.pt", "result.json", "timing.json", "tensorboard"}
    assert json.loads((run / "config.json").read_text())["config"] == config().as_json()
    written = json.loads((run / "result.json").read_text())
    assert written == {
        "status": "done",
        "return": result.return_mean,
        "return_std": result.return_std,
        "step": 6000,
        "crash": None,
        "updates": result.updates,
        "untrained": result.untrained,
    }
    assert 0 < result.untrained < 1000
    assert result.untrained != result.return_mean
    assert result.updates == config().transitions - config().seed_steps
    evaluations = [r for r in records(run) if r["kind"] == "eval"]
    assert [r["step"] for r in evaluations] == [1500, 3000, 4500, 6000]
    assert evaluations[-1]["return_mean"] == result.return_mean == pytest.approx(np.mean(evaluations[-1]["returns"]))
    trainings = [r for r in records(run) if r["kind"] == "train"]
    assert [r["step"] for r in trainings] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert trainings[-1].keys() > {"episode_return", "critic_loss", "entropy", "temperature", "critic_loss_scale"}
    assert seen[0] == Progress(0, 6000, None, 1e4)
    assert seen[-1] == Progress(6000, 6000, result.return_mean, trainings[-1]["critic_loss_scale"])
    assert len(seen) >= 7
    timing = json.loads((run / "timing.json").read_text())
    assert timing["steps_per_second"] == pytest.approx(6000 / timing["seconds"])


@pytest.mark.usefixtures("short_episodes")
def test_the_end_is_evaluated_even_between_evaluations(tmp_path):
    result = train(config(steps=2050, eval_every=1500), tmp_path)
    assert [r["step"] for r in records(tmp_path) if r["kind"] == "eval"] == [1500, 2060]
    assert result.step == 2060


@pytest.mark.usefixtures("short_episodes")
def test_the_last_action_may_be_repeated_beyond_the_end(tmp_path):
    seen = []
    train(config(steps=1525, eval_every=1525), tmp_path / "run", on_progress=seen.append)
    assert (seen[-1].step, seen[-1].steps) == (1525, 1525)


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize("format", ["fp32", "e5m10"])
def test_same_config_same_bytes(tmp_path, format):
    outcomes = []
    for name in ("a", "b"):
        train(config(format=format, steps=1500), tmp_path / name)
        outcomes.append(outcome(tmp_path / name))
    assert outcomes[0] == outcomes[1]
    train(config(format=format, steps=1500, seed=1), tmp_path / "c")
    assert outcome(tmp_path / "c") != outcomes[0]


class Interrupter:
    """Raises Killed at the n-th of all moments at which a run acts on the world or on its state."""

    def __init__(self, monkeypatch):
        self.countdown = None
        self.moments = 0
        for where, name in (
            ("os", "fsync"),
            ("pathlib.Path", "replace"),
            ("pathlib.Path", "unlink"),
            ("roundoff.runs.log.MetricsLog", "write"),
            ("roundoff.agents.algorithms.sac.agent.SAC", "update"),
            ("roundoff.agents.run.loop.Run", "_save"),
            ("roundoff.agents.run.loop.Run", "_evaluate"),
        ):
            self._watch(monkeypatch, f"{where}.{name}")

    def _watch(self, monkeypatch, place):
        original = pkgutil.resolve_name(place)

        def watched(*args, **kwargs):
            self._moment()
            result = original(*args, **kwargs)
            self._moment()
            return result

        monkeypatch.setattr(place, watched)

    def _moment(self):
        self.moments += 1
        if self.countdown is not None:
            self.countdown -= 1
            if self.countdown <= 0:
                self.countdown = None
                raise Killed


@pytest.mark.usefixtures("short_episodes")
@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ("cartpole_swingup", {}),
        ("cartpole_swingup", {"format": "e5m10", "loss_scale_growth_interval": 15}),
        ("ball_in_cup_catch", {"fixes": "none", "replay_capacity": 30, "seed_steps": 38}),
        ("reacher_easy", {"fixes": ["kahan_momentum"], "steps": 1050}),
        ("finger_turn_easy", {"fixes": ["compound_loss_scaling"], "loss_scale_growth_interval": 15}),
        ("walker_walk", {"fixes": ["kahan_gradients", "hadam"], "actor_update_every": 2}),
        ("cheetah_run", {}),
        ("cartpole_swingup", {"format": "e5m10", "observe": True, "policy": {"rounding": "stochastic"}}),
    ],
)
def test_interrupted_anywhere_it_continues_to_the_same_bytes(tmp_path, monkeypatch, task, keys):
    one = config(task=task, **({"steps": 1000, "eval_every": 500, "checkpoint_every": 250} | keys))
    interrupter = Interrupter(monkeypatch)
    train(one, tmp_path / "straight")
    moments = interrupter.moments
    chance = random.Random(task)
    # Kills within the first run, and right at its end, where result and clean-up are written.
    for countdowns in ([chance.randint(1, moments) for _ in range(3)], [moments - chance.randint(0, 12)]):
        run = tmp_path / "run"
        for countdown in countdowns:
            interrupter.countdown = countdown
            with suppress(Killed):
                train(one, run)
        interrupter.countdown = None
        train(one, run)
        assert outcome(run) == outcome(tmp_path / "straight")
        shutil.rmtree(run)


def without_norms(record):
    """A record without what observed runs alone log."""
    return {name: value for name, value in record.items() if not name.endswith("_norm")}


@pytest.mark.usefixtures("short_episodes")
def test_observing_changes_nothing_but_adds_records(tmp_path):
    keys = {"format": "e5m10", "steps": 1000, "eval_every": 500}
    plain, observed = train(config(**keys), tmp_path / "plain"), train(config(**keys, observe=True), tmp_path / "seen")
    assert plain == observed
    extra = [r for r in records(tmp_path / "seen") if r["kind"] == "numerics"]
    others = [r for r in records(tmp_path / "seen") if r["kind"] != "numerics"]
    assert {"actor_weights_norm", "critic_first_layer_gradients_norm", "actor_second_moment_norm"} < set().union(
        *others
    )
    assert [without_norms(r) for r in others] == records(tmp_path / "plain")
    assert [r["step"] for r in extra] == [500, 1000]
    roles = {"forward", "backward", "optimizer", "averages", "targets"}
    assert set(extra[0]) == {"kind", "step", *roles, "gradients of actor", "gradients of critic"}
    backward = extra[1]["backward"]
    assert sum(backward["exponents"].values()) <= backward["results"]
    assert -24 <= min(map(int, backward["exponents"])) <= max(map(int, backward["exponents"])) <= 15
    # The records of the intervals add up to the table of the run.
    table = pd.read_csv(tmp_path / "seen" / "numerics.csv").groupby("role")["results"].sum()
    assert table["forward"] == sum(r["forward"]["results"] for r in extra)


def test_the_crash_of_an_observed_run_names_the_operation(tmp_path):
    result = train(config(format="e5m10", fixes="none", steps=20_000, observe=True), tmp_path)
    assert result.status == "crashed"
    assert "first non-finite result: " in result.crash.reason
    assert "agents/" in result.crash.reason
    assert records(tmp_path)[-1]["kind"] == "numerics"


@pytest.fixture(scope="module")
def weights_of_every_op(tmp_path_factory):
    folder = tmp_path_factory.mktemp("every-op")
    train(config(format="e5m10", steps=1000), folder)
    return weights(folder)


@pytest.mark.parametrize(
    "policy", ["mixed-precision", "storage", {"granularity": "primitive"}, {"accumulate": "e5m10/8"}]
)
def test_policies_train(tmp_path, policy, weights_of_every_op):
    assert train(config(format="e5m10", steps=1000, policy=policy), tmp_path).status == "done"
    assert weights(tmp_path) != weights_of_every_op


@pytest.mark.usefixtures("short_episodes")
def test_stochastic_rounding_draws_from_the_seed(tmp_path):
    for name, keys in {"a": {}, "b": {}, "nearest": {"policy": {}}}.items():
        train(
            config(**({"format": "e5m6", "steps": 1000, "policy": {"rounding": "stochastic"}} | keys)), tmp_path / name
        )
    a, b, nearest = (outcome(tmp_path / name) for name in ("a", "b", "nearest"))
    assert a == b
    assert a["weights"] != nearest["weights"]


@pytest.mark.usefixtures("forked_interpreters")
def test_killed_by_the_operating_system(tmp_path):
    keys = SMALL | {"steps": 2000, "eval_every": 2000}
    arguments = [json.dumps(keys), str(tmp_path / "run"), str(tmp_path / "never")]
    process = subprocess.Popen([sys.executable, "-c", TRAINING, *arguments])
    try:
        wait_until((tmp_path / "run" / "checkpoint.pt").exists)
        with pytest.raises(FileError, match="another process is working in this folder"):
            train(TrainConfig(**keys), tmp_path / "run")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    train(TrainConfig(**keys), tmp_path / "run")
    train(TrainConfig(**keys), tmp_path / "straight")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


LARGER = {"steps": 2000, "eval_every": 500, "eval_episodes": 1, "hidden_units": 32}


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """What a run leaves that nothing disturbs."""
    folder = tmp_path_factory.mktemp("larger")
    train(config(**LARGER), folder)
    return outcome(folder)


@pytest.mark.parametrize("room", [100, 600, 2000, 20_000])
def test_a_full_disk_is_one_message_and_loses_nothing(tmp_path, room, larger):
    """No file may grow beyond the room there is, which is how a full disk looks to one that writes."""
    one = config(**LARGER)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(
            FileError, match=r"cannot be written \(File too large\); free space or choose another"
        ) as said:
            train(one, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path / "run") in str(said.value)
    assert not list((tmp_path / "run").rglob("*.tmp"))
    train(one, tmp_path / "run")
    assert outcome(tmp_path / "run") == larger


def test_a_finished_run_is_not_repeated(tmp_path, monkeypatch):
    result = train(config(steps=1000), tmp_path)
    monkeypatch.setattr(SAC, "__init__", lambda *_: pytest.fail("worked again"))
    assert train(config(steps=1000), tmp_path) == result


def test_a_non_finite_action_is_a_crash_and_scores_zero(tmp_path, monkeypatch):
    original = SAC.update

    def poisoned(self, batch):
        metrics = original(self, batch)
        if self.updates == 70:
            self.actor.flat.fill_(float("nan"))
        return metrics

    monkeypatch.setattr(SAC, "update", poisoned)
    result = train(config(), tmp_path)
    # 20 seed steps and 70 updates are 90 agent steps of 20.
    assert result.status == "crashed"
    assert (result.return_mean, result.return_std, result.step) == (0, 0, 1800)
    assert result.crash.step == 1800
    assert "non-finite action in training" in result.crash.reason
    assert json.loads((tmp_path / "result.json").read_text())["crash"]["step"] == 1800
    assert read_result(json.loads((tmp_path / "result.json").read_text())) == result
    assert train(config(), tmp_path) == result


def test_a_crash_says_that_the_observation_was_beyond_the_format(tmp_path, monkeypatch):
    """1e5 is no number of e5m10, whose largest is 65504: the policy is not what failed."""
    perceive = StateIntake.perceive
    monkeypatch.setattr(StateIntake, "perceive", lambda self, observations: perceive(self, observations * 0 + 1e5))
    result = train(config(format="e5m10"), tmp_path)
    assert result.status == "crashed"
    assert result.crash.reason.endswith("its observation is not finite in e5m10, as it is outside of the range")


def test_a_non_finite_action_in_evaluation_is_a_crash(tmp_path, monkeypatch):
    original = SAC.act

    def poisoned(self, observations, *, deterministic, **keys):
        actions = original(self, observations, deterministic=deterministic, **keys)
        return actions * float("nan") if deterministic and self.updates > 100 else actions

    monkeypatch.setattr(SAC, "act", poisoned)
    result = train(config(), tmp_path)
    assert (result.status, result.return_mean, result.step) == ("crashed", 0, 3000)
    assert "evaluation" in result.crash.reason


def test_an_update_that_raises_because_of_nan_is_a_crash_and_any_other_an_error(tmp_path, monkeypatch):
    update = SAC.update

    def fails(self, batch):
        if self.updates == 3:
            for tensor in self.weights().values() if damages else ():
                tensor.fill_(float("nan"))
            raise ValueError("strange")
        return update(self, batch)

    monkeypatch.setattr(SAC, "update", fails)
    damages = True
    result = train(config(), tmp_path / "damaged")
    assert result.status == "crashed"
    assert "are not finite, and the agent raised ValueError: strange" in result.crash.reason
    damages = False
    with pytest.raises(ValueError, match="strange"):
        train(config(), tmp_path / "fine")
    assert not (tmp_path / "fine" / "result.json").exists()


def test_naive_half_crashes_where_the_fixes_do_not(tmp_path):
    keys = {"format": "e5m10", "steps": 3000, "hidden_units": 32, "batch_size": 32}
    assert train(config(fixes="none", **keys), tmp_path / "none").status == "crashed"
    assert train(config(fixes="all", **keys), tmp_path / "all").status == "done"


ARITHMETIC = [
    {"format": "fp32"},
    {"format": "e5m10"},
    {"format": "e5m7", "policy": {"rounding": "stochastic"}},
]
"""Plain, rounded, and rounded by random bits, whose places depend on what was counted before."""


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=["plain", "nearest", "stochastic"])
def test_what_only_looks_at_a_run_does_not_disturb_it(tmp_path, arithmetic):
    """Records of training, weights and the last evaluation are the same, however often and closely it is looked at."""
    looking = {"eval_every": 250, "keep_networks": True, "checkpoint_every": 100}
    if arithmetic["format"] != "fp32":  # which would be simulated, to be observed
        looking["observe"] = True
    seen = []
    for name, keys in (("straight", {"eval_every": 1000}), ("looked at", looking)):
        train(config(**({"steps": 1000, "eval_episodes": 1} | arithmetic | keys)), tmp_path / name)
        training = [without_norms(r) for r in records(tmp_path / name) if r["kind"] == "train"]
        evaluations = [r for r in records(tmp_path / name) if r["kind"] == "eval"]
        found = weights(tmp_path / name)
        assert (len(training), len(evaluations), len(found)) == (1, 1000 // keys["eval_every"], 4)
        seen.append((training, evaluations[-1], found))
    assert seen[0] == seen[1]


def test_an_evaluation_depends_on_the_agent_and_the_step_alone(tmp_path):
    """Also where roundings draw random bits; and training goes on with those it would have drawn."""
    agent, other = (SAC(5, 1, config(**ARITHMETIC[2]), torch.device("cpu")) for _ in range(2))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    first = [agent.act(x, deterministic=True, number=i) for i in range(3)]
    assert not torch.equal(first[0], first[1])  # other bits for each of its actions
    assert all(torch.equal(agent.act(x, deterministic=True, number=i), first[i]) for i in (2, 0, 1))
    taken = [agent.act(x, deterministic=False) for _ in range(2)]
    assert all(torch.equal(other.act(x, deterministic=False), action) for action in taken)
    assert (agent.actions, other.actions) == (2, 2)
    agent.updates += 1
    assert not torch.equal(agent.act(x, deterministic=True, number=0), first[0])


def test_a_folder_of_another_run_is_refused_naming_the_keys(tmp_path):
    train(config(steps=1000), tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(RunError, match=r"lr is 0\.001 there and 0\.01 here; seed is 0 there and 4 here"):
        train(config(steps=1000, lr=0.01, seed=4), tmp_path / "run")
    assert outcome(tmp_path / "run") == before


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"holds thesis\.tex but no config\.json"):
        train(config(), tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"thesis.tex", ".lock"}


def test_a_path_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be made a folder"):
        train(config(), tmp_path / "file")


HALF = {"steps": 3000}


@pytest.fixture(scope="module")
def as_interrupted(tmp_path_factory):
    """A run killed after a checkpoint, for all tests."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.MonkeyPatch.context() as patched:
        interrupter = Interrupter(patched)
        interrupter.countdown = 250
        with pytest.raises(Killed):
            train(config(**HALF), run)
    assert (run / "checkpoint.pt").exists()
    return run


@pytest.fixture
def interrupted(as_interrupted, tmp_path):
    """A copy of the killed run, for one test."""
    return shutil.copytree(as_interrupted, tmp_path / "run")


def test_checkpoints_are_used(interrupted):
    """Tests of runs that continue would also pass if every continuation began anew."""
    seen = []
    train(config(**HALF), interrupted, seen.append)
    assert seen[0].step >= 1000


def test_what_was_written_after_the_checkpoint_is_cut_off(interrupted):
    with (interrupted / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "st')
    train(config(**HALF), interrupted)
    train(config(**HALF), interrupted.parent / "straight")
    assert outcome(interrupted) == outcome(interrupted.parent / "straight")


def test_missing_metrics_are_an_error(interrupted):
    (interrupted / "metrics.jsonl").write_bytes((interrupted / "metrics.jsonl").read_bytes()[:40])
    with pytest.raises(FileError, match=r"metrics\.jsonl: has 40 bytes, but \d+ had been written"):
        train(config(**HALF), interrupted)


def test_a_torn_checkpoint_is_an_error(interrupted):
    path = interrupted / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(FileError, match=r"checkpoint\.pt: is damaged"):
        train(config(**HALF), interrupted)


def test_an_incomplete_checkpoint_is_an_error(interrupted):
    path = interrupted / "checkpoint.pt"
    state = checkpoint.load(path)
    for change in ("missing", "shape", "type"):
        damaged = dict(state)
        if change == "missing":
            del damaged["environment"]
        elif change == "shape":
            damaged["agent"] = state["agent"] | {"actor": torch.zeros(3)}
        else:
            damaged["seed_actions"] = 3
        checkpoint.save(path, damaged)
        with pytest.raises(FileError, match="not a complete checkpoint of this run"):
            train(config(**HALF), interrupted)


def test_a_checkpoint_of_another_config_is_an_error(interrupted):
    path = interrupted / "checkpoint.pt"
    state = checkpoint.load(path)
    checkpoint.save(path, state | {"config": config(**HALF, seed=8).as_json()})
    with pytest.raises(RunError, match=r"checkpoint\.pt: belongs to another run: seed is 8 there and 0 here"):
        train(config(**HALF), interrupted)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"config": 3}'])
def test_a_damaged_config_is_an_error(interrupted, content):
    (interrupted / "config.json").write_bytes(content)
    with pytest.raises(FileError, match=r"config\.json: is not"):
        train(config(**HALF), interrupted)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"status": "done"}'])
def test_a_damaged_result_is_an_error(tmp_path, content):
    train(config(steps=1000), tmp_path)
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(FileError, match=r"result\.json: is not"):
        train(config(steps=1000), tmp_path)


def test_the_number_of_threads_is_put_back(tmp_path):
    before = torch.get_num_threads()
    train(config(steps=500, threads=before + 1), tmp_path)
    assert torch.get_num_threads() == before


def test_curves_are_in_the_event_files_and_hidden_points_are_not_repeated(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(RunDirectory(tmp_path), length=0, step=0) as log:
        for step in (1, 2, 3):
            log.write("eval", step, {"return_mean": float(step), "returns": [1.0]})
    length = len((tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0])
    time.sleep(1.1)  # event files are ordered by the second in their name
    with MetricsLog(RunDirectory(tmp_path), length=length, step=1) as log:
        log.write("eval", 2, {"return_mean": 20.0, "returns": [float("inf"), 1.0]})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/return_mean")] == [(1, 1.0), (2, 20.0)]
    assert records(tmp_path)[1] == {"kind": "eval", "step": 2, "return_mean": 20.0, "returns": [None, 1.0]}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp32", "e5m10"])
def test_it_learns_to_swing_up(tmp_path, format):
    keys = {"hidden_units": 128, "batch_size": 128, "seed_steps": 1000, "tau": 0.01, "target_update_every": 1}
    result = train(config(format=format, steps=44_000, action_repeat=8, eval_every=44_000, **keys), tmp_path)
    assert result.return_mean > 500


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("format", ["fp32", "e5m10"])
def test_a_run_on_a_gpu_can_be_interrupted(tmp_path, monkeypatch, format):
    interrupter = Interrupter(monkeypatch)
    interrupter.countdown = 500
    one = config(device="cuda", format=format)
    with pytest.raises(Killed):
        train(one, tmp_path)
    interrupter.countdown = None
    assert train(one, tmp_path).status == "done"
    assert (tmp_path / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"format": "fp32"}, {"format": "e5m10", "observe": True}])
def test_memory_does_not_grow(tmp_path, keys):
    """Beyond what the first tenth of a run needs: its replay buffer is full by then."""
    seen = []

    def look(progress):
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        seen.append((progress.step, pages * resource.getpagesize()))

    train(config(steps=60_000, replay_capacity=200, eval_every=5000, checkpoint_every=5000, **keys), tmp_path, look)
    early = max(bytes_held for step, bytes_held in seen if step <= 6000)
    assert seen[-1][1] - early < 2e6
