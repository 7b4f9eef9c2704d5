"""The keys of DrQ: those of soft actor-critic, of which it is the version for pixels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ...config.fields import key
from ..sac.settings import SACConfig


class DrQConfig(SACConfig):
    """DrQ; the defaults are the paper's (Low-precision SAC, Appendix G)."""

    reason_not_compiled: ClassVar[str | None] = "agents that learn from pixels are not compiled"

    algorithm: str = key("drq", "What learns; each has keys of its own.", since="0.2")
    observations: Literal["states", "pixels"] = key("pixels", "`pixels`; see docs/pixels.md.")

    def world(self) -> dict[str, Any]:
        """Images, and how they are rendered."""
        return {"pixels": {"size": self.image_size, "frames": self.frames, "fast": self.fast_rendering}}


CONFIG = DrQConfig
