"""The arithmetic of an agent, before quantization-aware training begins and after."""

from __future__ import annotations

from dataclasses import replace

from ...formats import Format
from ...simulate import CONTRACTIONS, Policy, Rule, Simulation
from ..config.fixes import draws_random_bits
from ..config.learning_keys import OptimizerKeys
from ..config.train_config import TrainConfig

# The operands of backward products, by ``qat.operands``.
_BACKWARD = {"both": "rounded", "forward": "unrounded"}


def simulation_of(config: TrainConfig) -> Simulation | None:
    """Returns the simulation of an agent at the beginning of a run; None if it is never simulated."""
    fmt = Format.parse(config.format)
    storage, fixes = (config.storage, config.fixes) if isinstance(config, OptimizerKeys) else (None, ())
    if config.native:
        # Fixes with stochastic rounding also need random bits in a native agent.
        return Simulation("fp32", seed=config.seed) if draws_random_bits(fixes) else None
    if fmt.native and not (config.policy or config.observe or config.qat or storage):
        return None
    # No warning about unused rules: the first action runs no backward pass and no optimizer.
    policy = _policy_of(config, quantized=False)
    stored = [Format.parse(kept.format) for kept in storage.formats.values()] if storage else []
    return Simulation(policy, seed=config.seed, observe=config.observe, warn_unused=False, stored=stored)


def change_to(simulation: Simulation, config: TrainConfig, *, quantized: bool) -> None:
    """Turns the arithmetic of ``config.qat`` on or off in an agent's simulation, which no code is inside of."""
    simulation.change(_policy_of(config, quantized=quantized))


def _policy_of(config: TrainConfig, *, quantized: bool) -> Policy:
    fmt = Format.parse(config.format)
    policy = Policy.parse(config.policy, fmt) if config.policy else Policy.of(fmt)
    # Agents count in integers. Floats that happen to be integers are rounded, since a checkpoint does not record their
    # origin.
    policy = replace(policy, whole="rounded")
    if not quantized:
        return policy
    assert config.qat is not None
    return policy.with_rules(
        Rule(
            CONTRACTIONS,
            role=("weights", "activations"),
            backward=_BACKWARD[config.qat.operands],
            format=config.qat.format,
            rounding="nearest-even",
        )
    )
