"""Matrix products by MKL and by oneDNN in float32, and in bfloat16; simulated updates with either library."""

from __future__ import annotations

import torch

from bench.timing import interleaved, record
from bench.update import ACTION, OBSERVATION, reference, transitions
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.formats import round
from roundoff.simulate import Simulation
from roundoff.simulate.aten.products import reason_against


def product(side: int, layout: str) -> dict[str, object]:
    """Two products of square matrices: of a layer forward, of its gradients by inputs, by weights."""
    a, b = torch.randn(2, side, side), torch.randn(2, side, side)
    x, y = {"x w": (a, b), "g w'": (a, b.mT), "x' g": (a.mT, b)}[layout]
    x16, y16 = x.bfloat16(), y.bfloat16()
    contestants = {
        "MKL": lambda: torch.bmm(x, y),
        "oneDNN": lambda: torch.ops.roundoff.product(None, x, y),
        "bfloat16 result": lambda: torch.bmm(x16, y16),
    }
    seconds = interleaved(contestants, rounds=7, seconds=0.1)
    ratios = {f"{name} / MKL": seconds[name] / seconds["MKL"] for name in ("oneDNN", "bfloat16 result")}
    print(f"{layout}, two of {side} x {side}:", ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    return {"product": layout, "side": side, "seconds": seconds, **ratios}


def update(units: int, format: str, *, compiled: bool) -> dict[str, object]:
    """A simulated update with the products of either library, and a textbook one in plain float32."""

    def contestant(products: str):
        config = TrainConfig(task="cheetah_run", format=format, hidden_units=units, batch_size=units)
        agent = SAC(OBSERVATION, ACTION, config, torch.device("cpu"))
        assert agent.simulation is not None
        policy = agent.simulation.policy  # compiled programs are shared among agents of one policy
        agent.simulation = Simulation(policy, seed=config.seed, warn_unused=False, products=products)
        replay = Replay(units, OBSERVATION, ACTION, dtype=agent.dtype, device=torch.device("cpu"))
        replay.rows.copy_(round(transitions(units), format))
        replay.added = units
        sample = replay.sample(units, torch.Generator().manual_seed(0))
        if compiled:
            agent.compiled = CompiledUpdates(agent)
        return lambda: agent.update(sample)

    contestants = {"reference fp32": reference(units, units), "plain": contestant("plain"), "fast": contestant("fast")}
    seconds = interleaved(contestants, rounds=9 if units < 1000 else 5, seconds=0.2)
    ratios = {
        "fast / plain": seconds["fast"] / seconds["plain"],
        "fast / reference": seconds["fast"] / seconds["reference fp32"],
    }
    what = f"{format}, {units} units, {'compiled' if compiled else 'eager'}"
    print(f"update, {what}:", ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    return {"update": what, "seconds": seconds, **ratios}


def main() -> None:
    """Prints and records the ratios."""
    reason = reason_against()
    if reason:
        print(f"products are left to PyTorch: {reason}")
    rows = [product(side, layout) for side in (128, 256, 1024) for layout in ("x w", "g w'", "x' g")]
    rows += [
        update(units, format, compiled=compiled)
        for units, format in ((256, "e5m10"), (1024, "e5m10"), (1024, "e5m2"))
        for compiled in (False, True)
    ]
    print("written to", record("products", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
