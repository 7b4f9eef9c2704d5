"""Blaming a training run's crash on operations; trials are kept."""

import pytest

from roundoff.agents import TrainConfig, train
from roundoff.agents.training.blame import blame_run
from roundoff.simulate import BlameError

SHORT = {
    "format": "e5m10",
    "fixes": "none",
    "steps": 800,
    "action_repeat": 20,
    "hidden_units": 8,
    "batch_size": 8,
    "seed_steps": 20,
    "eval_every": 800,
    "eval_episodes": 1,
}


def test_a_naive_run_cannot_square_small_numbers_in_half_precision(tmp_path):
    lines = []
    found = blame_run(TrainConfig(**SHORT), tmp_path, on_trial=lines.append)
    assert len(lines) == found.trials
    assert "without rounding: return" in lines[0]
    assert "crashed" in lines[1]
    assert found.culprits
    assert set(found.culprits) < set(found.units)
    # What is blamed suffices: the run with these operations in float32 ends well.
    rules = [{"operation": name, "format": "fp32"} for name in found.culprits]
    assert train(TrainConfig(**SHORT, policy={"rules": rules}), tmp_path / "check").status == "done"
    again = blame_run(TrainConfig(**SHORT), tmp_path)
    assert again == found


def test_by_role(tmp_path):
    found = blame_run(TrainConfig(**SHORT), tmp_path, over="role")
    assert set(found.units) == {"forward", "backward", "optimizer", "averages", "targets"}
    assert "optimizer" in found.culprits  # eps = 1e-8 is 0, and v underflows


def test_what_cannot_be_blamed(tmp_path):
    with pytest.raises(BlameError, match=r"the run also fails in high precision \(return"):
        blame_run(TrainConfig(**SHORT), tmp_path, at_least=1e9)
    with pytest.raises(BlameError, match="over must be operation or role"):
        blame_run(TrainConfig(**SHORT), tmp_path, over="module")
    fixed = TrainConfig(**{**SHORT, "fixes": "all"})
    assert blame_run(fixed, tmp_path).culprits == ()


@pytest.mark.parametrize(
    ("keys", "roles"),
    [
        ({}, ["averages", "targets"]),
        ({"algorithm": "dqn", "task": "gym:CartPole-v1"}, ["targets"]),  # whose target network is a copy
        ({"algorithm": "ppo"}, ["targets"]),
        ({"algorithm": "sb3:SAC", "task": "gym:Pendulum-v1"}, []),  # which says nothing of what it computes
    ],
    ids=str,
)
def test_roles_of_algorithms(keys, roles):
    assert list(TrainConfig(**keys).roles) == ["forward", "backward", "optimizer", *roles]
