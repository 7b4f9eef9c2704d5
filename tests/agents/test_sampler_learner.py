"""A run that learns from what another agent experiences: that one's episodes are its own run's, bit for bit."""

import json
import math

import pytest
from each import each
from runs import check_together, outcome, stopped_and_continued

from roundoff.agents import TrainConfig, train
from roundoff.agents.config.learning_keys import SHARED
from roundoff.agents.config.registry import ALGORITHMS
from roundoff.agents.config.train_config import config_of

SMALL = {
    "algorithm": "dqn", "task": "gym:CartPole-v1", "hidden_units": 16, "batch_size": 16, "steps": 400,
    "seed_steps": 100,    "eval_every": 200, "eval_episodes": 2, "checkpoint_every": 100, "lr": 1e-3, "seed": 1,
    "exploration_steps": 150,
}  # fmt: skip
TORQUE = {
    "task": "gym:Pendulum-v1", "hidden_units": 16, "batch_size": 16, "steps": 450, "seed_steps": 60,
    "eval_every": 225, "eval_episodes": 1, "checkpoint_every": 200, "seed": 1,
}  # fmt: skip


def episodes(folder):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(r["step"], r["episode_return"]) for r in records if r["kind"] == "train"]


def trained(folder, **keys):
    return train(TrainConfig(**keys), folder, compiled=False)


@each(
    ("keys", "other"),
    [
        (SMALL, {"format": "e5m4", "batch_size": 32, "training_intensity": 8}),
        (SMALL | {"environments": 4, "format": "e4m3", "reward_scale": 0.25}, {"format": "fp32", "reward_scale": 2}),
        (TORQUE, {"format": "e5m10", "baseline": "loss_scaling"}),
    ],
)
def test_its_episodes_are_those_of_its_own_run(tmp_path_factory, keys, other):
    place = tmp_path_factory.mktemp("runs")
    trained(place / "secondary", **keys, sampler_learner=other)
    trained(place / "primary", **keys | other)
    trained(place / "alone", **keys)
    assert episodes(place / "secondary") == episodes(place / "primary") != episodes(place / "alone")
    ends = [outcome(place / name)["weights"] for name in ("secondary", "primary", "alone")]
    assert ends[0] not in ends[1:]


def test_who_is_alike_draws_batches_of_its_own(tmp_path):
    trained(tmp_path / "secondary", **SMALL, sampler_learner={})
    trained(tmp_path / "alone", **SMALL)
    assert episodes(tmp_path / "secondary") == episodes(tmp_path / "alone")
    own = outcome(tmp_path / "secondary")["weights"]
    assert own != outcome(tmp_path / "alone")["weights"]
    # Rewards of another scale change no bit of who acts, and arrive in the scale of who learns from them.
    trained(tmp_path / "scaled", **SMALL, sampler_learner={"reward_scale": 4})
    assert outcome(tmp_path / "scaled")["weights"] == own


def test_it_goes_on_where_both_were(tmp_path):
    keys = SMALL | {"sampler_learner": {"format": "e5m4"}, "environments": 2, "checkpoint_every": 100}
    trained(tmp_path / "whole", **keys)
    stopped_and_continued(TrainConfig(**keys), tmp_path / "parts", at=230)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_members_of_a_population_may_have_one(tmp_path):
    members = [{"format": "fp32"}, {"format": "e5m4"}]
    check_together([TrainConfig(**SMALL, format="e5m10", sampler_learner=one) for one in members], tmp_path)


def test_its_actions_end_the_run_and_the_crash_says_whose_they_were(tmp_path):
    other = {"format": "e5m10", "fixes": "none", "lr": 1e4}
    result = trained(tmp_path / "run", **TORQUE | {"steps": 300}, sampler_learner=other)
    assert result.crash
    assert result.crash.reason == "the policy of the sampler-learner took a non-finite action in training"


@each(
    ("keys", "said"),
    [
        ({"sampler_learner": {"task": "walker_walk"}}, "sampler_learner: task is a key of the run, which both"),
        ({"sampler_learner": {"formt": "fp32"}}, "sampler_learner: formt"),
        ({"sampler_learner": {"format": "e5"}}, "sampler_learner: format: "),
        ({"sampler_learner": "fp32"}, "dictionary"),
        ({"sampler_learner": {"lr": object()}}, "sampler_learner takes finite numbers, text"),
        ({"sampler_learner": {"lr": math.nan}}, "sampler_learner: lr: Input should be a finite number"),
        ({"sampler_learner": {}, "learners": 2, "environments": 2}, "is for runs without learners, got learners: 2"),
        ({"sampler_learner": {}, "evaluation": "sampled"}, "is for runs without evaluation"),
        ({"sampler_learner": {}, "algorithm": "dqn", "task": "gym:CartPole-v1", "actors": {"count": 1}}, "in place of"),
        ({"sampler_learner": {}, "algorithm": "ppo"}, "sampler_learner is a key of"),
    ],
)
def test_what_it_is_not_for(keys, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig(**keys)


def test_runs_without_one_have_the_names_they_had():
    assert "sampler_learner" not in TrainConfig(**SMALL).as_json()
    with_one = TrainConfig(**SMALL, sampler_learner={"format": "fp32"})
    assert TrainConfig(**with_one.as_json()) == with_one


def test_what_both_share_are_keys_that_some_algorithm_has():
    known = {name for algorithm in ALGORITHMS for name in config_of(algorithm).model_fields}
    assert set(SHARED) <= known
