"""Agents in formats that are no floats: what they hold is of the format, and others are refused."""

import pytest
import torch
from pydantic import ValidationError

from roundoff.agents import TrainConfig, train
from roundoff.agents.programs.compiled import reason_against
from roundoff.agents.run import checkpoint
from roundoff.formats import Format, round

TINY = {
    "steps": 160, "eval_every": 160, "eval_episodes": 1, "checkpoint_every": 80, "hidden_units": 16, "batch_size": 16,
    "seed_steps": 60,
}  # fmt: skip
SWINGUP = {"task": "cartpole_swingup"}
CARTPOLE = {"task": "gym:CartPole-v1"}
AGENTS = {
    "sac": {**SWINGUP, "algorithm": "sac"},
    "d4pg": {**SWINGUP, "algorithm": "d4pg", "hidden_layers": 2, "n_steps": 2, "v_min": 0.0, "v_max": 5.0, "atoms": 5},
    "rainbow": {**CARTPOLE, "algorithm": "dqn", "prioritized": True, "double": True, "training_intensity": 16,
                "replay_capacity": 100, "exploration_steps": 100},
}  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "fmt"),
    [
        ("sac", "posit8"),
        ("sac", "lns16_8"),
        ("sac", "q7.8"),
        ("d4pg", "lns16_8"),
        ("rainbow", "posit8"),
        ("rainbow", "q7.8"),
    ],
)
def test_all_that_an_agent_holds_is_of_its_format(agent, fmt, tmp_path):
    result = train(TrainConfig(**{**TINY, **AGENTS[agent], "format": fmt}), tmp_path)
    assert result.status == "done", result
    weights = checkpoint.load(tmp_path / "agent.pt")
    parsed = Format.parse(fmt)
    for name, tensor in weights.items():
        assert torch.equal(round(tensor, parsed), tensor), name
    moved = torch.cat([tensor.flatten() for tensor in weights.values()])
    assert (moved.abs() > 4 * parsed.smallest).any()


def test_on_policy_agents_learn_in_posits(tmp_path):
    keys = {**CARTPOLE, "algorithm": "ppo", "horizon": 32, "environments": 2, "steps": 256, "eval_every": 256}
    result = train(TrainConfig(**keys, hidden_units=16, batch_size=32, eval_episodes=1, format="posit16"), tmp_path)
    assert result.status == "done"
    for tensor in checkpoint.load(tmp_path / "agent.pt").values():
        assert torch.equal(round(tensor, "posit16"), tensor)


@pytest.mark.parametrize("fmt", ["int8", "mxfp8_e4m3", "nf4", "bfp8_16", "quarl8", "qtorch_e5m2"])
def test_formats_with_shared_scales_are_for_operands_alone(fmt):
    with pytest.raises(ValidationError) as caught:
        TrainConfig(format=fmt)
    assert "rounds each float64 by itself, such as fp32, bf16, e4m3, posit16, lns16_8 or q7.8" in str(caught.value)
    assert len(caught.value.errors()) == 1


def test_updates_in_other_formats_are_not_compiled_and_a_line_says_so():
    assert reason_against(TrainConfig(format="posit16")) == "posit16 is not a float format"
    assert reason_against(TrainConfig(format="e5m10")) is None
