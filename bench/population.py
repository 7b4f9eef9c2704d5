"""Populations: the update of several agents by one program, beside as many single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.timing import interleaved, record
from bench.update import ACTION, OBSERVATION, transitions
from roundoff.agents.algorithms.sac.agent import SAC
from roundoff.agents.config.train_config import TrainConfig
from roundoff.agents.experience.replay import Replay
from roundoff.agents.programs.compiled import CompiledUpdates
from roundoff.agents.programs.population import Population
from roundoff.agents.training.together import keep_freed_memory
from roundoff.formats import round

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIMULATED = ("e5m10", "e5m8", "e5m6", "e5m5", "e5m4", "e5m3", "e5m2", "e6m9")
PLAIN = ("fp32",) * 8


def agents(formats: Sequence[str], device: str = "cpu", **sizes) -> list[tuple[SAC, Replay]]:
    """An agent of each format, each with one full batch to learn from."""
    made = []
    for seed, name in enumerate(formats):
        config = TrainConfig(task="cheetah_run", format=name, seed=seed, **sizes)
        agent = SAC(OBSERVATION, ACTION, config, torch.device(device))
        replay = Replay(config.batch_size, OBSERVATION, ACTION, dtype=agent.dtype, device=torch.device(device))
        replay.rows.copy_(round(transitions(config.batch_size), name))
        replay.added = config.batch_size
        made.append((agent, replay))
    return made


def together(formats: Sequence[str], device: str = "cpu", **sizes) -> Callable[[], object]:
    """A function that updates them by one program."""
    members = agents(formats, device, **sizes)
    population = Population([agent for agent, _ in members])
    batches = {i: replay.as_batch(replay.rows) for i, (_, replay) in enumerate(members)}
    return lambda: population.update(batches)


def one_by_one(formats: Sequence[str], **sizes) -> Callable[[], object]:
    """A function that updates them one after the other, compiled."""
    members = agents(formats, **sizes)
    for agent, _ in members:
        agent.compiled = CompiledUpdates(agent)
    batches = [replay.as_batch(replay.rows) for _, replay in members]

    def update() -> None:
        for (agent, _), sample in zip(members, batches, strict=True):
            agent.update(sample)

    return update


def comparison(units: int, threads: int, *, plain: bool) -> dict[str, object]:
    """One size, all in turn."""
    torch.set_num_threads(threads)
    sizes = {"hidden_units": units, "batch_size": units, "threads": threads}
    contestants = {"population of 8": together(SIMULATED, **sizes), "8 single ones": one_by_one(SIMULATED, **sizes)}
    if plain:
        contestants["population of 8, plain fp32"] = together(PLAIN, **sizes)
        contestants["8 single ones, plain fp32"] = one_by_one(PLAIN, **sizes)
    seconds = interleaved(contestants, rounds=9, seconds=0.3)
    simulated, singles, *of_plain = seconds.values()
    ratios = {"population / single ones": simulated / singles}
    if plain:
        ratios["plain: population / single ones"] = of_plain[0] / of_plain[1]
        ratios["population: simulated / plain"] = simulated / of_plain[0]
    what = f"update of 8, {units} units, batch {units}, threads {threads}"
    print(f"{what}:", ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))
    torch.set_num_threads(1)
    return {"what": what, "seconds": seconds, "ratios": ratios}


def main() -> None:
    """Prints and records the ratios."""
    keep_freed_memory()
    rows = [comparison(128, 1, plain=True), comparison(128, 2, plain=True), comparison(256, 1, plain=False)]
    print("written to", record("population", rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
