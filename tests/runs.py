"""Small training runs, and what one leaves in its folder, for tests that compare runs bit for bit."""

import pytest

from roundoff.agents import TrainConfig, train
from roundoff.agents.run import checkpoint
from roundoff.agents.run.stopping import Stopped, StopRequest
from roundoff.agents.training.together import Job, train_together

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
    """The config of a run of a few seconds."""
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


def stopped_and_continued(config, directory, at):
    """Trains, stops as soon as the run is told that it is at step ``at``, and goes on to the end."""
    stop = StopRequest()
    with pytest.raises(Stopped):
        train(config, directory, lambda now: now.step >= at and stop.make(), stop, compiled=False)
    train(config, directory, compiled=False)


def check_together(configs, directory):
    """A population leaves what runs alone leave, which are in ``alone0``, ``alone1``, ... afterwards."""
    for i, one in enumerate(configs):
        train(one, directory / f"alone{i}", compiled=False)
    notices = []
    jobs = [Job(one, directory / f"member{i}", on_notice=notices.append) for i, one in enumerate(configs)]
    assert all(result.status == "done" for _, result in train_together(jobs, compiled=True))
    assert notices == [f"updates are compiled, of {len(configs)} runs together"] * len(configs)
    for i in range(len(configs)):
        assert outcome(directory / f"member{i}") == outcome(directory / f"alone{i}")
