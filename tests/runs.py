"""What a training run leaves in its folder, for tests that compare runs bit for bit."""

from roundoff.agents.run import checkpoint


def weights(directory):
    """The bytes of each network's weights."""
    return {name: value.numpy().tobytes() for name, value in checkpoint.load(directory / "agent.pt").items()}


def outcome(directory):
    """What must be the same, by name: the files that depend on the config alone, and the weights."""
    names = ("metrics.jsonl", "result.json", "config.json", "numerics.csv")
    files = {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}
    assert files.keys() >= {"metrics.jsonl", "result.json", "config.json"}
    return files | {"weights": weights(directory)}
