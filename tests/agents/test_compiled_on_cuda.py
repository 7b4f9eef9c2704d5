"""Compiled updates of agents on a GPU, alone and as a population: the bits of the eager agent there."""

import pytest
import torch

from roundoff.agents import SAC, TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.agents.programs.population import Population
from roundoff.formats import round

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# Scales that are too large at first and soon grow: steps are skipped, scales halve and double.
KEYS = {
    "task": "cartpole_swingup", "hidden_units": 64, "batch_size": 64, "lr": 3e-3, "tau": 0.02, "device": "cuda",
    "initial_loss_scale": 2.0**22, "loss_scale_growth_interval": 3, "kahan_momentum_scale": 2.0**15,
}  # fmt: skip


def made(**keys):
    config = TrainConfig(**KEYS | keys)
    return SAC(5, 1, config, torch.device("cuda"))


def replay_of(agent):
    replay = Replay(300, 5, 1, dtype=agent.dtype, device=agent.device)
    rows = torch.randn(replay.rows.shape, generator=torch.Generator().manual_seed(1))
    rows[:, -1] = 1
    replay.rows.copy_(round(rows, agent.config.format))
    replay.added = len(replay.rows)
    return replay


def flat(state, place=""):
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
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    return a == b or (a != a and b != b)  # noqa: PLR0124


@pytest.mark.parametrize("format", ["e5m10", "e5m7", "bf16"])
def test_same_bits_as_the_eager_agent(format):
    eager, mine = made(format=format), made(format=format)
    mine.compiled = CompiledUpdates(mine)
    replay = replay_of(mine)
    generator = torch.Generator().manual_seed(2)
    for _ in range(12):
        batch = replay.sample(64, generator)
        for agent in (eager, mine):
            agent.update(batch)
    assert mine.compiled is not None
    assert mine.compiled.reason is None
    assert differences(eager, mine) == []


def test_a_population_of_four_formats():
    formats = ["e5m10", "e5m7", "e5m2", "e4m3"]
    alone, members = ([made(format=name, seed=i) for i, name in enumerate(formats)] for _ in range(2))
    population = Population(members)
    replays = [replay_of(agent) for agent in members]
    generator = torch.Generator().manual_seed(2)
    for _ in range(6):
        batches = {i: replay.sample(64, generator) for i, replay in enumerate(replays)}
        population.update(batches)
        for i, agent in enumerate(alone):
            agent.update(batches[i])
    for i, agent in enumerate(members):
        population.write_back(i)
        assert differences(alone[i], agent) == []
