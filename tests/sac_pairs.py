"""Two SAC agents that are the same, and what they learn from: for tests of whether they stay the same."""

import torch

from roundoff.agents import SAC, TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.formats import round

CPU = torch.device("cpu")
SMALL = {"task": "cartpole_swingup", "hidden_units": 8, "batch_size": 8, "lr": 3e-3, "tau": 0.02}


def flat(state, place=""):
    """Every tensor and number of a nested state, by its place."""
    if isinstance(state, dict):
        return {k: v for name, part in state.items() for k, v in flat(part, f"{place}/{name}").items()}
    if isinstance(state, (list, tuple)):
        return {k: v for i, part in enumerate(state) for k, v in flat(part, f"{place}/{i}").items()}
    return {place: state}


def differences(one, two):
    a, b = flat(one.state_dict()), flat(two.state_dict())
    assert a.keys() == b.keys()
    return [name for name in a if not same(a[name], b[name])]


def same(a, b):
    """NaN, too, is the same as NaN."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    return a == b or (a != a and b != b)  # noqa: PLR0124


def pair(**keys):
    config = TrainConfig(**SMALL | keys)
    agents = [SAC(5, 1, config, CPU) for _ in range(2)]
    replay = Replay(300, 5, 1, dtype=agents[0].dtype, device=CPU)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(replay.rows.shape, generator=generator)
    rows[:, -1] = 1
    replay.rows.copy_(rows if config.native else round(rows, config.format))
    replay.added = len(replay.rows)
    return *agents, replay, generator


# Scales that are too large at first and soon grow: steps are skipped, scales halve and double.
RESTLESS = {"initial_loss_scale": 2.0**22, "loss_scale_growth_interval": 3, "kahan_momentum_scale": 2.0**15}
