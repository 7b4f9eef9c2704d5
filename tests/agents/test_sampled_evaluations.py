"""Evaluations by what acts in training: the same training, returns of samples, and the same ones again."""

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from runs import SMALL, outcome, stopped_and_continued

from roundoff.agents import Quantization, TrainConfig, quantize, train
from roundoff.agents.run.evaluate import EvaluationPolicy
from roundoff.agents.run.parts import make_learner, open_environments

pytestmark = pytest.mark.usefixtures("short_episodes")

OWN = {
    "sac": {},
    "td3": {},
    "ppo": {"horizon": 75, "batch_size": 15},
    "dqn": {"task": "gym:CartPole-v1", "exploration_start": 1.0, "exploration_end": 1.0, "action_repeat": 1},
}


def config(algorithm, **keys):
    plain = {key: value for key, value in SMALL.items() if algorithm != "ppo" or key != "seed_steps"}
    return TrainConfig(**(plain | {"algorithm": algorithm, "steps": 3000} | OWN[algorithm] | keys))


def lines(folder, kind):
    return [one for one in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if one["kind"] == kind]


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_training_is_the_same_and_returns_are_of_samples(tmp_path, algorithm):
    for how in ("deterministic", "sampled"):
        train(config(algorithm, evaluation=how), tmp_path / how, compiled=False)
    best, sampled = (lines(tmp_path / how, "eval") for how in ("deterministic", "sampled"))
    assert lines(tmp_path / "deterministic", "train") == lines(tmp_path / "sampled", "train")
    assert all(a["returns"] != b["returns"] for a, b in zip(best, sampled, strict=True))
    assert outcome(tmp_path / "deterministic")["weights"] == outcome(tmp_path / "sampled")["weights"]
    stopped_and_continued(config(algorithm, evaluation="sampled"), tmp_path / "again", at=2000)
    assert lines(tmp_path / "again", "eval") == sampled  # an evaluation depends on its step and seed alone


@pytest.mark.parametrize("algorithm", sorted(OWN))
def test_what_acts_is_what_acts_in_training(algorithm):
    one = config(algorithm, evaluation="sampled")

    def made():
        with closing(open_environments(one, lambda: None)) as environments:
            return make_learner(one, environments, torch.device("cpu"))

    learner, recorder = made()
    states = np.tile(np.linspace(-1, 1, learner.observation_size), (64, 1))

    def actions(step):
        return EvaluationPolicy(learner, recorder.intake, step=step)(states)

    first, again, later = actions(0), actions(0), actions(1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, later)
    assert len(np.unique(first, axis=0)) > 1  # of one state
    unused, _ = made()
    assert torch.equal(*(one.generators["act_noise"].get_state() for one in (learner, unused)))  # training's own


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_it_is_played_again_when_a_policy_is_quantized(tmp_path, algorithm):
    """DQN's random actions, whose share falls, are those of the end: an evaluation is one moment of training."""
    falls = {"exploration_end": 0.0, "exploration_steps": 4000} if algorithm == "dqn" else {}
    result = train(config(algorithm, evaluation="sampled", **falls), tmp_path, compiled=False)
    assert quantize(tmp_path, [Quantization.parse("int8")]).original.mean == result.return_mean


def test_it_has_a_name_of_its_own_and_is_not_for_actors():
    assert "evaluation" not in config("sac").as_json()
    assert config("sac", evaluation="sampled").as_json()["evaluation"] == "sampled"
    with pytest.raises(ValueError, match="evaluation: sampled takes the actions of training, and each actor has"):
        config("td3", evaluation="sampled", actors={"count": 2})
