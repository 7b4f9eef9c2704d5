"""The keys of DrQ: the same as soft actor-critic's, as it is the version for pixels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ...config.fields import KeyRole, key
from ...config.rules import KeyRule
from ...environments.tasks import Task, TaskKind
from ..sac.settings import SACConfig

# Four 3x3 convolutions, the first with stride 2, leave at least one pixel.
_SMALLEST_IMAGE = 15


def _least_capacity(config: Any) -> str:
    """The images that replay must hold, in words; empty if it does."""
    least = config.environments * (config.frames + 1)
    if config.replay_capacity >= least:
        return ""
    return f"frames + 1 = {least}" if config.environments == 1 else f"environments x (frames + 1) = {least}"


class DrQConfig(SACConfig):
    """DrQ; the defaults are the paper's (Low-precision SAC, Appendix G)."""

    reason_not_compiled: ClassVar[str | None] = "agents that learn from pixels are not compiled"
    rules: ClassVar[tuple[KeyRule, ...]] = (
        *SACConfig.rules,
        KeyRule(lambda c: Task.parse(c.task).kind is not TaskKind.SUITE, "observations",
             "observations: pixels is for tasks of the control suite, got task: {c.task}; set observations: states, or"
             " choose another task"),
        KeyRule(lambda c: c.keep_networks, "observations",
             "keep_networks compares the values of networks on states, got keep_networks: True with"
             " observations: pixels; set observations: states, or leave keep_networks out"),
        KeyRule(lambda c: c.image_size < _SMALLEST_IMAGE, "image_size",
             f"image_size must be at least {_SMALLEST_IMAGE}, for the four convolutions to leave a pixel, got"
             " {c.image_size}"),
        KeyRule(_least_capacity, "observations",
             "replay_capacity counts images if observations: pixels, and must be at least {found}, got"
             " {c.replay_capacity}"),
    )  # fmt: skip

    algorithm: str = key("drq", "The algorithm. Each algorithm has its own keys.", KeyRole.LATER)
    observations: Literal["states", "pixels"] = key("pixels", "`pixels`; see docs/environments.md.")

    def world(self) -> dict[str, Any]:
        """Images, and how they are rendered."""
        return {"pixels": {"size": self.image_size, "frames": self.frames, "fast": self.fast_rendering}}


CONFIG = DrQConfig
