"""Runs of PPO and A2C: rollouts, the same bytes however a run is carried out, and that they learn."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import odd_environments  # noqa: F401  registers tasks
import odd_goal  # noqa: F401  registers tasks
import pytest
import torch
from runs import outcome

from roundoff.agents import FIXES, TrainConfig, train
from roundoff.agents.algorithms.ppo.agent import PPO
from roundoff.agents.environments.parallel import Steps
from roundoff.agents.experience.on_policy import record_rollouts
from roundoff.agents.experience.sampling import Sample
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.formats import Format, round

CPU = torch.device("cpu")
ALL = (*FIXES, "scaled_norms")


SMALL = {
    "hidden_units": 16, "steps": 240, "eval_every": 120, "eval_episodes": 1, "checkpoint_every": 7,
}  # fmt: skip
RUNS = {
    "ppo": {"algorithm": "ppo", "horizon": 20, "batch_size": 10, "epochs": 2, "task": "gym:Walk-v0"},
    "ppo, three environments": {
        "algorithm": "ppo", "environments": 3, "horizon": 8, "batch_size": 12, "epochs": 2, "task": "gym:CartPole-v1",
    },
    "a2c": {
        "algorithm": "a2c", "environments": 4, "horizon": 3, "task": "gym:Walk-v0", "normalize_observations": True,
        "normalize_rewards": True,
    },
    "ppo, near": {
        "algorithm": "ppo", "horizon": 20, "batch_size": 10, "epochs": 5, "task": "gym:Walk-v0", "target_kl": 1e-4,
    },
}  # fmt: skip


class Kill(Exception):
    pass


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_anywhere_it_leaves_the_same_bytes(tmp_path, name):
    config = TrainConfig(**SMALL | RUNS[name], format="e5m10")
    assert train(config, tmp_path / "alone", compiled=False).status == "done"
    train(config, tmp_path / "again", compiled=False)
    assert outcome(tmp_path / "again") == outcome(tmp_path / "alone")
    stops = 0
    while not (tmp_path / "stopped" / "result.json").exists():
        stop = StopRequest()
        begun = []

        def stop_soon(progress, stop=stop, begun=begun):
            begun.append(progress.step)
            if progress.step >= begun[0] + 17:
                stop.make()

        try:
            train(config, tmp_path / "stopped", stop_soon, stop, compiled=False)
        except Stopped:
            stops += 1
    assert stops > 2
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "alone")


def test_killed_between_a_checkpoint_and_an_update_it_leaves_the_same_bytes(tmp_path, monkeypatch):
    config = TrainConfig(**SMALL | RUNS["ppo, three environments"])
    train(config, tmp_path / "alone", compiled=False)
    update, left = PPO.update, itertools.count()

    def killed(self, batch):
        if next(left) in (5, 11, 23):  # within an epoch
            raise Kill
        return update(self, batch)

    monkeypatch.setattr(PPO, "update", killed)
    kills = 0
    while not (tmp_path / "killed" / "result.json").exists():
        try:
            train(config, tmp_path / "killed", compiled=False)
        except Kill:
            kills += 1
    assert kills == 3
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "alone")


@pytest.mark.parametrize("environments", [1, 2, 3])
def test_every_action_of_a_rollout_is_chosen_by_the_policy_it_is_learned_from_with(tmp_path, monkeypatch, environments):
    acted, learned = [], []
    act, judge = PPO.act, PPO.judge

    def noted(self, observations, *, deterministic, **where):
        actions = act(self, observations, deterministic=deterministic, **where)
        if not deterministic:
            acted.extend([(self.updates, action) for action in actions])
        return actions

    def judged(self, rollout, last):
        drawn = acted[: len(last)]
        del acted[: len(last)]
        learned.append(len(last))
        assert {updates for updates, _ in drawn} == {self.updates}
        actions = rollout.observations_and_actions[:, self.observation_size :]
        assert torch.equal(torch.stack([action for _, action in drawn]), actions)
        return judge(self, rollout, last)

    monkeypatch.setattr(PPO, "act", noted)
    monkeypatch.setattr(PPO, "judge", judged)
    keys = {**SMALL, **RUNS["ppo, three environments"], "environments": environments, "batch_size": 4}
    train(TrainConfig(**keys), tmp_path, compiled=False)
    assert learned == [8 * environments] * (240 // (8 * environments))


def test_all_of_a_rollout_is_learned_from_in_every_epoch():
    config = TrainConfig(algorithm="ppo", horizon=12, batch_size=4, epochs=3)
    sizes = SimpleNamespace(observation_size=1, observation_dtype=np.float64, action_size=1, discrete=False)
    judge = lambda rollout, last: rollout.rewards.expand(-1, 4)  # noqa: E731
    recorder = record_rollouts(config, sizes, torch.float32, CPU, judge)
    sample = SimpleNamespace(steps=SimpleNamespace(last=np.array([False])))
    for i in range(12):
        assert list(recorder.due()) == [] or i == 0
        assert recorder.waits(12 - i)
        assert not recorder.waits(11 - i)
        recorder.add(torch.full((5,), float(i)), sample, 0)
    batches = [batch.returns[:, 0].tolist() for batch in recorder.due()]
    assert len(batches) == 9
    for epoch in range(3):
        assert sorted(itertools.chain(*batches[3 * epoch : 3 * epoch + 3])) == list(range(12))
    assert batches[:3] != batches[3:6]


@pytest.mark.parametrize("name", ["ppo", "ppo, three environments"])
def test_what_is_no_number_is_a_crash(tmp_path, monkeypatch, name):
    update = PPO.update

    def spoiled(self, batch):
        metrics = update(self, batch)
        self.network.flat[-40:] = torch.nan
        return metrics

    monkeypatch.setattr(PPO, "update", spoiled)
    result = train(TrainConfig(**SMALL | RUNS[name]), tmp_path, compiled=False)
    assert result.status == "crashed"
    assert "non-finite action" in result.crash.reason


def test_rollouts_of_planes_are_kept_as_bytes_and_given_as_numbers():
    config = TrainConfig(algorithm="ppo", horizon=4, batch_size=4, epochs=1)
    sizes = SimpleNamespace(observation_size=8, observation_dtype=np.bool_, action_size=2, discrete=True)
    seen = []

    def judge(rollout, last):
        seen.append((rollout.observations, rollout.next_observations, last.flatten().tolist()))
        return rollout.rewards.expand(-1, 4)

    recorder = record_rollouts(config, sizes, torch.float32, CPU, judge)
    rows = (torch.rand(4, 8 + 2 + 8 + 2, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    for i, row in enumerate(rows):
        recorder.add(row, SimpleNamespace(steps=SimpleNamespace(last=np.array([i == 2]))), 0)
    assert recorder.state_dict()["rollout"]["planes"].dtype == torch.uint8
    (batch,) = recorder.due()
    assert torch.equal(batch.observations, rows[:, :8])
    assert torch.equal(batch.actions, rows[:, 8:10])
    assert torch.equal(seen[0][1], rows[:, 10:18])
    assert seen[0][2] == [False, False, True, False]


@pytest.mark.parametrize("format", ["fp32", "e5m2"])
def test_rollouts_of_images_hold_bytes_divided_by_255(format):
    config = TrainConfig(algorithm="ppo", horizon=3, batch_size=3, epochs=1, format=format)
    sizes = SimpleNamespace(observation_size=6, observation_dtype=np.uint8, action_size=2, discrete=True)
    recorder = record_rollouts(config, sizes, torch.float32, CPU, lambda rollout, last: rollout.rewards.expand(-1, 4))
    images = np.random.default_rng(0).integers(0, 256, (4, 1, 6), dtype=np.uint8)
    for before, after in itertools.pairwise(images):
        steps = Steps(after, np.array([0.3]), np.array([1.0]), np.array([False]), after)
        sample = Sample(0, np.array([[0.0, 1.0]]), steps, steps.rewards)
        recorder.add(recorder.rows(recorder.intake.perceive(before), sample)[0], sample, 0)
    (batch,) = recorder.due()
    want = round(torch.from_numpy(images[:3, 0]).double() / 255, Format.parse(format)).float()
    assert torch.equal(batch.observations, want)
    assert torch.equal(batch.actions, torch.tensor([[0.0, 1.0]] * 3))
    assert torch.equal(batch.returns, round(torch.tensor([[0.3]] * 3), Format.parse(format)))


def test_an_estimate_needs_no_whole_rollout():
    config = TrainConfig(algorithm="ppo", environments=8, horizon=2048, batch_size=64)
    short = config.model_copy(update=config.soon_learning())
    assert short.rollout == 64
    assert short.updates_in(16384) == config.updates_in(16384) == 2560


@pytest.mark.parametrize(("algorithm", "format"), [("ppo", "e5m10"), ("a2c", "fp32")])
def test_numbers_are_learned(tmp_path, algorithm, format):
    """Always doing the best is worth 20; doing nothing about 15.7."""
    keys = {
        "ppo": {"horizon": 32, "environments": 4, "epochs": 5, "lr": 1e-2, "steps": 2560},
        "a2c": {"environments": 8, "lr": 5e-3, "steps": 12_800},
    }[algorithm]  # fmt: skip
    keys |= {"eval_every": keys["steps"], "eval_episodes": 5, "discount": 0.0, "hidden_units": 32}
    result = train(TrainConfig(algorithm=algorithm, task="gym:Goal-v0", format=format, **keys), tmp_path)
    assert result.return_mean > 19.0
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"entropy", "critic_loss", "actor_loss_scale"} <= {name for line in logged for name in line}


CARTPOLE = {
    "algorithm": "ppo", "task": "gym:CartPole-v1", "environments": 8, "horizon": 32, "batch_size": 256, "epochs": 20,
    "gae_lambda": 0.8, "discount": 0.98, "lr": 1e-3, "lr_schedule": "linear", "steps": 50_000, "eval_every": 50_000,
}  # fmt: skip
PENDULUM = {
    "algorithm": "ppo", "task": "gym:Pendulum-v1", "environments": 4, "horizon": 256, "batch_size": 128,
    "discount": 0.9, "lr": 1e-3, "steps": 50_000, "eval_every": 50_000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "least"),
    [
        (CARTPOLE, 450),
        ({**CARTPOLE, "format": "e5m10"}, 450),
        (
            {
                "algorithm": "a2c",
                "task": "gym:CartPole-v1",
                "environments": 8,
                "lr_schedule": "linear",
                "steps": 100_000,
            },
            400,
        ),
        (PENDULUM, -500),  # an untrained policy has -1200
    ],
    ids=["ppo", "ppo in half", "a2c", "ppo, numbers"],
)
def test_it_learns_in_a_minute(tmp_path, keys, least):
    assert train(TrainConfig(**keys), tmp_path).return_mean > least


@pytest.mark.slow
def test_without_scaled_norms_half_precision_learns_nothing(tmp_path):
    """The norm of gradients is infinite at the first loss scale, and the gradients become 0."""
    keys = {**CARTPOLE, "format": "e5m10", "steps": 10_240, "eval_every": 10_240, "seed": 1}
    returns = [
        train(TrainConfig(**keys, fixes=fixes), tmp_path / str(len(fixes))).return_mean for fixes in (ALL, FIXES)
    ]
    assert returns[0] > 2 * returns[1]
