"""What a run is made of, as its config asks for it: environment, agent and replay buffer, from states or pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roundoff.agents.environment import Environment
from roundoff.agents.frame_replay import FrameReplay
from roundoff.agents.pixel_environment import PixelEnvironment
from roundoff.agents.replay import Replay
from roundoff.agents.sac import SAC, SoftActorCritic

if TYPE_CHECKING:
    import torch

    from roundoff.agents.config import TrainConfig


def make_environment(config: TrainConfig) -> Environment | PixelEnvironment:
    """The environment, not seeded yet.

    Raises:
        RunError: there is no such task, or no renderer for pixels.
    """
    if config.observations == "pixels":
        size, frames = config.image_size, config.frames
        return PixelEnvironment(config.task, config.action_repeat, size=size, frames=frames, fast=config.fast_rendering)
    return Environment(config.task, config.action_repeat)


def make_agent(
    config: TrainConfig, environment: Environment | PixelEnvironment, device: torch.device
) -> SoftActorCritic[Any, Any]:
    """The agent with its initial weights."""
    if isinstance(environment, PixelEnvironment):
        from roundoff.agents.drq import DrQ  # noqa: PLC0415  states need none of it

        return DrQ(environment.action_size, config, device)
    return SAC(environment.observation_size, environment.action_size, config, device)


def make_replay(
    config: TrainConfig, environment: Environment | PixelEnvironment, dtype: torch.dtype, device: torch.device
) -> Replay | FrameReplay:
    """The empty replay buffer, no longer than the run, so that a short one does not claim memory for a long one."""
    transitions = -(-config.steps // config.action_repeat)
    if isinstance(environment, PixelEnvironment):
        # The shortest episodes have two images and one transition.
        capacity = min(config.replay_capacity, max(2 * transitions, config.frames + 1))
        return FrameReplay(
            capacity,
            environment.image_shape,
            stack=config.frames,
            row_size=environment.action_size + 2,
            dtype=dtype,
            device=device,
        )
    sizes = (environment.observation_size, environment.action_size)
    return Replay(min(config.replay_capacity, transitions), *sizes, dtype=dtype, device=device)
