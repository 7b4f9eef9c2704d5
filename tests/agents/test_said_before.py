"""Steps that are not learned from, values that are clipped, widths that were meant for all layers: said, or refused."""

import pytest

from roundoff.agents import TrainConfig
from roundoff.agents.config.recursions import remarks


@pytest.mark.parametrize(
    ("algorithm", "steps", "said"),
    [
        ("ppo", 3000, "the last 952 of 3000 agent steps fill no rollout of 2048"),
        ("ppo", 4096, ""),
        ("ppo", 500_000, ""),  # 288 of them
        ("a2c", 1000, "the last 40 of 1000 agent steps fill no rollout of 80"),
    ],
)
def test_the_last_steps_of_rollouts(algorithm, steps, said):
    config = TrainConfig(algorithm=algorithm, steps=steps)
    assert [one.partition(",")[0] for one in remarks(config)] == ([said] if said else [])


def test_steps_of_rollouts_are_environment_steps():
    (said,) = remarks(TrainConfig(algorithm="ppo", steps=10_000, action_repeat=2))
    assert said.startswith("the last 904 of 5000 agent steps")
    assert "with steps: 8192 or 12288 " in said
    for steps in (8192, 12288):
        assert remarks(TrainConfig(algorithm="ppo", steps=steps, action_repeat=2)) == []


def test_atoms_that_end_before_values_do():
    """Rewards of 8 steps, discount 0.99, 125 agent steps: 8 (1 - 0.99^125) / 0.01 = 572.2."""
    with pytest.raises(ValueError, match=r"values on cartpole_swingup reach 572.2, and the atoms end at 150"):
        TrainConfig(algorithm="d4pg", action_repeat=8)
    assert TrainConfig(algorithm="d4pg", action_repeat=1).support == (-150, 150)  # 100 at most
    chosen = TrainConfig(algorithm="d4pg", action_repeat=8, v_max=400.0)
    (said,) = remarks(chosen)
    assert said.startswith("values on cartpole_swingup reach 572.2, and the atoms end at v_max 400, where larger")
    assert remarks(TrainConfig(algorithm="d4pg", action_repeat=8, v_max=573.0)) == []
    assert remarks(TrainConfig(algorithm="d4pg", action_repeat=8, v_max=1000.0, discount=1.0)) == []
    assert TrainConfig(algorithm="d4pg", action_repeat=8, task="gym:Pendulum-v1").support == (-150, 150)  # not known
    assert TrainConfig(algorithm="d4pg", action_repeat=8, atoms=1)
    assert TrainConfig(algorithm="d4pg", action_repeat=8, clip_rewards=True).support == (-150, 150)  # 71.5 at most


def test_a_width_of_td3_is_that_of_all_layers():
    assert TrainConfig(algorithm="td3").hidden_widths == [400, 300]
    assert TrainConfig(algorithm="td3", hidden_units=128).hidden_widths == [128, 128]
    assert TrainConfig(algorithm="td3", hidden_units=128, last_hidden_units=64).hidden_widths == [128, 64]
    assert TrainConfig(algorithm="td3", last_hidden_units=64).hidden_widths == [400, 64]
    kept = TrainConfig(algorithm="td3", hidden_units=128)
    assert TrainConfig(**kept.as_json()) == kept
