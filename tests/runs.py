"""Small training runs, and what one leaves in its folder, for tests that compare runs bit for bit."""

from roundoff.agents import TrainConfig
from roundoff.agents.run import checkpoint
from roundoff.agents.run.stopping import StopRequest

SMALL = {
    "steps": 6000,
    "action_repeat": 20,
    "hidden_units": 8,
    "batch_size": 8,
    "lr": 1e-3,
    "seed_steps": 20,
    "eval_every": 1500,
    "eval_episodes": 2,
    "checkpoint_every": 500,
}


def config(**keys):
    """Of a run of seconds."""
    return TrainConfig(**(SMALL | keys))


def weights(directory):
    """The bytes of each network's weights."""
    return {name: value.numpy().tobytes() for name, value in checkpoint.load(directory / "agent.pt").items()}


def outcome(directory):
    """What must be the same, by name: the files that depend on the config alone, and the weights."""
    names = ("metrics.jsonl", "result.json", "config.json", "numerics.csv")
    files = {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}
    assert files.keys() >= {"metrics.jsonl", "result.json", "config.json"}
    return files | {"weights": weights(directory)}


class AfterSteps(StopRequest):
    """Made when it has been looked at a number of times: once for each step of a group."""

    def __init__(self, steps):
        self.left = steps

    @property
    def made(self):
        self.left -= 1
        return self.left < 0
