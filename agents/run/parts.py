"""What a run is made of, as its config asks for it: environments, agent, replay buffer; from states or pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...formats import Format
from ..algorithms.sac.agent import SAC, SoftActorCritic
from ..environments.parallel import VectorEnvironment
from ..experience.frame_replay import FrameReplay
from ..experience.intake import PixelIntake, StateIntake
from ..experience.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch

    from ..config.train_config import TrainConfig


def open_environments(
    config: TrainConfig, on_stop: Callable[[], None], allow_imports: Collection[str] = ()
) -> VectorEnvironment:
    """The groups to train in, one or two that alternate, and that to evaluate in; not seeded yet.

    Raises:
        RunError: there is no such task, its module is not allowed, or there is no renderer; or a worker failed.
    """
    half = config.environments // 2
    groups = [config.environments - half, *([half] if half else []), config.eval_episodes]
    opening: dict[str, Any] = {"task": config.task, "action_repeat": config.action_repeat}
    opening["allow_imports"] = list(allow_imports)
    if config.observations == "pixels":
        opening["pixels"] = {"size": config.image_size, "frames": config.frames, "fast": config.fast_rendering}
    begin_next = [*(True for _ in groups[:-1]), False]
    return VectorEnvironment(opening, groups, begin_next, workers=config.environment_workers, on_stop=on_stop)


def make_agent(config: TrainConfig, environments: VectorEnvironment, device: torch.device) -> SoftActorCritic[Any, Any]:
    """The agent with its initial weights."""
    if config.observations == "pixels":
        from ..algorithms.drq.agent import DrQ  # noqa: PLC0415  states need none of it

        return DrQ(environments.action_size, config, device)
    return SAC(environments.observation_size, environments.action_size, config, device)


def make_intake(
    config: TrainConfig, environments: VectorEnvironment, dtype: torch.dtype, device: torch.device
) -> StateIntake | PixelIntake:
    """The way into the run, with the empty replay buffer.

    The buffer is no longer than the run, so that a short one does not claim memory for a long one.
    """
    fmt, transitions = Format.parse(config.format), -(-config.steps // config.action_repeat)
    sizes = (environments.observation_size, environments.action_size)
    if config.observations == "states":
        replay = Replay(min(config.replay_capacity, transitions), *sizes, dtype=dtype, device=device)
        return StateIntake(replay, fmt, dtype, device)
    image_shape = (3, config.image_size, config.image_size)
    # The shortest episodes have two images and one transition.
    capacity = min(config.replay_capacity, max(2 * transitions, config.frames + 1))
    row_size = environments.action_size + 2
    images = FrameReplay(capacity, image_shape, stack=config.frames, row_size=row_size, dtype=dtype, device=device)
    return PixelIntake(images, image_shape, fmt, dtype, device)
