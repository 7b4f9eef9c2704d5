"""Soft actor-critic in low precision: the six numerical fixes, the agent, its environments and its training."""

from roundoff.agents.config import TrainConfig
from roundoff.agents.errors import FileError, RunError
from roundoff.agents.fixes import FIXES

__all__ = ["FIXES", "FileError", "RunError", "TrainConfig"]
