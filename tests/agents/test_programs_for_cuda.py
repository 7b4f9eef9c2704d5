"""Updates of agents compiled for a GPU that is not there: the bits of the eager agent, and everything on the device."""

import pytest
from pretending import run

UPDATES = """
import json
from pretended_gpu import Pretended
import torch
from roundoff.agents import TrainConfig
from roundoff.agents.algorithms.{module}.agent import {agent}
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.formats import round

config = TrainConfig(task="cartpole_swingup", hidden_units=8, batch_size=8, initial_loss_scale=64.0, **{keys})
eager, mine = ({agent}(5, 1, config, torch.device("cpu")) for _ in range(2))
replay = Replay(300, 5, 1, dtype=mine.dtype, device=mine.device)
generator = torch.Generator().manual_seed(1)
rows = torch.randn(replay.rows.shape, generator=generator)
rows[:, -1] = 1
replay.rows.copy_(round(rows, config.format))
replay.added = len(replay.rows)

def flat(state, place=""):
    if isinstance(state, dict):
        return {{k: v for name, part in state.items() for k, v in flat(part, f"{{place}}/{{name}}").items()}}
    if isinstance(state, (list, tuple)):
        return {{k: v for i, part in enumerate(state) for k, v in flat(part, f"{{place}}/{{i}}").items()}}
    return {{place: state}}

with Pretended() as gpu:
    mine.compiled = CompiledUpdates(mine, print)
    for _ in range(2):
        batch = replay.sample(8, generator)
        for one in (eager, mine):
            one.update(batch)
a, b = flat(eager.state_dict()), flat(mine.state_dict())
assert a.keys() == b.keys()
assert mine.compiled is not None and mine.compiled.reason is None
wrong = [k for k in a if not (torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k])]
on_host = sum("empty_strided_cpu(" in x.split("def call(")[1].split("runner =")[0] for x in gpu.programs)
print(json.dumps([wrong, sorted(gpu.devices), on_host, len(gpu.programs) > 1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "keys"),
    [
        ("SAC", {"format": "e5m10"}),
        ("SAC", {"format": "bf16"}),
        ("TD3", {"format": "e5m10", "algorithm": "td3"}),
        ("D4PG", {"format": "e5m10", "algorithm": "d4pg", "hidden_layers": 2}),
    ],
    ids=str,
)
def test_updates(agent, keys, tmp_path):
    script = UPDATES.format(agent=agent, module=agent.lower(), keys=keys)
    assert run(tmp_path, script) == [[], ["cuda"], 0, True]
