"""Small runs whose experience comes from actors, for tests of these."""

from roundoff.agents import TrainConfig

TINY = {
    "algorithm": "dqn", "task": "gym:CartPole-v1", "steps": 240, "eval_every": 120, "eval_episodes": 1,
    "checkpoint_every": 50, "hidden_units": 16, "hidden_layers": 2, "batch_size": 8, "seed_steps": 40,
    "exploration_steps": 100, "exploration_end": 0.2, "training_intensity": None, "target_every": 20, "lr": 1e-2,
    "n_steps": 3,
}  # fmt: skip
LOCKSTEP = {"count": 1, "format": "fp32", "lockstep": True}


def config_of(actors, **keys):
    return TrainConfig(**{**TINY, "actors": actors, **keys})
